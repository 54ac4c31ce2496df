"""Whether a store is there, and the ledgers and resolvers of its settings: what a connection's test button checks.

    check_settings("shop.store", ledger="postgresql+psycopg://…")     # one sentence, or BrokerError

Nothing is changed: no table is made, no resolver is queried for a transaction.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import broker
from broker.database.ledger_binding import KnownLedgers
from broker.errors import BrokerError
from broker.store.disk.files import Disk
from broker.store.disk.paths import Paths
from broker.store.read.layout import read_store_file
from recovery.jobs.setup import setup

if TYPE_CHECKING:
    from broker.database.ledger_binding import Binding, KnownLedger
    from broker.ledger import Ledger
    from recovery.checkback.ledgers.proof import CommittedKey

_CONNECT_S = 5.0
_PORTS = {"http": 80, "https": 443}


def check_settings(
    path: str, *, catalog: str | None = None, policy: Mapping[str, Any] | None = None, **asked: Any
) -> str:
    """A sentence about a store and its settings that work; `asked` as for `recovery.jobs.setup.setup`.

    Raises BrokerError with the first thing that does not work.
    """
    from recovery.views.overview import overview

    with broker.open(path, read_only=True) as store:
        segments = len(store.segments)
    counts = overview(path, now_ms=0, limit=0, parked_limit=0).counts
    resolvers = asked.get("resolvers")
    if resolvers is not None and not isinstance(resolvers, Mapping):
        raise BrokerError(f"resolvers is a table by producer group, not {resolvers!r:.60}")
    made = setup(policy=policy, **asked)
    ledgers: list[Ledger] = []
    for group, spec in made.resolvers.items():
        where = "the resolver" if group == "*" else f"the resolver of {group}"
        if "ledger" in spec:
            ledgers += _checked_ledgers(spec)
        elif "http" in spec:
            check_http(str(spec["http"]), where)
        else:
            _check_callable(str(spec["call"]))
    _check_whose(path, ledgers)
    if catalog:
        _check_database(catalog, "the catalog")
    return f"{path}: {segments} segments, {counts['in_doubt']} transactions in doubt, {counts['parked']} parked"


def _checked_ledgers(spec: Mapping[str, Any]) -> list[Ledger]:
    """The ledgers of a resolver: each database answers, and has the ledger's table."""
    from sqlalchemy import inspect

    from recovery.checkback.config import ledgers_of
    from recovery.checkback.ledger_resolver import check_file
    from recovery.checkback.ledgers.proof import WrongLedger
    from recovery.checkback.protocol import reason_alone

    found = list(ledgers_of(spec))
    for ledger in found:
        try:
            check_file(ledger)
        except WrongLedger as error:
            raise BrokerError(reason_alone(str(error))) from None
        with _sentences(f"the ledger {ledger.engine.url.render_as_string()}"), ledger.engine.connect() as connection:
            there = inspect(connection).has_table(ledger.rows.name, schema=ledger.rows.schema)
        ledger.engine.dispose()
        if not there:
            text = (
                f"has no table {ledger.rows.name}: name the application's database, or let it run ledger.create_all() "
                "(Django: manage.py migrate checkback)"
            )
            raise BrokerError(f"the ledger {ledger.engine.url.render_as_string()} {text}")
    return found


def _check_whose(path: str, ledgers: Sequence[Ledger]) -> None:
    """Raises BrokerError for a database that check-back would not believe: another store's, a copy, a standby.

    One that is not bound yet is right as long as the store knows no ledger, or has another one among them.
    """
    from recovery.checkback.ledgers.doctor import gathered
    from recovery.checkback.ledgers.proof import judge

    file = read_store_file(Disk(), Paths(path))
    if file is None:  # another program wrote it
        return
    evidence, unbound = _KnownLedgersOnly(file.store_id, KnownLedgers(path)), []
    for ledger in ledgers:
        with _sentences(where := f"the ledger {ledger.engine.url.render_as_string()}"):
            facts = gathered(ledger, evidence)
        ledger.engine.dispose()
        refusal = judge(replace(facts, committed=1))
        if facts.row is None:
            unbound.append(f"{where}: {refusal}")
        elif refusal:
            raise BrokerError(f"{where}: {refusal}")
    if unbound and len(unbound) == len(ledgers) and evidence.known.all():
        raise BrokerError(unbound[0])


@dataclass(frozen=True, slots=True)
class _KnownLedgersOnly:
    """What a store that is only read says of its ledgers: which they are, not which rows they must have.

    Implements recovery.checkback.ledgers.proof.Evidence.
    """

    store_id: str
    known: KnownLedgers

    def known_of(self, row: Binding) -> KnownLedger | None:
        return self.known.get(row.binding_id)

    def committed(self, _binding_id: str) -> list[CommittedKey]:
        return []

    def is_by_hand(self, _commitlog_offset: int) -> bool:
        return False


def _check_database(url: str, what: str) -> None:
    from recovery.checkback.ledgers.engines import engine_of

    engine = engine_of(url, what)
    with _sentences(what):
        try:
            engine.connect().close()
        finally:
            engine.dispose()


@contextlib.contextmanager
def _sentences(what: str) -> Iterator[None]:
    """An error of SQLAlchemy or of a driver as one sentence; a password is in none of them."""
    from sqlalchemy.exc import ArgumentError, SQLAlchemyError

    try:
        yield
    except (ArgumentError, ValueError):  # for one, a port that is not a number
        raise BrokerError(f"{what} is not a SQLAlchemy URL, as postgresql+psycopg://user@host/database") from None
    except (SQLAlchemyError, ImportError) as error:
        reason = " ".join(str(getattr(error, "orig", None) or error).split())
        raise BrokerError(f"{what} cannot be reached: {reason:.300}") from None


def check_http(url: str, where: str) -> None:
    """Something listens there. No question is put: it would have to be about a transaction."""
    from recovery.checkback.http_resolver import shown

    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        host, port = None, None
    if not host or not port:
        raise BrokerError(f"{where} is not an http(s) URL: {shown(url)}")
    try:
        socket.create_connection((host, port), timeout=_CONNECT_S).close()
    except OSError as error:
        raise BrokerError(f"{where} {shown(url)} cannot be reached: {error.strerror or error}") from None


def _check_callable(name: str) -> None:
    from recovery.checkback.resolvers import CallableResolver

    CallableResolver.load(name)
