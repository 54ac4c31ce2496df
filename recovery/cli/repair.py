"""The verbs that bring a store in order: `recover`, `rebuild`, `retain`. They only look, unless `--apply` is given."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from shlex import quote
from typing import TYPE_CHECKING, Annotated

from recovery.cli.declaration import Argument, BadParameter, Exit, Option, VerbGroup
from recovery.cli.shared import CORRUPT, FINDINGS, USAGE, WELL, AsJson, Store, examples, fail, listing
from recovery.cli.terminal.output import Bar, print_json, show, warn
from recovery.humanize import count, size

if TYPE_CHECKING:
    from broker.errors import StoreError
    from broker.live import LiveStore
    from broker.store.read.inventory import Misfit
    from recovery.rebuild.replaced import Replacement
    from recovery.rebuild.report import RebuildReport
    from recovery.repair.crash import RecoveryPlan, RecoveryReport

Apply = Annotated[bool, Option("--apply", help="Do it. Without --apply nothing in the store changes.")]
Stopped = Annotated[
    bool,
    Option("--broker-is-stopped", help="You have stopped the RocketMQ broker of this store."),
]
Move = Annotated[
    bool,
    Option("--move", help="Give half messages in doubt that share a slot slots of their own."),
]


EvenShort = Annotated[
    bool,
    Option("--even-short", help="Take over a log that ends before what its queues name. Those records are lost."),
]
Spark = Annotated[
    str | None,
    Option("--spark", metavar="MASTER", help="Read the log on Spark: local[*], spark://HOST:PORT."),
]


def recover(
    store: Store, as_json: AsJson = False, apply: Apply = False, broker_is_stopped: Stopped = False,
    even_short: EvenShort = False,
) -> None:  # fmt: skip
    """Show the recovery that a store needs after a crash: its case and the steps. With --apply: do them.

    Exits with 0 when nothing is left to do, with 1 when steps are left, with 4 when the log is damaged in a way that
    no crash explains, is not there, or lacks its end. Opening a store for writing also recovers it.
    """
    if even_short and not apply:
        raise BadParameter("it writes to the store: give --apply, too", param_hint="--even-short")
    from broker.errors import CorruptStore
    from broker.store.disk.files import Disk
    from recovery.jobs.recovering import finish_killed
    from recovery.repair import crash

    made = crash.plan(crash.survey(store))
    if not apply:
        misfits, against = crash.misfits_in_the_way(made, Disk()), crash.objection(made.survey)
        if as_json:
            refused = None if against is None else str(against)
            print_json({**made.as_json(), "not_understood": [one.as_json() for one in misfits], "refused": refused})
        else:
            show(_plan_lines(made, misfits, against))
        if isinstance(against, CorruptStore) or (made.is_needed and made.survey.facts.tail.value == "corrupt"):
            raise Exit(CORRUPT)
        raise Exit(FINDINGS if made.is_needed else WELL)
    with Bar("Recovering") as progress:
        report = crash.apply(made, broker_is_stopped=broker_is_stopped, progress=progress, even_short=even_short)
        is_finished = finish_killed(store)
    print_json(report.as_json()) if as_json else show(_report_lines(report, is_finished=is_finished))


def _plan_lines(made: RecoveryPlan, misfits: Sequence[Misfit], against: StoreError | None) -> Iterator[str]:
    yield f"{made.survey.path}: {made.case.label}: {made.case.sentence}"
    for number, line in enumerate(made.lines, 1):
        yield f"{number:>3}. {line}"
    if made.survey.tail.reason:
        yield f"{made.survey.tail.path} at {made.survey.tail.end}: {made.survey.tail.reason}"
    for misfit in misfits:
        yield f"not understood: {misfit}"
    if misfits:
        yield "Nothing here may be replaced: --apply would refuse"
    elif against is not None:
        yield f"--apply would refuse: {against}"
    elif not made.is_needed:
        yield "Nothing needs to be done: opening the store is enough"
    elif made.steps:
        yield f"Do it with: checkback recover {quote(made.survey.path)} --apply"
    elif made.case.label == "foreign":
        yield from _next_of_foreign(made.survey.path)


def _next_of_foreign(path: str) -> Iterator[str]:
    from broker.errors import StoreError
    from broker.store.disk.files import Disk
    from broker.transaction.foreign import check_not_followed

    try:
        check_not_followed(path, Disk())
    except StoreError as error:
        yield str(error)
        return
    yield "Its broker recovers it at its next start. To go on with it in checkback, stop the broker, and run:"
    yield f"checkback recover {quote(path)} --apply --broker-is-stopped"


def _report_lines(report: RecoveryReport, *, is_finished: bool) -> Iterator[str]:
    path = report.plan.survey.path
    yield f"{path}: {report.plan.case.label}: {report.plan.case.sentence}"
    if not report.applied:
        yield "What killed processes left is finished" if is_finished else "Nothing was done"
        return
    for line in report.plan.lines:
        yield f"  done: {line}"
    for kept in report.kept:
        yield f"  kept: {kept}"
    yield f"Recovered in {report.seconds:.1f} s. See for yourself with: checkback verify {quote(path)}"


Undo = Annotated[bool, Option("--undo", help="Take back what a rebuild replaced: the last one, or WHICH.")]
Forget = Annotated[
    bool, Option("--forget-replaced", help="Delete what rebuilds replaced and kept aside: all of it, or WHICH.")
]
Which = Annotated[
    str | None,
    Argument(metavar="[WHICH]", help="With --undo or --forget-replaced: a name in checkback/replaced."),
]


def rebuild(
    store: Store, which: Which = None, as_json: AsJson = False, apply: Apply = False,
    broker_is_stopped: Stopped = False, move: Move = False, spark: Spark = None, undo: Undo = False,
    forget_replaced: Forget = False,
) -> None:  # fmt: skip
    """Make the derived files again from the CommitLog and compare them with the live ones. With --apply: put in place.

    ConsumeQueues and index; of a 3.x or checkback store the state table and the redo log as well. Slots stay what the
    prepared records say. Applications may go on; a RocketMQ broker must be stopped. What is replaced is kept in
    STORE/checkback/replaced, and --undo takes it back. A store with files that checkback cannot make is refused. Exits
    with 1 when the files differ and --apply was not given.
    """
    if sum((apply, undo, forget_replaced)) > 1:
        raise BadParameter("give one of --apply, --undo and --forget-replaced")
    if which is not None and not (undo or forget_replaced):
        raise BadParameter("it names what a rebuild replaced: give --undo or --forget-replaced, too")
    if move and not apply:
        raise BadParameter("it writes to the store: give --apply, too", param_hint="--move")
    if undo or forget_replaced:
        _replaced(store, which, as_json=as_json, undo=undo, broker_is_stopped=broker_is_stopped)
        return
    from recovery.rebuild.rebuilder import rebuild as make

    if move:
        from recovery.repair.slot_conflicts import move as move_claimed

        for one in move_claimed(store, broker_is_stopped=broker_is_stopped):
            text = f"the half message at {one.old_offset} (slot {one.old_slot}) was prepared again"
            warn(f"{text} at {one.commitlog_offset} (slot {one.slot})")
    with Bar("Rebuilding") as progress:
        if spark is None:
            report = make(store, apply=apply, broker_is_stopped=broker_is_stopped, progress=progress)
        else:
            from recovery.spark.rebuilding import rebuild_with

            report = rebuild_with(spark, store, apply=apply, broker_is_stopped=broker_is_stopped, progress=progress)
    print_json(report.as_json()) if as_json else show(_rebuild_lines(report))
    if apply and report.refusal:
        fail(report.refusal, FINDINGS)
    raise Exit(WELL if report.ok else FINDINGS)


def _replaced(store: str, which: str | None, *, as_json: bool, undo: bool, broker_is_stopped: bool) -> None:
    """Take back, or delete, what a rebuild replaced."""
    from broker.store.disk.files import Disk
    from broker.store.disk.paths import Paths
    from broker.store.read.detect import check_is_store
    from recovery.rebuild import replaced
    from recovery.rebuild.undo import undo as take_back

    if undo:
        made = take_back(store, which, broker_is_stopped=broker_is_stopped)
        lines = [f"{store}: {', '.join(part.live for part in made.parts)} are again what they were before {made.name}"]
        lines.append(f"What the rebuild had made is kept in {store}/checkback/replaced/{made.name}")
        print_json(made.as_json()) if as_json else show(lines)
        return
    check_is_store(store, Disk())
    names, freed = replaced.forget(Disk(), Paths(store), which)
    text = f"{store}: deleted {', '.join(names)}, {size(freed)}" if names else f"{store}: nothing was kept aside"
    print_json({"path": store, "forgotten": names, "bytes": freed}) if as_json else show([text])


def _rebuild_lines(report: RebuildReport) -> Iterator[str]:
    records = count(report.records, "record")
    yield f"{report.path}: {records} up to {report.end_offset:,}, generation {report.generation}"
    yield f"made: {', '.join(report.parts)}"
    if report.left_out:
        yield f"left out: {report.left_out}"
    for one in report.differences:
        yield f"  {one}"
    for claim in report.claims:
        yield f"  slot {claim.slot} is claimed by the half messages at {claim.lost_offset} and {claim.owner_offset}"
    for misfit in report.misfits:
        yield f"  not understood: {misfit}"
    yield from (f"  {text}" for text in report.guessed_sizes)
    if report.applied:
        yield from _applied_lines(report)
    elif report.misfits:
        yield "Nothing here may be replaced: --apply would refuse"
    elif report.differences:
        yield report.refusal or _how_to_apply(report.path)
    else:
        yield "The live files are what the log says"
    yield from _kept_lines(report)


def _how_to_apply(path: str) -> str:
    from broker.store.disk.files import Disk
    from broker.store.disk.paths import Paths
    from broker.store.read.layout import read_store_file

    if Disk().entry(Paths(path).followed) is not None:
        return "It is a copy that follows a master (checkback follow), which has no such files: --apply would refuse"
    if read_store_file(Disk(), Paths(path)) is not None:
        return f"Put what was made in place with: checkback rebuild {quote(path)} --apply"
    command = f"checkback rebuild {quote(path)} --apply --broker-is-stopped"
    return f"Stop the broker. Then put what was made in place with: {command}"


def _applied_lines(report: RebuildReport) -> Iterator[str]:
    made = report.replacement
    if made is None:
        yield "The live files are what the log says, so nothing was replaced"
        return
    names = [part.live for part in made.parts] or ["checkpoint"]  # always written beside them where a broker left it
    yield f"Put in place in {report.seconds:.1f} s: {', '.join(names)}"
    if made.files.get("abort"):
        yield "Removed: abort, so that a broker believes what it finds"
    yield f"What was there is kept in {report.path}/checkback/replaced/{made.name}"
    stopped = " --broker-is-stopped" if made.after else ""
    yield f"Take it back, before anything else is written, with: checkback rebuild {quote(report.path)} --undo{stopped}"


def _kept_lines(report: RebuildReport) -> Iterator[str]:
    if report.kept:
        total = size(sum(_bytes(one) for one in report.kept))
        text = f"{len(report.kept)} replaced copies take {total} in {report.path}/checkback/replaced"
        yield f"{text}. Delete them with: checkback rebuild {quote(report.path)} --forget-replaced"


def _bytes(made: Replacement) -> int:
    return sum(length for length, _ in made.sums.values())


Keep = Annotated[
    str | None, Option("--keep", metavar="AGE", help="What is older may go, when everybody has read it: 72h.")
]
MaxBytes = Annotated[
    str | None, Option("--max-bytes", metavar="SIZE", help="What the store may take on the disk: 20GiB.")
]
FreeBytes = Annotated[
    str | None, Option("--free-bytes", metavar="SIZE", help="What is to stay free on its disk: 5GiB.")
]
GoneAfter = Annotated[
    str | None,
    Option("--gone-after", metavar="AGE", help="A group not seen for so long is not waited for: 7d, or never."),
]
EvenUnread = Annotated[
    bool, Option("--even-unread", help="Take messages that somebody has yet to read. They are lost to them.")
]


def _opened_on_a_full_disk(path: str) -> LiveStore:
    """The store, open for writing. On a disk without a free block those of its reserve are used."""
    import broker
    from broker.store.disk.files import Disk
    from broker.store.disk.paths import Paths
    from broker.store.maintain.removal import give_up_reserve

    try:
        return broker.open(path, create=False)
    except broker.StoreFull:
        if not give_up_reserve(Disk(), Paths(path)):
            raise
    return broker.open(path, create=False)


def retain(
    store: Store, keep: Keep = None, max_bytes: MaxBytes = None, free_bytes: FreeBytes = None,
    gone_after: GoneAfter = None, even_unread: EvenUnread = False, apply: Apply = False, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Show which old messages may go, who has yet to read what, and what pins the rest. With --apply: remove them.

    Opens the store as an application does. Without --keep, --max-bytes and --free-bytes it goes by the retention of
    the processes that have the store open; where they have none it shows what the store can spare. Exits with 1 when
    something may go and --apply was not given.
    """
    from recovery.cli.terminal import tables_consumer as tables
    from recovery.jobs.setup import parse_retention

    logging.getLogger("broker").addHandler(logging.NullHandler())  # what it would say is shown below
    given = [one for one in (keep, max_bytes, free_bytes) if one is not None]
    if "" in (*given, gone_after):
        options = "--keep, --max-bytes, --free-bytes or --gone-after"
        raise BadParameter(f"{options} is empty: a variable of the shell is not set, perhaps")
    if (gone_after or even_unread) and not given:
        raise BadParameter("say what may go: --keep, --max-bytes or --free-bytes", param_hint="--keep")
    wanted = parse_retention(keep, max_bytes, free_bytes, gone_after, even_unread=even_unread) if given else None
    with _opened_on_a_full_disk(store) as opened:
        theirs = opened.retention
        if wanted is None and theirs is None:
            if apply:
                fail(
                    f"{store}: nothing says what may go. Say it: checkback retain {quote(store)} --keep 72h --apply",
                    USAGE,
                )
            wanted = tables.SPARE
        report = opened.retain(wanted, dry_run=not apply)
        history = opened.retention_history()
    if as_json:
        print_json({**report.as_json(), "history": history})
    else:
        show(tables.retention(report, theirs if wanted else None, history))
    raise Exit(FINDINGS if report.segments and not apply else WELL)


_EXAMPLES: dict[Callable[..., None], str] = {
    recover: examples(
        "recover shop.store", "recover shop.store --apply", "recover shop.store --json | jq .case",
        "recover rocketmq/store --apply --broker-is-stopped",
    ),
    rebuild: examples(
        "rebuild shop.store", "rebuild shop.store --apply", "rebuild rocketmq/store --apply --broker-is-stopped",
        "rebuild rocketmq/store --apply --move --broker-is-stopped", "rebuild shop.store --undo",
        "rebuild shop.store --forget-replaced", 'rebuild shop.store --spark "local[*]"',
    ),
    retain: examples(
        "retain shop.store --keep 72h", "retain shop.store --keep 72h --apply",
        "retain shop.store --max-bytes 20GiB --apply", "retain shop.store --keep 72h --even-unread --apply",
    ),
}  # fmt: skip


def register(app: VerbGroup) -> None:
    """Put these verbs on the command line."""
    for verb, epilog in _EXAMPLES.items():
        app.verb(verb, epilog=epilog, **listing(verb.__name__))
