"""How a store and the database of its ledger stand to each other, and what a person may say about it.

    lines = examine(store, ledger)                         # each ok or not, with the next step
    rebind(store, ledger, why="moved to a new host", ...)  # the database was moved, and is the ledger still
    accept(store, ledger, why="backup of Monday", ...)     # rows or messages are missing, and a person knows it

`examine` changes nothing: what it writes, it rolls back. What persons say is kept in the store, with who and why.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from shlex import quote
from typing import Any

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from broker.database.ledger_binding import LEDGER_BINDING, Binding, KnownLedger, put_binding
from broker.database.ledger_identity import Execute, difference
from broker.enlisting.ledger_key import LEDGER_KEY, key_time_ms, new_key
from broker.errors import CorruptStore, TransactionError
from broker.ledger import COMMITTED, ROLLED_BACK, Ledger, executor
from broker.live import LiveStore
from recovery.checkback.ledger_resolver import LedgerResolver, check_file
from recovery.checkback.ledger_retention import lowered_mark_ms
from recovery.checkback.ledgers.database_errors import place
from recovery.checkback.ledgers.lost_halves import halves, lacking
from recovery.checkback.ledgers.proof import (
    Evidence,
    LedgerEvidence,
    LedgerFacts,
    WrongLedger,
    gather,
    judge,
    key_trouble,
    lacks,
)
from recovery.checkback.protocol import Outcome
from recovery.humanize import moment

_GROUP = "checkback-doctor"
_ROWS = 1_000  # the newest of a ledger
_THROUGH = "through"  # of a step in a ledger's history: the newest key of the rows that were accepted
_BUSY = "run this again when no long transaction holds it"
_CREATE = (
    "make the tables: ledger.create_all(), with Alembic a migration of ledger.metadata, with Django manage.py migrate "
    "checkback"
)


@dataclass(frozen=True, slots=True)
class LedgerCheck:
    """One thing that was looked at."""

    name: str
    ok: bool
    text: str
    next_step: str = ""  # when it is not ok

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class LedgerChange:
    """What an operator decided about a ledger, and what it changed."""

    binding_id: str
    before: str
    after: str
    done: bool  # False: a dry run, or nothing was to be done

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def examine(store: LiveStore, ledger: Ledger) -> list[LedgerCheck]:
    """Look at everything that check-back needs of a ledger, in the order in which it needs it."""
    evidence = LedgerEvidence(store)
    lines = [LedgerCheck("store", True, f"{store.path} ({evidence.store_id})")]
    resolver = LedgerResolver(ledger, evidence)
    try:
        facts = gathered(ledger, evidence)
    except SQLAlchemyError as error:
        trouble = resolver.trouble(error)
        steps = {Outcome.DOWN: "name a database that answers", Outcome.RUNNING: _BUSY}  # else `why` ends with one
        return [*lines, LedgerCheck("database", False, trouble.why, steps.get(trouble.outcome, ""))]
    except (WrongLedger, TransactionError) as error:
        return [*lines, LedgerCheck("database", False, str(error), "name the ledger's database")]
    lines.append(LedgerCheck("database", True, f"{facts.actual}, by {place(ledger.engine.url)}"))
    lines += _of_binding(facts)
    if facts.known is not None:
        lines.append(_of_rows(_without_halves(store, ledger, facts.known), facts))
        lines.append(_of_mark(facts, time.time_ns() // 1_000_000))
    lines.append(_round_trip(ledger, evidence.store_id, resolver))
    lines += _of_halves(store, facts)
    return lines


def _of_binding(facts: LedgerFacts) -> Iterator[LedgerCheck]:
    row, known = facts.row, facts.known
    tables = "the tables of the ledger are there" if facts.has_table else "a table of the ledger is missing"
    yield LedgerCheck("tables", facts.has_table, tables, "" if facts.has_table else _CREATE)
    if not facts.has_table:
        return
    if row is None:
        yield LedgerCheck("binding", False, judge(facts), "open a producer there, or name the right database")
        return
    yield LedgerCheck(
        "binding", known is not None, f"{row.binding_id}, made in {row.identity}; opened {row.opened} times"
    )
    refusal = judge(replace(facts, lacking=(), committed=1, row=_raised(row)))
    text = refusal or "the database is the one that was bound"
    yield LedgerCheck("identity", not refusal, text, _step(facts, refusal))
    if known is not None:
        lost = lacks(facts, row, known)  # of a copy, too: a backup that is put back is one
        text = f"all of the last {facts.committed} known transactions are there" if facts.committed else "none is known"
        yield LedgerCheck("known rows", not lost, lost or text, _step(facts, lost))


def _newest_rows(ledger: Ledger, store_id: str) -> list[str]:
    """The keys of the newest committed rows of a store, the newest first."""
    rows = ledger.rows.c
    mine = (rows.store_id == store_id) & (rows.state == COMMITTED)
    newest = select(rows.ledger_key).where(mine).order_by(rows.ledger_key.desc()).limit(_ROWS)
    with ledger.engine.begin() as connection:
        return [str(key) for (key,) in connection.execute(newest)]


def _without_halves(store: LiveStore, ledger: Ledger, known: KnownLedger) -> list[str]:
    """The keys of rows whose half messages the store never had, the oldest first, but those that a person accepted."""
    accepted = max((str(step.get(_THROUGH, "")) for step in known.history), default="")
    lost = lacking(_newest_rows(ledger, known.binding.store_id), *halves(store))
    return [key for key in lost if key > accepted]


def _of_rows(lost: Sequence[str], facts: LedgerFacts) -> LedgerCheck:
    """Whether what was saved has its messages: `lost` are the keys of rows whose half messages the store never had."""
    if not lost:
        return LedgerCheck("half messages", True, "the newest committed rows all have theirs in the store")
    text = f"{_which_rows(lost)}: it is older than the database, as a backup that was put back, or a power cut took"
    text += " its last records. What was saved there has no message"
    step = "send the messages of what the application saved in that time again; then, so that this is not said again"
    return LedgerCheck("half messages", False, text, f"{step}: {facts.steps.accept}")


def _which_rows(lost: Sequence[str]) -> str:
    since, until = (f"{moment(key_time_ms(key) or 0)} UTC" for key in (lost[0], lost[-1]))
    return f"{len(lost)} committed rows, of {since} to {until}, have no half message in the store"


def _of_mark(facts: LedgerFacts, now_ms: int) -> LedgerCheck:
    """Whether a row that is not there says "rolled back": not below the mark, which only a wrong clock puts ahead."""
    if facts.mark_ms <= now_ms:
        return LedgerCheck("mark", True, "retention removed no rows of the future")
    text = f"{_which_mark(facts)}: a clock was ahead. What is begun before that time, and killed before its"
    return LedgerCheck("mark", False, f"{text} COMMIT, is unknown, and parked in the end", facts.steps.accept)


def _which_mark(facts: LedgerFacts) -> str:
    return f"rows from before {moment(facts.mark_ms)} UTC count as removed"


def _step(facts: LedgerFacts, refusal: str) -> str:
    """The command that a refusal ends with."""
    unfit = facts.unfit.rpartition("Do ")[2] or None
    commands = [one for one in (facts.steps.rebind, facts.steps.accept, unfit) if one and refusal.endswith(one)]
    return (commands or ["name the right database"])[0] if refusal else ""


def _round_trip(ledger: Ledger, store_id: str, resolver: LedgerResolver) -> LedgerCheck:
    """A row, read back, a tombstone of the same key refused, all rolled back and gone."""
    key, rows = new_key(0), ledger.rows
    row = {"ledger_key": key, "producer_group": _GROUP, "store_id": store_id, "decided_by": None}
    there = select(rows.c.state).where(rows.c.ledger_key == key)
    try:
        with ledger.engine.connect() as connection:
            with connection.begin() as transaction:
                connection.execute(rows.insert(), {**row, "state": COMMITTED})
                read = connection.execute(there).scalar()
                refused = _is_refused(connection.execute, rows.insert(), {**row, "state": ROLLED_BACK})
                transaction.rollback()
            left = connection.execute(there).scalar()
    except SQLAlchemyError as error:
        trouble, step = resolver.trouble(error), _BUSY
        if trouble.outcome is not Outcome.RUNNING:
            step = "give check-back a user that may read and insert into the ledger's tables, on the primary"
        return LedgerCheck("round trip", False, trouble.why, step)
    if left is not None:
        text = "what was rolled back is still there: the table is not transactional"
        return LedgerCheck("round trip", False, text, "move the tables of the ledger to InnoDB")
    if read != COMMITTED:
        step = "remove a trigger or rule of the ledger's table, or let no row level security bind check-back's user"
        return LedgerCheck("round trip", False, "a row that was inserted is not found", step)
    if not refused:
        with ledger.engine.connect() as connection:
            step = key_trouble(connection, ledger)
        return LedgerCheck("round trip", False, "a second row with the key of the first was taken", step)
    return LedgerCheck("round trip", True, "written, read, its tombstone refused, and rolled back")


def _is_refused(execute: Any, statement: Any, row: dict[str, Any]) -> bool:
    try:
        execute(statement, row)
    except IntegrityError:
        return True
    return False


def _of_halves(store: LiveStore, facts: LedgerFacts) -> Iterator[LedgerCheck]:
    """Which ledgers the half messages in doubt name."""
    damaged: list[CorruptStore] = []
    named = _named_in_doubt(store, damaged)
    mine = named.pop(facts.row.binding_id, 0) if facts.row else 0
    old = named.pop("", 0)
    others = ", ".join(f"{count} name {name}" for name, count in named.items())
    text = f"{mine} half messages in doubt name this ledger" + (f"; {others}" if others else "")
    yield LedgerCheck("in doubt", not others, text, "name their databases or schemas, too" if others else "")
    if old:
        step = f"their rows decide; resolve manually what has none: checkback pending {quote(store.path)} lists it"
        yield LedgerCheck("without a binding", False, f"{old} half messages in doubt name no binding", step)
    if damaged:
        text = f"half messages in doubt that cannot be read: {len(damaged)}, and no ledger row is removed. {damaged[0]}"
        yield LedgerCheck("damage", False, text, f"checkback verify {quote(store.path)}")


def _named_in_doubt(store: LiveStore, damaged: list[CorruptStore] | None = None) -> Counter[str]:
    """How many half messages in doubt name each binding; "" for those that have a key and name none.

    `damaged` takes the error of each that cannot be read; without it the first is raised.
    """
    halves = (half.properties for half in store.transactions.in_doubt(damaged=damaged))
    return Counter(properties.get(LEDGER_BINDING, "") for properties in halves if LEDGER_KEY in properties)


def gathered(ledger: Ledger, evidence: Evidence) -> LedgerFacts:
    """Ask the database and the store. Raises WrongLedger for a file that is not there, and what the database raises."""

    @contextmanager
    def transaction() -> Iterator[Execute]:
        with ledger.engine.begin() as connection:
            yield executor(connection)

    check_file(ledger)
    return gather(transaction, ledger, evidence)


def rebind(
    store: LiveStore,
    ledger: Ledger,
    *,
    why: str,
    by: str,
    now_ms: int,
    binding_id: str | None = None,
    dry_run: bool = False,
) -> LedgerChange:
    """Bind a store to the database that its ledger was moved to. `binding_id` chooses, where the store has several.

    The id stays, so that the half messages in doubt find it. Raises TransactionError for what cannot be meant.
    """
    _check_why(why)
    evidence = LedgerEvidence(store)
    facts = gathered(ledger, evidence)
    if not facts.has_table:
        raise TransactionError(f"{facts.actual} has no tables of a ledger: {_CREATE}, then rebind")
    if facts.read_only:
        raise TransactionError(f"{facts.actual} cannot be bound: {facts.read_only}. Name the primary")
    target = binding_id or _only(facts)
    known = evidence.known.get(target)
    _check_nothing_is_orphaned(store, facts, target)
    row = facts.row if facts.row is not None and facts.row.binding_id == target else None
    bound = row or (known.binding if known else None)
    if bound is None:
        raise TransactionError(f"neither the store nor {facts.actual} knows a binding {target}")
    before = known.binding.identity if known else bound.identity
    same = known is not None and row is not None
    if same and not difference(before, facts.actual) and not difference(bound.identity, facts.actual):
        return LedgerChange(target, str(before), str(facts.actual), done=False)
    if not dry_run:
        opened = max(bound.opened, known.binding.opened if known else 0)
        made = Binding(target, evidence.store_id, facts.actual, opened, bound.made_ms)
        with ledger.engine.begin() as connection:
            put_binding(executor(connection), ledger.bindings_name, made)
        step = _step_of("rebind", before, facts.actual, why, by, now_ms)

        def rebound(now: KnownLedger | None) -> KnownLedger:
            old = now or KnownLedger(made, ledger.rows.name)
            return replace(old, binding=made, history=(*old.history, step))

        evidence.known.change(target, rebound)
    return LedgerChange(target, str(before), str(facts.actual), done=not dry_run)


def accept(store: LiveStore, ledger: Ledger, *, why: str, by: str, now_ms: int, dry_run: bool = False) -> LedgerChange:
    """Go on although something is missing, and a person knows of it: the first of these that is so.

    - The database lacks rows that the store knows, or a standby took over: such rows are not evidence any more.
    - The store lacks the half messages of rows: `examine` does not report these again.
    - Retention removed rows of the future, since a clock was ahead: from now on a row that is not there says "rolled
      back" again. What is in doubt by now stays unknown: its row may have been there.

    Raises WrongLedger when it is another database, TransactionError where what is in doubt holds the mark.
    """
    _check_why(why)
    evidence = LedgerEvidence(store)
    facts = gathered(ledger, evidence)
    row, known = facts.row, facts.known
    if row is None or known is None or (refusal := judge(replace(facts, lacking=(), committed=1, row=_raised(row)))):
        raise WrongLedger(judge(facts) if row is None or known is None else refusal)
    found = _missing(store, ledger, facts, known, now_ms)
    if found is None:
        return LedgerChange(row.binding_id, "nothing is missing", "nothing is missing", done=False)
    if not dry_run:
        if found.mark_ms is not None:
            marks = ledger.marks
            lower = marks.update().where(marks.c.store_id == evidence.store_id)
            with ledger.engine.begin() as connection:
                connection.execute(lower, {"low_water_ms": found.mark_ms})
        step = _step_of("accept", found.before, found.after, why, by, now_ms) | dict(found.noted)

        def accepted(now: KnownLedger | None) -> KnownLedger:
            return replace(now or known, history=(*(now or known).history, step), **found.changes)

        evidence.known.change(row.binding_id, accepted)
    return LedgerChange(row.binding_id, found.before, found.after, done=not dry_run)


@dataclass(frozen=True, slots=True)
class _Acceptable:
    """What a person may accept, and what becomes of it."""

    before: str
    after: str
    changes: Mapping[str, Any] = field(default_factory=dict)  # of what the store knows of the ledger
    noted: Mapping[str, Any] = field(default_factory=dict)  # with who accepted it, and why
    mark_ms: int | None = None


def _missing(
    store: LiveStore, ledger: Ledger, facts: LedgerFacts, known: KnownLedger, now_ms: int
) -> _Acceptable | None:
    """The first thing that is missing, as `accept` lists them."""
    if facts.row is not None and (lost := judge(facts)):
        newest = max((key_time_ms(one.key) or 0 for one in facts.lacking), default=-1)
        binding = replace(known.binding, opened=facts.row.opened, identity=facts.actual)
        changes = {"binding": binding, "accepted_ms": max(known.accepted_ms, newest + 1), "missing_key": ""}
        return _Acceptable(lost, "accepted", changes)
    if keys := _without_halves(store, ledger, known):
        return _Acceptable(_which_rows(keys), "accepted", noted={_THROUGH: keys[-1]})
    if facts.mark_ms > now_ms:
        low_ms = lowered_mark_ms(store, facts.mark_ms, now_ms)
        committed = (key_time_ms(one.key) or 0 for one in LedgerEvidence(store).committed(known.binding.binding_id))
        removed = (made for made in committed if made < facts.mark_ms)  # by retention: not missed as lost ones
        changes = {"accepted_ms": max([known.accepted_ms, *(made + 1 for made in removed)]), "missing_key": ""}
        after = f"only those from before {moment(low_ms)} UTC"
        return _Acceptable(_which_mark(facts), after, changes, mark_ms=low_ms)
    return None


def _raised(row: Binding) -> Binding:
    """As if it had been opened often enough: only its identity is checked."""
    return replace(row, opened=1 << 62)


def _only(facts: LedgerFacts) -> str:
    """The binding that is meant when nobody names one."""
    if facts.row is not None:
        return facts.row.binding_id
    names = [one.binding.binding_id for one in facts.ledgers]
    if len(names) != 1:
        known = (
            f"; the store knows {', '.join(names)}" if names else ", and the store knows none: open a producer there"
        )
        raise TransactionError(f"{facts.actual} has no binding of this store{known}. Name one: --binding ID")
    return names[0]


def _check_nothing_is_orphaned(store: LiveStore, facts: LedgerFacts, target: str) -> None:
    row = facts.row
    if row is not None and row.binding_id != target and (count := _named_in_doubt(store)[row.binding_id]):
        text = f"{count} half messages in doubt name {row.binding_id}, which {facts.actual} has now"
        raise TransactionError(f"{text}. Settle them first: checkback check-back {quote(store.path)}")


def _check_why(why: str) -> None:
    if not why.strip():
        raise TransactionError(
            "what a person says of a ledger needs its reason, for those who find it later: --why TEXT"
        )


def _step_of(what: str, before: object, after: object, why: str, by: str, now_ms: int) -> dict[str, Any]:
    return {"what": what, "before": str(before), "after": str(after), "why": why, "by": by, "at_ms": now_ms}
