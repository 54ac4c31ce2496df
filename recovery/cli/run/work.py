"""The verbs for applications: `work` runs their handlers, `new` makes one."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from recovery.cli.declaration import Argument, BadParameter, Exit, Option, VerbGroup
from recovery.cli.shared import FINDINGS, WELL, LogForm, Otlp, examples, interval_s, listing, seconds
from recovery.cli.terminal.log_lines import log_to_stderr
from recovery.cli.terminal.measured import measured
from recovery.cli.terminal.output import show, warn
from recovery.cli.terminal.traces import traced

if TYPE_CHECKING:
    from broker.app.application import App
    from broker.app.handlers import HandlerGroup
    from recovery.work.process import ProcessSettings

Target = Annotated[str, Argument(metavar="MODULE:APP", help="The broker.App: shop:app is `app` in shop.py.")]
Processes = Annotated[int, Option(min=1, max=256, metavar="N", help="Worker processes, under a supervisor.")]
Groups = Annotated[
    list[str] | None, Option("--group", metavar="GROUP", help="Only this consumer group; again for more.")
]
Reload = Annotated[bool, Option("--reload", help="Restart when a .py file changes. For development.")]
Liveness = Annotated[str | None, Option(metavar="FILE", help="A file that is written once a second while all is well.")]
Grace = Annotated[str, Option(metavar="TIME", help="How long a stop waits for what runs.")]
CheckEvery = Annotated[
    str,
    Option("--check-every", metavar="TIME", help="Interval of check-back; never: elsewhere."),
]
Config = Annotated[str | None, Option("--config", metavar="FILE", help="TOML: the check-back policy.")]
ReplayFrom = Annotated[
    str | None,
    Option("--replay-from", metavar="TIME", help="Repeat what came since; with --group and --as."),
]
ReplayAs = Annotated[str | None, Option("--as", metavar="GROUP", help="The new group of the replay.")]
UntilIdle = Annotated[
    str | None, Option("--until-idle", metavar="TIME", help="End when nothing came for so long; one process.")
]
Metrics = Annotated[
    str | None, Option("--metrics", metavar="HOST:PORT", help="Serve /metrics of all processes, for Prometheus.")
]
MetricsInto = Annotated[str | None, Option("--metrics-into", hidden=True)]
Supervised = Annotated[int | None, Option("--supervised", hidden=True)]


def work(
    target: Target,
    processes: Processes = 1,
    group: Groups = None,
    reload: Reload = False,
    liveness: Liveness = None,
    grace: Grace = "30s",
    check_every: CheckEvery = "30s",
    config: Config = None,
    replay_from: ReplayFrom = None,
    replay_as: ReplayAs = None,
    until_idle: UntilIdle = None,
    metrics: Metrics = None,
    otlp: Otlp = None,
    log: LogForm = "text",
    metrics_into: MetricsInto = None,
    supervised: Supervised = None,
) -> None:
    """Run the handlers of an application, deliver its delayed messages, and run check-back.

    Any number of processes may run it at once: groups share their queues, and one process leads check-back. SIGTERM or
    Ctrl-C finishes what runs and gives the queues back; a second one ends at once. A process that is killed loses
    nothing: what it had in process is handled by another.

    --replay-from handles the messages of a group since a time once more, as a group of its own.
    """
    from broker.app.handlers import replayed
    from recovery.work.target import load_app

    if bool(replay_from) != bool(replay_as) or (replay_from and len(group or []) != 1):
        raise BadParameter("--replay-from TIME needs --as NEW_GROUP and one --group", param_hint="--replay-from")
    if until_idle and (processes > 1 or reload):
        raise BadParameter("it is for one process without --reload", param_hint="--until-idle")
    settings = _settings(grace, check_every, config, until_idle)
    stopping = _stop_by_signal()
    log_to_stderr(log)
    with measured(metrics, metrics_into) as shared:
        if processes > 1 or reload:
            given = {"--config": config, "--replay-from": replay_from, "--as": replay_as, "--otlp": otlp, "--log": log,
                     "--metrics-into": shared}  # fmt: skip
            words = _own_words(target, group, grace, check_every, given)
            raise Exit(_supervise(words, processes, reload, liveness, settings, stopping))
        with traced(otlp, target.partition(":")[0]):  # before the application makes its producers
            app = load_app(target)
            groups = _groups(app, group)
            if replay_from and replay_as:
                groups = [replayed(groups[0], replay_as, _moment(replay_from))]
            finished = _work(app, groups, settings, stopping, liveness, supervised, shared)
    raise Exit(WELL if finished else FINDINGS)


def _work(
    app: App,
    groups: Sequence[HandlerGroup],
    settings: ProcessSettings,
    stopping: threading.Event,
    liveness: str | None,
    supervised: int | None,
    metrics_into: str | None,
) -> bool:
    """One process; whether everything that ran was finished."""
    from recovery.work.liveness import LivenessFile
    from recovery.work.process import Supervised, work

    file = LivenessFile(liveness) if liveness else None
    parent = None if supervised is None else Supervised(supervised, stopping)
    shared = None
    if metrics_into is not None:
        from recovery.metrics.work_metrics import SharedRuns

        shared = SharedRuns(metrics_into)
        settings = replace(settings, runs=shared.runs)

    def alive() -> None:
        if shared is not None:
            shared.publish(app.store)
        if parent is not None:
            parent.alive()
        if file is not None:
            file.beat({"groups": [group.group for group in groups]})

    def ready() -> None:
        alive()
        names = ", ".join(f"{group.group} ({', '.join(group.topics)})" for group in groups)
        warn(f"process {os.getpid()} works for {names or 'no group: it only runs check-back'}")

    try:
        finished = work(app, groups, settings, stopping, alive, ready)
    finally:
        if shared is not None:
            shared.publish(None)
    if not finished:
        warn(f"process {os.getpid()} did not finish what it had in process: that is delivered again. See --grace")
    if file is not None:
        file.remove()
    return finished


def _supervise(
    words: Sequence[str], processes: int, reload: bool, liveness: str | None, settings: ProcessSettings,
    stopping: threading.Event,
) -> int:  # fmt: skip
    from recovery.work.liveness import LivenessFile
    from recovery.work.reload import SourceFiles
    from recovery.work.supervisor import Supervisor

    supervisor = Supervisor(
        words, processes, stopping, grace_s=settings.grace_s, say=warn,
        sources=SourceFiles(os.getcwd()) if reload else None, liveness=LivenessFile(liveness) if liveness else None,
    )  # fmt: skip
    return supervisor.run()


def _own_words(
    target: str, groups: Sequence[str] | None, grace: str, check_every: str, given: Mapping[str, str | None]
) -> list[str]:
    """The command of one worker process: this one's, without what is the supervisor's."""
    words = [sys.executable, "-m", "recovery.cli", "work", target, "--grace", grace, "--check-every", check_every]
    for option, value in (*given.items(), *(("--group", group) for group in groups or [])):
        if value is not None:
            words += [option, value]
    return words


def _settings(grace: str, check_every: str, config: str | None, until_idle: str | None) -> ProcessSettings:
    from recovery.checkback.config import load
    from recovery.work.process import ProcessSettings

    return ProcessSettings(
        grace_s=seconds("--grace", grace),
        check_every_s=None if check_every == "never" else interval_s("--check-every", check_every),
        policy=None if config is None else load(config).policy,
        idle_s=None if until_idle is None else seconds("--until-idle", until_idle),
    )


def _moment(text: str) -> str | int:
    """Where a replay begins, as a consumer group's `start`."""
    from broker.errors import BrokerError
    from recovery.views.consumer_lag import place

    found = place(text)
    if isinstance(found, int) or found.word == "last":
        raise BrokerError(f"--replay-from takes first, or a time such as 2026-11-21T08:00Z, not {text}")
    return found.time_ms if found.word == "time" else found.word


def _groups(app: App, wanted: Sequence[str] | None) -> list[HandlerGroup]:
    from broker.errors import BrokerError

    known = {group.group: group for group in app.groups}
    for name in wanted or ():
        if name not in known:
            raise BrokerError(f"{app!r} has no handler of group {name}: its groups are {', '.join(known) or 'none'}")
    return [group for name, group in known.items() if not wanted or name in wanted]


def _stop_by_signal() -> threading.Event:
    """Set by SIGTERM and Ctrl-C; a second signal ends the process at once."""
    stopping = threading.Event()

    def stop(*_: object) -> None:
        if stopping.is_set():
            raise KeyboardInterrupt
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    return stopping


def new(
    directory: Annotated[str, Argument(metavar="NAME", help="The directory to make; its last part is the name.")],
) -> None:
    """Make a small application: it saves orders, announces them and charges them once, with its own tests.

    Refused when the directory holds anything.
    """
    from recovery.work.scaffold import make_application

    for line in make_application(directory):
        show([line])


def register(app: VerbGroup) -> None:
    """Put these verbs on the command line."""
    app.verb(
        work,
        **listing("work"),
        epilog=examples(
            "work shop:app",
            "work shop:app --processes 4 --liveness /run/shop/alive --metrics 127.0.0.1:9464",
            "work shop:app --reload",
            "work shop:app --group billing --replay-from 2026-11-21T08:00Z --as billing-again --until-idle 10s",
        ),
    )
    app.verb(new, **listing("new"), epilog=examples("new shop"))
