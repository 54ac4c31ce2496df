"""The verbs about the database of a ledger: `ledger doctor`, `ledger rebind`, `ledger accept`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from recovery.checkback.leader import myself
from recovery.cli.declaration import Exit, Option, VerbGroup
from recovery.cli.shared import FINDINGS, WELL, AsJson, Store, examples, listing, now_ms
from recovery.cli.terminal.output import print_json, show
from recovery.humanize import who

if TYPE_CHECKING:
    from broker.ledger import Ledger
    from broker.live import LiveStore
    from recovery.checkback.ledgers.doctor import LedgerChange, LedgerCheck

Url = Annotated[
    str,
    Option("--ledger", metavar="URL", envvar="CHECKBACK_LEDGER", help="The database of the ledger (SQLAlchemy)."),
]
Schema = Annotated[str | None, Option("--schema", metavar="NAME", help="Where its tables are, if not by default.")]
Table = Annotated[str, Option("--table", metavar="NAME", help="The ledger's table, if it has another name.")]
Why = Annotated[str, Option("--why", metavar="TEXT", help="The reason; the store keeps it.")]
By = Annotated[str | None, Option("--by", metavar="NAME", help="Who says so; by default the user's name.")]
DryRun = Annotated[bool, Option("--dry-run", help="Say what would be done, and do nothing.")]
_TABLE = "checkback_ledger"
_T = TypeVar("_T")


def doctor(store: Store, ledger: Url, schema: Schema = None, table: Table = _TABLE, as_json: AsJson = False) -> None:
    """Look at a ledger as check-back needs it: is it this store's, is anything missing, can a tombstone go in?

    Writes a row, reads it and rolls it back; nothing is changed. Exits with 1 when something is not ok.
    """
    from recovery.checkback.ledgers.doctor import examine

    lines = _with_ledger(store, ledger, schema, table, examine)
    ok = all(line.ok for line in lines)
    if as_json:
        print_json({"ok": ok, "lines": [line.as_json() for line in lines]})
    else:
        show(_shown(line) for line in lines)
    raise Exit(WELL if ok else FINDINGS)


def _shown(line: LedgerCheck) -> str:
    step = f"\n{'':17}next: {line.next_step}" if line.next_step and not line.ok else ""
    return f"{'ok' if line.ok else 'not ok':<7}{line.name}: {line.text}{step}"


def rebind(
    store: Store,
    ledger: Url,
    why: Why = "",
    by: By = None,
    binding: Annotated[
        str | None, Option("--binding", metavar="ID", help="Which ledger of the store, where it has several.")
    ] = None,
    schema: Schema = None,
    table: Table = _TABLE,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Say that the ledger was moved to this database: after a dump and restore, or a move of a SQLite file.

    Never for a copy: check-back would take what the copy does not have for rolled back.
    """
    from recovery.checkback.ledgers import doctor as ledgers

    def work(opened: LiveStore, found: Ledger) -> LedgerChange:
        options: dict[str, Any] = {"binding_id": binding, "dry_run": dry_run}
        return ledgers.rebind(opened, found, why=why, by=_by(by), now_ms=now_ms(), **options)

    _show_change(_with_ledger(store, ledger, schema, table, work), "bound to it already", dry_run, as_json)


def accept(
    store: Store,
    ledger: Url,
    why: Why = "",
    by: By = None,
    schema: Schema = None,
    table: Table = _TABLE,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Say that what doctor misses is known, one thing at a time.

    Rows, since a backup was put back, or a standby took over without the last ones: check-back then goes by what the
    database has now, and a transaction in doubt that has no row is rolled back. Messages of rows, which you sent again.
    A mark of retention that is in the future, since a clock was ahead: it is set to now.
    """
    from recovery.checkback.ledgers import doctor as ledgers

    def work(opened: LiveStore, found: Ledger) -> LedgerChange:
        return ledgers.accept(opened, found, why=why, by=_by(by), now_ms=now_ms(), dry_run=dry_run)

    _show_change(_with_ledger(store, ledger, schema, table, work), "nothing is missing", dry_run, as_json)


def _show_change(change: LedgerChange, nothing: str, dry_run: bool, as_json: bool) -> None:
    if as_json:
        print_json(change.as_json())
    elif not change.done and not dry_run:
        show([f"Nothing was done: {nothing}"])
    else:
        show(
            [
                f"{'would be' if dry_run else 'done'}: ledger {change.binding_id}",
                f"  from {change.before}",
                f"  to {change.after}",
            ]
        )


def _with_ledger(path: str, url: str, schema: str | None, table: str, work: Callable[[LiveStore, Ledger], _T]) -> _T:
    """Do it with a store that is there, and with the ledger's database. What a database raises becomes a sentence."""
    import broker
    from recovery.checkback.ledgers.database_errors import translated_errors
    from recovery.checkback.ledgers.engines import engine_of

    engine = engine_of(url)
    try:
        with translated_errors(engine.url), broker.open(path, create=False) as opened:
            return work(opened, broker.Ledger(engine, table=table, schema=schema))
    finally:
        engine.dispose()


def _by(name: str | None) -> str:
    return name or f"{who()} at {myself()}"


_EXAMPLES: dict[Callable[..., Any], str] = {
    doctor: examples(
        "ledger doctor shop.store --ledger postgresql+psycopg:///shop",
        "ledger doctor shop.store --ledger sqlite:///shop.db --json",
    ),
    rebind: examples('ledger rebind shop.store --ledger postgresql+psycopg://new/shop --why "new host"'),
    accept: examples('ledger accept shop.store --ledger postgresql+psycopg:///shop --why "backup, ticket 12"'),
}


def register(app: VerbGroup) -> None:
    """Put these verbs on the command line."""
    verbs = VerbGroup(
        "ledger", help="The database of a ledger: is it the right one, and what if it was moved?", no_args_is_help=True
    )
    for verb, epilog in _EXAMPLES.items():
        verbs.verb(verb, verb.__name__, epilog=epilog)
    app.add_group(verbs, **listing("ledger"))
