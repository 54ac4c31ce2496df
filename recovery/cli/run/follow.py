"""The verb that keeps a verified copy of a live master: `follow`."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Annotated

from broker.format.properties import decimal
from recovery.cli.declaration import Argument, BadParameter, Exit, Option, VerbGroup
from recovery.cli.shared import FINDINGS, AsJson, LogOrNone, bytes_of, examples, fail, listing
from recovery.cli.shared import seconds as seconds_of
from recovery.cli.terminal.log_lines import log_to_stderr
from recovery.cli.terminal.output import show_now, warn
from recovery.interrupts import stopped_by_signal

if TYPE_CHECKING:
    from recovery.following.follower import FollowOptions

Master = Annotated[str, Argument(metavar="MASTER", help="HOST:PORT of the master's HA port (haListenPort).")]
Copy = Annotated[str, Argument(metavar="STORE", help="The directory of the copy; made if it is not there.")]
Start = Annotated[
    str,
    Option("--from", metavar="WHERE", help="A new copy begins with: last, first (segment), or an offset."),
]
SegmentSize = Annotated[
    str | None,
    Option("--segment-bytes", metavar="SIZE", help="The master's mappedFileSizeCommitLog, if not 1GiB."),
]
Keep = Annotated[str | None, Option("--keep", metavar="AGE", help="Older segments of the copy go: 72h.")]
Acknowledge = Annotated[
    bool, Option("--acknowledge", help="Let a SYNC_MASTER count this copy as a slave that has the records.")
]
Metrics = Annotated[
    int | None,
    Option("--metrics", min=0, max=65_535, metavar="PORT", help="Serve /metrics and /healthz on 127.0.0.1."),
]


def follow(
    master: Master,
    store: Copy,
    start: Start = "last",
    segment_bytes: SegmentSize = None,
    keep: Keep = None,
    acknowledge: Acknowledge = False,
    metrics_port: Metrics = None,
    every_s: Annotated[float, Option("--every", min=0.1, metavar="TIME", help="Interval of status lines.")] = 10,
    seconds: Annotated[float | None, Option(min=1, metavar="TIME", help="Stop after this time.")] = None,
    once: Annotated[bool, Option("--once", help="Stop when the copy is up to date.")] = False,
    log: LogOrNone = None,
    as_json: AsJson = False,
) -> None:
    """Keep a byte-identical copy of a live master's CommitLog, and verify it as it grows.

    Connects as a slave that never serves. Reports what is in doubt, delivered twice, decided both ways, and what the
    master lost at a recovery. Run again, it goes on where it was. The directory is made when the master has answered.
    Ctrl-C or SIGTERM stops it. Exit code 1: findings, or --once and the master does not answer. With --json each status
    is one line of JSON.
    """
    log_to_stderr(log)
    stopped = stopped_by_signal()  # before what takes long to load
    from recovery.following.follower import Follower, FollowOptions
    from recovery.following.link import TRIES, MasterAway
    from recovery.following.metrics_page import StatusPage
    from recovery.following.status import FollowerStatus

    wanted = None if segment_bytes is None else bytes_of("--segment-bytes", segment_bytes)
    keep_s = None if keep is None else seconds_of("--keep", keep)
    options = FollowOptions(start=_start(start), segment_bytes=wanted, keep_s=keep_s, acknowledges=acknowledge)
    if seconds is not None:
        timer = threading.Timer(seconds, stopped.set)
        timer.daemon = True
        timer.start()

    def show(status: FollowerStatus) -> None:
        show_now(json.dumps(status.as_json()) if as_json else status.line())

    try:
        _await_master(master, store, options, stopped, once=once)
        with Follower(master, store, options) as follower, StatusPage(metrics_port) as metrics:
            if metrics.address and not as_json:
                show_now(f"Metrics on http://{metrics.address}/metrics")

            def show_everywhere(status: FollowerStatus) -> None:
                metrics.show(status)
                show(status)

            last = follower.run(stopped, show_everywhere, until_caught_up=once, every_s=every_s)
    except MasterAway as error:
        fail(f"{error}: tried {TRIES} times. Is it the HA port (haListenPort) of a master that runs?", FINDINGS)
    show(last)
    if not as_json:
        for finding in last.findings:
            warn(f"{finding['kind']} at {finding['commitlog_offset']}: {finding['text']}")
    if not last.ok:
        raise Exit(FINDINGS)


def _await_master(master: str, store: str, options: FollowOptions, stopped: threading.Event, *, once: bool) -> None:
    """Before a new copy is made, have an answer: nothing is left behind for a wrong address. Raises MasterAway."""
    from recovery.following.follower import is_copy
    from recovery.following.link import TRIES, await_master, parse_master

    parse_master(master)
    if is_copy(store, options):
        return
    shown: set[str] = set()

    def show_once(why: str) -> None:
        if why not in shown and not once:
            shown.add(why)
            warn(f"{why}; it is tried until it answers")

    if not await_master(master, stopped, tries=TRIES if once else None, on_trouble=show_once):
        fail(f"{master} did not answer, so {store} was not made: is it the HA port of a master?", FINDINGS)


def _start(text: str) -> str | int:
    if text in ("last", "first"):
        return text
    if (commitlog_offset := decimal(text)) is not None:
        return commitlog_offset
    raise BadParameter("last, first, or the CommitLog offset of a segment", param_hint="--from")


def register(app: VerbGroup) -> None:
    """Give the command line its verb."""
    app.verb(
        follow,
        **listing("follow"),
        epilog=examples(
            "follow 192.0.2.7:10912 copy.store",
            "follow 192.0.2.7:10912 copy.store --from first --keep 168h --metrics 9108",
        ),
    )
