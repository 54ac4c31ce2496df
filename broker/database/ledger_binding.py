"""Whose ledger is this? A row in the database and a file in the store bind the two to each other.

    checkback_ledger_binding                     store_id, binding_id (chance), identity (JSON), opened, made_ms
    STORE/checkback/ledgers/<binding_id>.json    the same, as the store remembers it

Both are made when a producer first opens, before its first half message, and each half message names the binding in
CHECKBACK_LEDGER_BINDING. So check-back, when it finds no row for a transaction in doubt, can tell "it did not commit"
from "this is another database". The row states the identity of the database that it was made in
(`broker.database.ledger_identity`): in a copy the row is the same and the database another. Each process that opens a
producer raises `opened`, there first and then in the store: a database that has a lower number than the store knows was
put back from a backup.

The functions take `execute`, which executes an `Sql` on whatever connection there is, and the table as SQL names it.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from shlex import quote
from typing import TYPE_CHECKING, Any

from broker.database.ledger_identity import DatabaseIdentity, Execute, Observed, difference
from broker.database.statements import Sql
from broker.database.tables import IN_TRANSACTIONS
from broker.errors import StoreError, TransactionError
from broker.store.disk.files import Disk
from broker.store.disk.lock_calls import alone_at
from broker.store.disk.paths import Paths

if TYPE_CHECKING:
    from sqlalchemy import MetaData, Table

LEDGER_BINDING = "CHECKBACK_LEDGER_BINDING"
"""The property of a half message that names the binding of its ledger."""

ID_SIZE = 32
_ATTEMPTS = 3  # another process may insert the row between our look and our insert
_WAIT_MS = 100


@dataclass(frozen=True, slots=True)
class NextSteps:
    """The commands by which a person answers for a ledger, with what is known of their words."""

    store: str = "STORE"
    ledger: str = "--ledger URL"

    @property
    def rebind(self) -> str:
        return f"checkback ledger rebind {self.store} {self.ledger} --why TEXT"

    @property
    def accept(self) -> str:
        return f"checkback ledger accept {self.store} {self.ledger} --why TEXT"


class _StepsOfAGroup(NextSteps):
    @property
    def rebind(self) -> str:
        return f"checkback answer NAMESRV --group GROUP {self.ledger} --rebind"

    @property
    def accept(self) -> str:
        return f"checkback answer NAMESRV --group GROUP {self.ledger} --accept-lost-rows"


Transaction = Callable[[], AbstractContextManager[Execute]]
"""Begins a transaction that commits when its block is left, and gives what executes in it."""


@dataclass(frozen=True, slots=True)
class Binding:
    """One row: a store, and the database that holds its ledger."""

    binding_id: str
    store_id: str
    identity: DatabaseIdentity
    opened: int  # how many processes opened a producer on it
    made_ms: int


@dataclass(frozen=True, slots=True)
class KnownLedger:
    """What a store remembers of one of its ledgers."""

    binding: Binding
    table: str
    accepted_ms: int = 0  # a person accepted that rows of keys made before this time may be missing
    missing_key: str = ""  # the newest key of a committed transaction whose row was once found missing; empty: none
    history: tuple[Mapping[str, Any], ...] = field(default=(), compare=False)  # what persons said, oldest first

    def as_json(self) -> dict[str, Any]:
        one = self.binding
        found: dict[str, Any] = {"binding_id": one.binding_id, "store_id": one.store_id, "table": self.table}
        found |= {"identity": one.identity.as_json(), "opened": one.opened, "made_ms": one.made_ms}
        found |= {"accepted_ms": self.accepted_ms, "missing_key": self.missing_key}
        return found | {"history": [dict(step) for step in self.history]}


def binding_table(metadata: MetaData, table: str) -> Table:
    """The table of the bindings, beside the ledger's table `table`."""
    from sqlalchemy import BigInteger, Column, String, Table, Text

    return Table(
        f"{table}_binding",
        metadata,
        Column("store_id", String(32), primary_key=True),
        Column("binding_id", String(ID_SIZE), nullable=False),
        Column("identity", Text, nullable=False),
        Column("opened", BigInteger, nullable=False),
        Column("made_ms", BigInteger, nullable=False),
        **IN_TRANSACTIONS,
    )


def read_binding(execute: Execute, bindings: str, store_id: str) -> Binding | None:
    """The binding of a store in a database; None when it has none. Raises TransactionError for one that is damaged."""
    wanted = f"SELECT binding_id, identity, opened, made_ms FROM {bindings} WHERE store_id = :store_id"  # noqa: S608 - ours
    found = execute(Sql(wanted, {"store_id": store_id}))
    if not found:
        return None
    ((binding_id, identity, opened, made_ms),) = found
    try:
        known = DatabaseIdentity.from_json(json.loads(identity))
    except (ValueError, AttributeError) as error:
        raise TransactionError(f"the row of {store_id} in {bindings} is damaged: {error}") from error
    return Binding(str(binding_id), store_id, known, int(opened), int(made_ms))


def bind(
    transaction: Transaction,
    bindings: str,
    store_id: str,
    look: Callable[[Execute], Observed],
    now_ms: int,
    known: KnownLedgers | None = None,
) -> Binding:
    """Bind a store to a database, or verify that it is bound to this one, and count that it was opened.

    `known` is what the store remembers. Raises TransactionError when the row says that this is another database, or
    when the rows of the ledger's table do not go with their transactions; StoreError for a file of the store that is
    damaged; what the database raises comes through.
    """
    steps = KnownLedgers.steps if known is None else known.steps
    for attempt in range(_ATTEMPTS):
        with transaction() as execute:
            observed = look(execute)
            if observed.unfit:
                raise TransactionError(f"the ledger's table {observed.unfit}")
            found = read_binding(execute, bindings, store_id)
        if found is not None:
            if what := difference(found.identity, observed.identity):
                raise TransactionError(f"{mismatch(found, observed.identity)} ({what}). {_next_step(steps)}")
            now = replace(found, identity=observed.identity)
            seen = known.get(found.binding_id) if known is not None else None
            if seen is not None and found.opened < seen.binding.opened:
                return now  # put back from a backup: if it were counted, it would soon look like one that was not
            return _counted(transaction, bindings, now)
        made = Binding(secrets.token_hex(ID_SIZE // 2), store_id, observed.identity, 1, now_ms)
        try:
            with transaction() as execute:
                execute(_insert(bindings, made))
            return made
        except Exception:
            if attempt == _ATTEMPTS - 1:
                raise
    raise AssertionError  # the last attempt returns or raises


def _next_step(steps: NextSteps) -> str:
    return f"Use that database; or, if it was moved to this one, say so: {steps.rebind}"


def mismatch(bound: Binding, actual: DatabaseIdentity) -> str:
    """The sentence with both identities."""
    return f"the ledger was bound to {bound.identity}, and this is {actual}"


def _counted(transaction: Transaction, bindings: str, found: Binding) -> Binding:
    """Raise the count, which is a help and no condition: a database that is locked at the moment stays as it is."""
    count = f"UPDATE {bindings} SET opened = opened + 1, identity = :identity WHERE store_id = :store_id"  # noqa: S608 - ours
    seen = _row(found)["identity"]  # a file may have another path or device than before
    try:
        with transaction() as execute, _impatient(execute, found.identity.dialect):
            execute(Sql(count, {"identity": seen, "store_id": found.store_id}))
            now = read_binding(execute, bindings, found.store_id)
    except Exception:  # noqa: BLE001 - each driver has its own error for a lock
        return found
    return replace(found, opened=now.opened) if now is not None else found


@contextmanager
def _impatient(execute: Execute, dialect: str) -> Iterator[None]:
    """On SQLite, where one lock is for all writers: do not wait for it for long, and leave the connection as it was."""
    if dialect != "sqlite":
        yield
        return
    ((before,),) = execute(Sql("PRAGMA busy_timeout"))
    execute(Sql(f"PRAGMA busy_timeout = {_WAIT_MS}"))
    try:
        yield
    finally:
        execute(Sql(f"PRAGMA busy_timeout = {int(before)}"))


def put_binding(execute: Execute, bindings: str, binding: Binding) -> None:
    """Put a binding in place of the one that the store has there, if any: an operator decided it."""
    execute(Sql(f"DELETE FROM {bindings} WHERE store_id = :store_id", {"store_id": binding.store_id}))  # noqa: S608 - ours
    execute(_insert(bindings, binding))


def _insert(bindings: str, binding: Binding) -> Sql:
    row = _row(binding)
    places = ", ".join(f":{name}" for name in row)
    return Sql(f"INSERT INTO {bindings} ({', '.join(row)}) VALUES ({places})", row)  # noqa: S608 - ours


def _row(binding: Binding) -> dict[str, Any]:
    return {
        "store_id": binding.store_id,
        "binding_id": binding.binding_id,
        "identity": json.dumps(binding.identity.as_json(), sort_keys=True),
        "opened": binding.opened,
        "made_ms": binding.made_ms,
    }


class KnownLedgers:
    """What a store remembers of its ledgers, a small file for each. Other processes may read and write them, too."""

    steps = NextSteps()

    def __init__(self, store_path: str, disk: Disk | None = None) -> None:
        self.steps = NextSteps(quote(store_path))
        self._directory, self._disk = os.path.join(Paths(store_path).own, "ledgers"), disk or Disk()

    def all(self) -> list[KnownLedger]:
        """Every ledger, the oldest first. Raises StoreError for a file that is damaged."""
        entries = self._disk.entries_if_any(self._directory)
        found = [self._read(entry.path) for entry in entries if entry.name.endswith(".json")]
        return sorted(found, key=lambda one: one.binding.made_ms)

    def get(self, binding_id: str) -> KnownLedger | None:
        """The ledger with a binding. Raises StoreError for a file that is damaged."""
        path = self._path(binding_id)
        return None if self._disk.entry(path) is None else self._read(path)

    def remember(self, binding: Binding, table: str) -> None:
        """Keep a binding that a producer opened; what operators recorded about it stays.

        Raises TransactionError when the store knows that binding as one of another database.
        """

        def remembered(known: KnownLedger | None) -> KnownLedger:
            if known is None:
                return KnownLedger(binding, table)
            if difference(known.binding.identity, binding.identity):
                text = f"the store knows it as {known.binding.identity}, and this is {binding.identity}"
                raise TransactionError(f"the ledger is another one than it was: {text}. {_next_step(self.steps)}")
            opened = max(known.binding.opened, binding.opened)
            return replace(known, binding=replace(binding, opened=opened))

        self.change(binding.binding_id, remembered)

    def change(self, binding_id: str, changed: Callable[[KnownLedger | None], KnownLedger]) -> None:
        """Keep what becomes of the ledger with a binding, on disk when this returns.

        No other process or thread changes one meanwhile: what an operator accepted would be gone.
        """
        path = self._path(binding_id)
        if self._disk.entry(self._directory) is None:
            self._disk.create_directory(self._directory)
        with alone_at(self._disk, self._directory):
            content = changed(self.get(binding_id)).as_json()
            self._disk.write_file(path, json.dumps(content, indent=1).encode())

    def put(self, known: KnownLedger) -> None:
        """Keep it in place of what was known, on disk when this returns."""
        self.change(known.binding.binding_id, lambda _: known)

    def _path(self, binding_id: str) -> str:
        if len(binding_id) != ID_SIZE or not binding_id.isalnum():
            raise TransactionError(f"{binding_id!r:.80} names no binding of a ledger")
        return os.path.join(self._directory, f"{binding_id}.json")

    def _read(self, path: str) -> KnownLedger:
        try:
            content = json.loads(self._disk.read(path))
            identity = DatabaseIdentity.from_json(content["identity"])
            binding = Binding(
                content["binding_id"], content["store_id"], identity, content["opened"], content["made_ms"]
            )
            missing_key = str(content.get("missing_key", ""))  # a store of an older checkback does not say
            history = tuple(content["history"])
            return KnownLedger(binding, content["table"], content["accepted_ms"], missing_key, history)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            reason = f"{type(error).__name__}: {error!s:.100}"
            text = f"{path} is damaged ({reason}). Put it back from a copy of the store, or: {self.steps.rebind}"
            raise StoreError(text, path=path) from error


class RememberedLedgers(KnownLedgers):
    """The same in memory, where no store is there to remember: for a client of a cluster, as long as it lives."""

    steps = _StepsOfAGroup()

    def __init__(self) -> None:
        self._known: dict[str, KnownLedger] = {}

    def all(self) -> list[KnownLedger]:
        return sorted(self._known.values(), key=lambda one: one.binding.made_ms)

    def get(self, binding_id: str) -> KnownLedger | None:
        return self._known.get(binding_id)

    def change(self, binding_id: str, changed: Callable[[KnownLedger | None], KnownLedger]) -> None:
        self._known[binding_id] = changed(self._known.get(binding_id))
