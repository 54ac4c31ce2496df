"""The verbs that only look, and `salvage`, which copies: `verify pending info trace dump salvage`."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from enum import StrEnum
from itertools import chain
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

from broker.errors import BrokerError
from broker.store.disk.paths import Paths
from recovery.cli.declaration import Argument, BadParameter, Exit, Option, VerbGroup
from recovery.cli.shared import CORRUPT, FINDINGS, WELL, AsJson, Store, examples, fail, listing, now_ms
from recovery.cli.terminal.output import Bar, print_entry, print_json, print_json_list, show, warn

if TYPE_CHECKING:
    from recovery.findings import Report
    from recovery.views.dump_commitlog import DumpEntry, DumpSelection


def verify(
    store: Store,
    as_json: AsJson = False,
    limit: Annotated[int | None, Option(min=0, metavar="N", help="List at most N findings.")] = None,
    spark: Annotated[
        str | None,
        Option(metavar="MASTER", help="Run on Spark: local[*], spark://HOST:PORT. The result is the same."),
    ] = None,
    keep: Annotated[
        bool, Option("--keep", help="Keep the report, in place of the last one: the page shows it.")
    ] = False,
) -> None:
    """Read the whole CommitLog and compare every derived file with it.

    Reports transactions that are in doubt, lost or delivered twice, and every difference. Changes nothing on disk,
    without --keep; a broker may be running. Exits with 1 when there is a finding.
    """
    from recovery.cli.terminal import tables as screen

    with contextlib.ExitStack() as held:
        if keep:
            from recovery.jobs.setup import alone

            held.enter_context(alone(store, "verify"))
        report = _verified(store, spark)
        why_not = _why_not_kept(store, report, spark) if keep else ""
    if as_json:
        answer = report.as_json()
        if limit is not None and len(answer["findings"]) > limit:
            answer["findings"] = report.first(limit)
            answer["findings_omitted"] = len(report.findings) - limit
        print_json(answer)
    else:
        show(screen.verification(report, limit))
    if why_not:  # last: a verification may have taken an hour
        raise BrokerError(f"{store}: the report is not kept: {why_not}")
    raise Exit(WELL if report.ok else FINDINGS)


def _verified(store: str, spark: str | None) -> Report:
    """By this process and its own, or on Spark."""
    with Bar("Verifying") as progress:
        if spark is None:
            from recovery.verify.verifier import verify as judge

            return judge(store, progress=progress)
        from recovery.spark.verification import verify_with

        return verify_with(spark, store, progress)


def _why_not_kept(store: str, report: Report, spark: str | None) -> str:
    """Keep it as a verification of Airflow's, for the page; the last one alone, since nothing here removes old ones.

    Where it cannot be, the reason; else nothing.
    """
    from recovery.jobs.setup import LATEST, write_report

    engine = "local" if spark is None else f"spark ({spark})"
    facts = {"now_ms": now_ms(), **report.as_json(), "engine": engine}
    try:
        write_report(store, LATEST, facts)
    except BrokerError as error:
        return str(error)
    return ""


def pending(
    store: Store,
    as_json: AsJson = False,
    parked: Annotated[bool, Option("--parked", help="Include those that RocketMQ has given up.")] = False,
) -> None:
    """List the transactions in doubt: half messages without a commit or a rollback.

    Read from the CommitLog; the number of checks comes from the catalog. Exits with 4 when the log is damaged, or ends
    before what its queues name: an end may be lost then, so that a listed transaction may have been settled.
    """
    from recovery.cli.terminal import tables as screen
    from recovery.transactions.in_doubt import Pending
    from recovery.verify.causes.log_short import short_log

    with Bar("Reading") as progress:
        found = Pending(store, now_ms(), parked=parked, progress=progress)
        halves = iter(found)
        first = next(halves, None)
    asked = _checks(store)
    rest = (
        replace(half, checks=half.checks + asked.get(half.commitlog_offset, 0)) if asked else half
        for half in chain([] if first is None else [first], halves)
    )
    if as_json:
        print_json_list(half.as_json(with_state=parked) for half in rest)
    else:
        show(screen.pending_halves(rest, parked))
    damages = [damage for damage in found.damages if damage.kind != "torn-tail"]
    if damages:
        one = min(damages, key=lambda damage: damage.commitlog_offset)
        count = len(damages) + max(found.wrong_crcs - 1, 0)
        text = f"The CommitLog is damaged in {count} place(s), first at {one.commitlog_offset} ({one.file}): "
        fail(f"{text}ends may be lost there. Run: checkback verify {quote(store)}", CORRUPT)
    if (short := short_log(found.files, found.end_offset, [])) is not None:
        fail(f"{short.file}: {short.text}. Ends may be lost there. Run: checkback verify {quote(store)}", CORRUPT)


def info(
    store: Annotated[str | None, Argument(metavar="STORE", help="The directory of the store.")] = None,
    as_json: AsJson = False,
    count: Annotated[bool, Option("--count", help="Read the whole log and count its records.")] = False,
    environment: Annotated[bool, Option("--environment", help="Check this installation instead.")] = False,
) -> None:
    """Show what a store is: generation, segments, queues, consumer groups, checkpoint, processes that have it open."""
    if environment:
        _environment(as_json)
        return
    if store is None:
        raise BadParameter("give a STORE, or --environment", param_hint="STORE")
    from recovery.cli.terminal import tables as screen
    from recovery.views.info import look

    with Bar("Counting") as progress:
        found = look(store, count=count, progress=progress)
    if as_json:
        print_json(found.as_json())
    else:
        show(screen.information(found))


def trace(
    store: Store,
    identifier: Annotated[
        str, Argument(metavar="ID", help="A CommitLog offset, an offset message id, or a unique key.")
    ],
    as_json: AsJson = False,
    html: Annotated[str | None, Option(metavar="FILE", help="Write one HTML page instead.")] = None,
) -> None:
    """Show one transaction: its half message, the checks, who decided, the delivery, what consumers sent back.

    Changes nothing on disk; a broker may be running. Exits with 1 when the ID belongs to no transaction.
    """
    from recovery.cli.terminal import tables as screen
    from recovery.views.lookup import trace as look_up

    if html is not None:
        from recovery.views.page_file import check_page

        if as_json:
            raise BadParameter("give one of --html and --json")
        check_page(html)
    found = look_up(store, identifier)
    if html is not None:
        from recovery.views.page_file import write_page
        from recovery.views.trace_page import trace_page

        write_page(html, trace_page(found))
    elif as_json:
        print_json(found)
    else:
        show(screen.traced(found))
    raise Exit(WELL if found["steps"] else FINDINGS)


class What(StrEnum):
    """What can be dumped."""

    COMMITLOG = "commitlog"
    CONSUMEQUEUE = "consumequeue"
    REDOLOG = "redolog"
    STATETABLE = "statetable"
    INDEX = "index"
    CHECKPOINT = "checkpoint"
    CONFIG = "config"
    TIMERS = "timers"
    POPPED = "popped"


def dump(
    store: Store,
    what: Annotated[
        What,
        Argument(
            metavar="WHAT",
            help="commitlog, consumequeue, redolog, statetable, index, checkpoint, config, timers or popped.",
        ),
    ] = What.COMMITLOG,
    name: Annotated[
        str | None, Argument(metavar="NAME", help="TOPIC/QUEUE, an index file, or a file under config/.")
    ] = None,
    as_json: AsJson = False,
    as_hex: Annotated[bool, Option("--hex", help="Print each field: position, bytes, name, meaning.")] = False,
    start: Annotated[
        int | None,
        Option("--from", min=0, metavar="N", help="From this CommitLog offset, unit or slot on."),
    ] = None,
    end: Annotated[int | None, Option("--to", min=0, metavar="N", help="Up to this one, exclusive.")] = None,
    limit: Annotated[int | None, Option(min=0, metavar="N", help="Show at most N.")] = None,
    topic: Annotated[
        str | None, Option(metavar="TOPIC", help="Records in this topic, and half messages for it.")
    ] = None,
    key: Annotated[str | None, Option(metavar="KEY", help="Records with this key or unique key.")] = None,
) -> None:
    """Print a file of the store, record by record. Damage is shown in its place, and reading continues after it."""
    from recovery.views.dump_commitlog import DumpSelection

    _check_dump(what, name, start, end, {"--topic": topic, "--key": key})
    if what is What.CONFIG:
        from recovery.views.dump_derived import dump_config

        file, value = dump_config(store, name)
        print_json(value) if as_json else show([file, json.dumps(value, indent=2, ensure_ascii=False)])
        return
    if what in (What.TIMERS, What.POPPED):
        from recovery.cli.terminal.tables_waiting import popped_lines, timer_lines
        from recovery.views.messages.waiting import popped, timers

        if what is What.TIMERS:
            waiting = timers(store, limit)
            print_json([one.as_json() for one in waiting]) if as_json else show(timer_lines(waiting))
        else:
            batches = popped(store)[:limit]
            print_json([one.as_json() for one in batches]) if as_json else show(popped_lines(batches))
        return
    with Bar("Reading") as progress:
        selection = DumpSelection(start, end, limit, topic, key)
        entries = progress.between(_entries(store, what, name, selection, progress))
        if as_json:
            print_json_list({**entry.values, **({"hex": entry.raw.hex()} if as_hex else {})} for entry in entries)
        else:
            for entry in entries:
                print_entry(entry, as_hex)


def _check_dump(what: What, name: str | None, start: int | None, end: int | None, of_records: dict[str, Any]) -> None:
    """What would be ignored is refused: who gives it believes that it was heard."""
    for option, value in of_records.items():
        if value is not None and what not in (What.COMMITLOG, What.INDEX):
            raise BadParameter(f"{option} is for commitlog and index; {what} has no {option.strip('-')}s")
    if name is not None and what not in (What.CONSUMEQUEUE, What.INDEX, What.CONFIG):
        raise BadParameter(f"{what} takes no name, not {name!r:.80}")
    if (start, end) != (None, None) and what in (What.CHECKPOINT, What.CONFIG, What.TIMERS, What.POPPED):
        raise BadParameter(f"--from and --to are offsets or numbers; {what} has none")
    if start is not None and end is not None and start >= end:
        raise BadParameter(f"{start} is not below --to {end}, so nothing is between them", param_hint="--from")


def salvage(
    store: Store,
    out: Annotated[str, Argument(metavar="OUT", help="The new store: a directory that is empty or does not exist.")],
    as_json: AsJson = False,
    segment_size: Annotated[
        int | None,
        Option(
            min=4096, max=2**31 - 1, metavar="BYTES", help="Size of a segment, where the only one was truncated."
        ),  # RocketMQ's setting is an int of Java
    ] = None,
    without_config: Annotated[
        bool, Option("--without-config", help="Go without topics, groups and positions that are in a RocksDB.")
    ] = False,
) -> None:
    """Copy the readable records of a corrupt store into a new one. The old store is only read.

    Every whole record keeps its CommitLog offset. Lost ranges are bridged, so that RocketMQ reads past them. The
    ConsumeQueues and the other derived files are left out: a broker builds them when it starts. Exits with 0 when
    messages are lost: the list of them is the result. Exits with 1 when other files of a broker are left behind that
    no broker can make again.
    """
    from recovery.cli.terminal import tables as screen
    from recovery.repair.salvage import salvage as copy

    with Bar("Copying") as progress:
        report = copy(store, out, segment_size=segment_size, without_config=without_config, progress=progress)
    if as_json:
        print_json(report.as_json())
    else:
        show(screen.salvaged(report))
    raise Exit(FINDINGS if report.left_behind else WELL)


def _entries(store: str, what: What, name: str | None, selection: DumpSelection, progress: Bar) -> Iterator[DumpEntry]:
    from recovery.views import dump_derived as dump_files
    from recovery.views.dump_commitlog import dump_commitlog

    if what is What.CONSUMEQUEUE:
        return dump_files.dump_queue(store, name or "", selection)
    if what is What.INDEX:
        return dump_files.dump_index(store, name, selection)
    if what is What.CHECKPOINT:
        return dump_files.dump_checkpoint(store)
    dumps = {What.REDOLOG: dump_files.dump_redo_log, What.STATETABLE: dump_files.dump_state_table}
    if what in dumps:
        return dumps[what](store, selection)
    return dump_commitlog(store, selection, progress)


def _environment(as_json: bool) -> None:
    """The versions that are installed, and whether another distribution holds a package of our name."""
    from importlib.metadata import packages_distributions

    owners = packages_distributions()
    installed = {name: installed_version(name) for name in ("checkback", "numpy", "pyarrow", "click", "isal")}
    shared = {name: sorted(set(owners.get(name, []))) for name in ("broker", "recovery")}
    clashes = {name: found for name, found in shared.items() if set(found) - {"checkback"}}
    if as_json:
        print_json({"python": sys.version.split()[0], "installed": installed, "clashes": clashes})
        return
    show([f"{'python':<12}{sys.version.split()[0]}"])
    show([f"{name:<12}{found or 'not installed'}" for name, found in installed.items()])
    for name, found in clashes.items():
        others = ", ".join(sorted(set(found) - {"checkback"}))
        warn(f"The package {name} also belongs to {others}: one overwrites the other. Use an environment of its own.")


def installed_version(name: str = "checkback") -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _checks(store: str) -> dict[int, int]:
    """How often check-back checked each half message; a catalog that cannot be read changes nothing else."""
    if not os.path.exists(Paths(store).catalog):  # then SQLAlchemy is not imported
        return {}
    try:
        from recovery.checkback.catalog import checks_of

        return checks_of(store)
    except ImportError:  # without the extra `sql` nobody of this installation asked
        return {}
    except BrokerError as error:
        warn(f"{error}. So the checks are those of the half messages alone")
        return {}


_EXAMPLES: dict[Callable[..., None], str] = {
    verify: examples("verify shop.store", "verify shop.store --json | jq .counts", "verify shop.store --limit 20"),
    pending: examples("pending shop.store", "pending shop.store --json | jq '.[].unique_key'"),
    trace: examples("trace shop.store 4711", "trace shop.store C0A8000100002A9F00000000000F4240 --html trace.html"),
    info: examples("info shop.store", "info shop.store --count --json", "info --environment"),
    dump: examples(
        "dump shop.store --limit 10",
        "dump shop.store --from 1073741824 --hex --limit 1",
        "dump shop.store --topic orders --key 4711",
        "dump shop.store consumequeue orders/0 --from 100 --to 120",
        "dump shop.store config topics",
        "dump shop.store timers --limit 20",
    ),
    salvage: examples("salvage shop.store shop.saved", "salvage shop.store shop.saved --json"),
}


def register(app: VerbGroup) -> None:
    """Put these verbs on the command line."""
    for verb, epilog in _EXAMPLES.items():
        app.verb(verb, epilog=epilog, **listing(verb.__name__))
