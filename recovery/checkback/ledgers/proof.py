"""Proof that a database is the ledger of a store: before a missing row may mean "it did not commit".

    binding = prove(transaction, ledger, evidence)    # or WrongLedger, one sentence

What must agree: the row that binds the store and the database to each other, the database that it was made in, what
the store remembers of it, and the newest transactions that the store knows as committed: their rows must be there. The
last is the mark. The store's own slots are it, so it needs no keeping, and it rises with each transaction. It detects a
backup that was put back, a standby that took over without the last rows, and a copy of a whole server, whose identity
is the same, by what they lack.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from shlex import quote
from typing import TYPE_CHECKING, NamedTuple, Protocol

from sqlalchemy import inspect, select
from sqlalchemy.exc import DBAPIError, IntegrityError

from broker.database.ledger_binding import (
    LEDGER_BINDING,
    Binding,
    KnownLedger,
    KnownLedgers,
    NextSteps,
    Transaction,
    mismatch,
    read_binding,
)
from broker.database.ledger_identity import DatabaseIdentity, difference
from broker.enlisting.ledger_key import LEDGER_KEY, key_time_ms, new_key
from broker.errors import BrokerError, CorruptRecord, StoreError, TransactionError
from broker.format.sysflag import TransactionType
from broker.ledger import COMMITTED, ROLLED_BACK, Ledger
from broker.live import LiveStore
from broker.store.disk.files import Missing
from broker.store.shared.control import Word
from broker.transaction.events import BY
from recovery.checkback.ledgers.database_errors import is_missing_table
from recovery.checkback.protocol import NOTHING_DECIDED
from recovery.humanize import moment
from recovery.scan.ends import ends_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection
    from sqlalchemy.engine.interfaces import ReflectedIndex

_KNOWN_KEYS = 32  # the newest of them: who lacks an older one lacks these, until an application goes on with it
_SLOTS_LOOKED_AT = 10_000
_TABLE, _KEY = "checkback_ledger", "ledger_key"


class WrongLedger(BrokerError):
    """The database is not, or not certainly, the ledger of this store: nothing was decided."""


class CommittedKey(NamedTuple):
    """A transaction that the store knows as committed in a ledger."""

    key: str
    commitlog_offset: int  # of its half message; -1: it is known by its key alone


class Evidence(Protocol):
    """What can be said of the ledgers of a store, or of a cluster."""

    @property
    def store_id(self) -> str: ...
    @property
    def known(self) -> KnownLedgers: ...
    def known_of(self, row: Binding) -> KnownLedger | None:
        """What is remembered of the ledger with a row's binding."""

    def committed(self, binding_id: str) -> list[CommittedKey]:
        """The newest transactions that ended as committed and name this binding; one key once."""

    def is_by_hand(self, commitlog_offset: int) -> bool:
        """Whether a person or a policy committed it, and not its ledger."""


class LedgerEvidence:
    """What a store can say of its ledgers. Implements Evidence."""

    def __init__(self, store: LiveStore) -> None:
        self._store = store
        self.store_id = store.store_id
        self.known = KnownLedgers(store.path, store.writer.disk)

    def known_of(self, row: Binding) -> KnownLedger | None:
        return self.known.get(row.binding_id)

    def committed(self, binding_id: str) -> list[CommittedKey]:
        """The newest transactions that ended as committed and name this binding; one key once."""
        found: dict[str, CommittedKey] = {}
        for commitlog_offset in self._committed_halves():
            try:
                properties = self._store.transactions.half(commitlog_offset).properties
            except BrokerError:  # its segment is gone, or it is damaged
                continue
            key = properties.get(LEDGER_KEY)
            if key and properties.get(LEDGER_BINDING) == binding_id:
                found.setdefault(key, CommittedKey(key, commitlog_offset))
                if len(found) == _KNOWN_KEYS:
                    break
        return list(found.values())

    def _committed_halves(self) -> Iterator[int]:
        """CommitLog offsets of the committed half messages among the last slots, the newest first."""
        writer = self._store.writer
        count = int(writer.control[Word.SLOTS])
        first = max(0, count - _SLOTS_LOOKED_AT)
        for slot in reversed(writer.dispatcher.slots_in_state(TransactionType.COMMIT, first, count)):
            try:
                yield writer.dispatcher.slot(slot).commitlog_offset
            except Missing:  # retention removed it, and all before it
                return

    def is_by_hand(self, commitlog_offset: int) -> bool:
        """Whether a person or a policy committed it, and not its ledger: the end record says who and why."""
        ends = ends_of(self._store.path, self._store, commitlog_offset)
        try:
            return any(end.transaction_type is TransactionType.COMMIT and end.property_map.get(BY) for end in ends)
        except CorruptRecord:  # it does not say so
            return False


@dataclass(frozen=True, slots=True)
class LedgerFacts:
    """What is known before the decision. Where nothing was queried, the value that raises no doubt."""

    store_id: str
    actual: DatabaseIdentity
    has_table: bool
    read_only: str
    row: Binding | None  # what the database says
    known: KnownLedger | None  # what the store says of the row's binding
    ledgers: Sequence[KnownLedger] = ()  # of the store
    committed: int = 0  # how many transactions the store knows as committed there
    lacking: Sequence[CommittedKey] = ()  # of them, those whose rows are missing
    steps: NextSteps = field(default=NextSteps())  # what a person does about it
    mark_ms: int = 0  # rows of keys made before this time were removed by retention
    unfit: str = ""  # why its rows say nothing of their transactions


def judge(facts: LedgerFacts) -> str:
    """Why nothing may be decided by this database; empty when all agrees. Pure."""
    row, known, actual = facts.row, facts.known, facts.actual
    if not facts.has_table:
        return f"{actual} has no table that binds a ledger to its store: {_named(facts.ledgers)}"
    if row is None:
        return f"{actual} is not bound to this store ({facts.store_id}): {_named(facts.ledgers)}"
    if what := difference(row.identity, actual):
        return f"{mismatch(row, actual)} ({what}): it is a copy, or was moved. {_moved(facts)}"
    if known is None:
        return f"{actual} is bound to this store as {row.binding_id}, which the store does not know. {_moved(facts)}"
    if what := difference(known.binding.identity, actual):
        return f"the store knows its ledger as {known.binding.identity}, and this is {actual} ({what}). {_moved(facts)}"
    if facts.read_only:
        return f"{actual} takes no tombstone: {facts.read_only}. Name the primary"
    if facts.unfit:
        return f"in {actual} the ledger's table {facts.unfit}"
    return lacks(facts, row, known)


def lacks(facts: LedgerFacts, row: Binding, known: KnownLedger) -> str:
    """Why the database may have lost rows; empty when there is no sign of it."""
    actual, accept = facts.actual, f"If a person knows that these rows are gone: {facts.steps.accept}"
    if facts.lacking:
        newest = max(facts.lacking)
        when = f"{moment(key_time_ms(newest.key) or 0)} UTC"
        which = f"{len(facts.lacking)} of the last {facts.committed} committed transactions, the newest of {when}"
        return f"{actual} lacks {which} (key {newest.key}): a backup was put back, or it is an old copy. {accept}"
    if row.opened < known.binding.opened:
        count = f"its producers were opened {known.binding.opened} times, and it knows of {row.opened}"
        return f"{actual} is older than the store: {count}. A backup was put back, or it is an old copy. {accept}"
    before = known.binding.identity.timeline
    if before and actual.timeline and before != actual.timeline and not facts.committed:
        text = f"{actual} is on timeline {actual.timeline} and was on {before}: a standby took over"
        return f"{text}, and no committed transaction shows that it lacks nothing. {accept}"
    return ""


def _named(ledgers: Sequence[KnownLedger]) -> str:
    names = " or ".join(f"{one.binding.identity} (binding {one.binding.binding_id})" for one in ledgers)
    return f"the store's ledger is {names}. Name that one" if names else "no producer of this store was bound to it"


def _moved(facts: LedgerFacts) -> str:
    return f"Name the right database; or, if it was moved there: {facts.steps.rebind}"


def named_by(ledger: Ledger) -> str:
    """The options that name a ledger on the command line. Its URL is shown where it names a database and no secret.

    Beside a `creator` of connections a URL names none: on the command line it would lead to another database.
    """
    url, rows = ledger.engine.url, ledger.rows
    is_shown = url.database and url.password is None and set(url.query) <= {"host", "unix_socket"}
    options: dict[str, str | None] = {"--ledger": url.render_as_string() if is_shown else "URL"}
    options |= {"--schema": rows.schema, "--table": rows.name if rows.name != _TABLE else None}
    return " ".join(f"{name} {quote(value)}" for name, value in options.items() if value)


def key_trouble(connection: Connection, ledger: Ledger) -> str:
    """Why two rows of one key may stand in a ledger, so that no tombstone keeps a late commit out; empty: they may not.

    A dump that was put back without its keys, or a table made from a SELECT, has none. Raises what the database raises.
    """
    found, (name, schema) = inspect(connection), (ledger.rows.name, ledger.rows.schema)
    if connection.dialect.name == "sqlite":  # which knows a table by its name in any case, and SQLAlchemy does not
        name = next((one for one in found.get_table_names(schema) if one.lower() == name.lower()), name)
    keys: list[Sequence[str | None]] = [found.get_pk_constraint(name, schema)["constrained_columns"]]
    indexes = [one for one in found.get_indexes(name, schema) if one["unique"]]
    keys += [one["column_names"] for one in indexes if not _is_partial(one)]
    keys += [one["column_names"] for one in found.get_unique_constraints(name, schema)]
    if [_KEY] in keys or _is_second_refused(connection, ledger):
        return ""
    as_in_sql = connection.dialect.identifier_preparer
    table, index = as_in_sql.format_table(ledger.rows), as_in_sql.quote(f"{ledger.rows.name}_key")
    text = f"{table} has no primary key of {_KEY}, so a tombstone would keep no late commit out. Make the key again"
    return f"{text}: CREATE UNIQUE INDEX {index} ON {table} ({_KEY})"


def _is_partial(index: ReflectedIndex) -> bool:
    """Whether an index holds some rows alone (CREATE INDEX ... WHERE): a tombstone may not be among them."""
    return any(name.endswith("_where") for name in index.get("dialect_options", {}))


def _is_second_refused(connection: Connection, ledger: Ledger) -> bool:
    """Whether a row and its tombstone exclude each other, tried and taken back: of a view, for one, no key is seen."""
    row = {"ledger_key": new_key(0), "producer_group": "checkback", "store_id": "", "decided_by": None}
    try:
        with connection.begin_nested() as trial:
            for state in (COMMITTED, ROLLED_BACK):
                connection.execute(ledger.rows.insert(), {**row, "state": state})
            trial.rollback()
    except IntegrityError:
        return True
    return False


def gather(transaction: Transaction, ledger: Ledger, evidence: Evidence) -> LedgerFacts:
    """Ask the database and the store. Raises what the database raises."""
    with transaction() as execute:
        actual, has_table, read_only, unfit = ledger.look(execute)
    row = None
    try:
        with transaction() as execute:
            row = read_binding(execute, ledger.bindings_name, evidence.store_id) if has_table else None
    except DBAPIError as error:
        if not is_missing_table(error):
            raise
        has_table = False
    known_ledgers = evidence.known
    steps = replace(known_ledgers.steps, ledger=named_by(ledger))
    facts = LedgerFacts(evidence.store_id, actual, has_table, read_only, row, None, known_ledgers.all())
    facts = replace(facts, steps=steps, unfit=unfit)
    if row is None:
        return facts
    known = evidence.known_of(row)
    committed = evidence.committed(row.binding_id)  # before the transaction below, which must see them all
    with transaction() as execute:
        if known is not None and row.opened < known.binding.opened:  # a producer opened since the row was read?
            row = read_binding(execute, ledger.bindings_name, evidence.store_id) or row
        low = select(ledger.marks.c.low_water_ms).where(ledger.marks.c.store_id == evidence.store_id)
        mark_ms = max([0, *(int(one[0]) for one in execute(low))])
        kept_ms = max(mark_ms, known.accepted_ms if known else 0)
        wanted = [one for one in _with_missing(committed, known) if (key_time_ms(one.key) or 0) >= kept_ms]
        keys, columns = [one.key for one in wanted], ledger.rows.c
        there = select(columns.ledger_key).where(columns.ledger_key.in_(keys), columns.state == COMMITTED)
        found = {str(key) for (key,) in execute(there)} if keys else set()
    missing = [one for one in wanted if one.key not in found]
    lacking = [one for one in missing if one.commitlog_offset < 0 or not evidence.is_by_hand(one.commitlog_offset)]
    asked = replace(facts, row=row, known=known, mark_ms=mark_ms)
    return replace(asked, committed=len(found) + len(lacking), lacking=lacking)


def _with_missing(committed: list[CommittedKey], known: KnownLedger | None) -> list[CommittedKey]:
    """And the key whose row was once missing: an application that goes on with a backup soon knows newer ones."""
    key = known.missing_key if known else ""
    return committed if not key or key in {one.key for one in committed} else [*committed, CommittedKey(key, -1)]


def _remember_missing(evidence: Evidence, seen: KnownLedger, key: str) -> None:
    """Keep the key of a row that is missing, unless a person accepted missing rows since we looked."""

    def remembered(known: KnownLedger | None) -> KnownLedger:
        now = known or seen
        return replace(now, missing_key=key) if now.accepted_ms == seen.accepted_ms else now

    evidence.known.change(seen.binding.binding_id, remembered)


def prove(transaction: Transaction, ledger: Ledger, evidence: Evidence) -> Binding:
    """The binding of the store and this database. Raises WrongLedger, and what the database raises.

    A row that is missing is remembered: the database is refused until the row is there, or a person accepts it.
    """
    try:
        facts = gather(transaction, ledger, evidence)
    except TransactionError as error:
        raise WrongLedger(f"{NOTHING_DECIDED}{error}") from error
    if facts.known is not None and facts.lacking and (key := max(facts.lacking).key) != facts.known.missing_key:
        with contextlib.suppress(StoreError):  # a full disk: the next proof remembers it
            _remember_missing(evidence, facts.known, key)
    if refusal := judge(facts):
        raise WrongLedger(f"{NOTHING_DECIDED}{refusal}")
    assert facts.row is not None  # or `judge` had refused
    return facts.row
