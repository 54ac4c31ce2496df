"""The verbs that face other programs: `serve` for RocketMQ's clients, `metrics` for Prometheus."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import re
import resource
import threading
import time
from typing import TYPE_CHECKING, Annotated, Any

from broker.log_fields import event
from recovery.cli.declaration import BadParameter, Option, VerbGroup
from recovery.cli.shared import LogOrNone, Otlp, Store, examples, listing, now_ms
from recovery.cli.terminal.log_lines import log_to_stderr
from recovery.cli.terminal.output import show, show_now
from recovery.cli.terminal.traces import traced
from recovery.interrupts import stopped_by_signal

if TYPE_CHECKING:
    from broker.live import LiveStore
    from broker.server.running import Server

_OTHER_FILES = 512  # of the store, and the server's own
_LABEL = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")
_OWN_LABELS = ("group", "topic", "decided_by", "decision")  # of `recovery.metrics.store_metrics`

log = logging.getLogger("recovery.serve")

Listen = Annotated[
    str, Option(metavar="HOST:PORT", help="The IPv4 address and port to listen on; port 0 takes a free one.")
]
Advertise = Annotated[str, Option(metavar="HOST:PORT", help="The address that clients reach, if it is another one.")]
Sync = Annotated[str, Option(metavar="MODE", help="What a send waits for: each, group (an fsync for many), or os.")]
Acl = Annotated[str | None, Option(metavar="FILE", help="Accounts and rights, in the format of plain_acl.yml.")]
Certificate = Annotated[str | None, Option("--cert", metavar="FILE", help="A certificate (PEM): TLS on the same port.")]
Insecure = Annotated[
    bool, Option("--insecure", help="Listen beyond this machine without an ACL: everyone may do everything.")
]
Admin = Annotated[bool, Option("--admin", help="Also answer requests that change the broker or reach into clients.")]
AutoCreate = Annotated[
    bool | None,
    Option(
        "--auto-create/--no-auto-create", help="Whether a first message makes its topic; by default only on loopback."
    ),
]
Sql92 = Annotated[bool, Option("--sql92/--no-sql92", help="Whether consumers may select by SQL expressions.")]
CheckEvery = Annotated[float, Option("--check-every", metavar="TIME", help="Interval of check-back.")]
CheckAfter = Annotated[float, Option("--check-after", metavar="TIME", help="Age of a half message that is checked.")]
CheckMax = Annotated[int, Option(metavar="N", help="Checks of one half message, before it is parked.")]
Metrics = Annotated[
    int | None, Option("--metrics", metavar="PORT", help="Serve /metrics and /healthz on this port of 127.0.0.1.")
]
Ha = Annotated[
    str,
    Option("--ha", metavar="PORT", help="Let RocketMQ slaves copy the log: HOST:PORT, or a port here."),
]
HaSync = Annotated[bool, Option("--ha-sync", help="Answer a send when a slave has it, like a SYNC_MASTER.")]
Register = Annotated[
    list[str] | None,
    Option("--register", metavar="HOST:PORT", help="Also be a broker of this name server; several may be given."),
]
Loop = Annotated[str, Option(metavar="NAME", help="The event loop: asyncio, uvloop, or auto (uvloop if installed).")]
Levels = Annotated[str, Option(metavar="TEXT", help="The 18 delay levels, like RocketMQ's messageDelayLevel.")]


def serve(
    store: Store,
    listen: Listen = "127.0.0.1:10911",
    advertise: Advertise = "",
    sync: Sync = "group",
    create: Annotated[bool, Option("--create", help="Make the store if there is none at the path.")] = False,
    acl: Acl = None,
    certificate: Certificate = None,
    private_key: Annotated[str | None, Option("--key", metavar="FILE", help="Its private key (PEM).")] = None,
    tls_only: Annotated[bool, Option("--tls-only", help="Refuse clients that do not speak TLS.")] = False,
    insecure: Insecure = False,
    admin: Admin = False,
    auto_create: AutoCreate = None,
    sql92: Sql92 = True,
    broker_name: Annotated[str, Option(metavar="NAME", help="The name of the broker.")] = "broker-a",
    cluster: Annotated[str, Option(metavar="NAME", help="The name of its cluster.")] = "DefaultCluster",
    check_interval_s: CheckEvery = 30.0,
    transaction_timeout_s: CheckAfter = 6.0,
    check_max: CheckMax = 15,
    delay_levels: Levels = "",
    connections_max: Annotated[int, Option("--connections", metavar="N", help="Connections at a time.")] = 1000,
    loop: Loop = "auto",
    metrics_port: Metrics = None,
    ha: Ha = "",
    ha_sync: HaSync = False,
    name_servers: Register = None,
    otlp: Otlp = None,
    log: LogOrNone = None,
    seconds: Annotated[float | None, Option(min=1, metavar="TIME", help="Stop after this time.")] = None,
) -> None:
    """Serve a store to RocketMQ clients in any language: a name server and a broker on one port.

    It listens on this machine only, unless there is an ACL. Ctrl-C or SIGTERM stops it: what was accepted is answered.
    """
    log_to_stderr(log)
    from broker.server.running import start
    from broker.server.settings import ServerSettings

    options: dict[str, Any] = {"delay_levels": delay_levels} if delay_levels else {}
    settings = ServerSettings(  # refused before a store is made or recovered
        listen, advertise=advertise, acl=acl, certificate=certificate, private_key=private_key, tls_only=tls_only,
        insecure=insecure, admin=admin, auto_create=auto_create, sql92=sql92, broker_name=broker_name, cluster=cluster,
        check_interval_s=check_interval_s, transaction_timeout_s=transaction_timeout_s, check_max=check_max,
        connections_max=connections_max, loop=loop, metrics_port=metrics_port,
        ha=f"127.0.0.1:{ha}" if ha.isdecimal() else ha, ha_sync=ha_sync, name_servers=name_servers or (), **options,
    )  # fmt: skip
    _allow_files(connections_max + _OTHER_FILES, store)
    stopped = stopped_by_signal()
    with (
        traced(otlp, "serve"), _opened(store, sync, create) as opened,
        start(opened, settings) as server,
    ):  # fmt: skip
        show_now(f"Serving {store} on {server.address}: name server and broker. Ctrl-C stops it.")
        if server.ha_address:
            show_now(f"RocketMQ slaves copy it from {server.ha_address} (haMasterAddress).")
        _stay(server, stopped, seconds)


def _opened(store: str, sync: str, create: bool) -> LiveStore:
    """The store, open for writing. Raises what `broker.open` does, and names --create where nothing is at the path."""
    import broker
    from broker.errors import NotAStore
    from broker.store.disk.paths import why_not_a_path

    mode: Any = sync  # refused by `broker.open` if it is unknown
    try:
        return broker.open(store, sync=mode, create=create)
    except NotAStore as error:
        if create or os.path.lexists(store) or why_not_a_path(store):
            raise
        raise NotAStore(f"{error}; or let --create make a store there", path=store) from error


def _stay(server: Server, stopped: threading.Event, seconds: float | None) -> None:
    """Until a signal comes, or the time is over. Raises BrokerError when the server ends by itself."""
    from broker.errors import BrokerError

    until_s = math.inf if seconds is None else time.monotonic() + seconds
    while not stopped.wait(min(1.0, max(0.0, until_s - time.monotonic()))) and time.monotonic() < until_s:
        if server.wait(0):  # its event loop ended
            raise BrokerError("the server stopped because of an error, see the log. Start it again")


def _allow_files(needed: int, store: str) -> None:
    """Raise this process's soft limit of open files to its hard one, and warn where that is less than what is needed.

    The verb does this, not `broker.serve`: a library leaves the limits of its process alone.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    has_end = hard != resource.RLIM_INFINITY
    wanted = hard if has_end else max(soft, needed)
    if soft not in (wanted, resource.RLIM_INFINITY):
        with contextlib.suppress(OSError, ValueError):  # it stays as it is
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    if soft != resource.RLIM_INFINITY and soft < needed:
        log.warning(
            "this process may have %d files open, and --connections asks for %d: raise the hard limit (ulimit -Hn, or"
            " LimitNOFILE of systemd), or give a smaller --connections", soft, needed,
            extra=event("few-files", store=store),
        )  # fmt: skip


def metrics(
    store: Store,
    labels: Annotated[
        list[str] | None,
        Option("--label", metavar="NAME=VALUE", help="A label of each sample, as store=shop; may be repeated."),
    ] = None,
) -> None:
    """Print what is to be watched of a store, in the text format of Prometheus: for node_exporter's textfile collector.

    Transactions in doubt, parked, and the age of the oldest; lag, pauses and dead letters by group; disk. Opens the
    store beside the processes that use it, and writes nothing to its log. The collector takes a sample of one name and
    labels once: of several stores each needs a label of its own.
    """
    import broker
    from broker.server.metrics import exposition
    from recovery.metrics.store_metrics import samples

    given = _labels_of(labels or [])
    with broker.open(store, create=False) as opened:
        found = list(samples(opened, now_ms()))
    text = exposition((name, kind, {**given, **own}, value) for name, kind, own, value in found)
    show(text.splitlines())


def _labels_of(pairs: list[str]) -> dict[str, str]:
    """Raises BadParameter for what Prometheus does not take as a label."""
    from recovery.cli.messages import properties_of

    try:
        found = properties_of(pairs)
    except ValueError as error:
        raise BadParameter(str(error), param_hint="--label") from None
    for name in found:
        if not _LABEL.fullmatch(name):
            text = f"{name!r} cannot name a label: that has A-Z, a-z, 0-9 and _, and begins with neither a digit nor __"
            raise BadParameter(text, param_hint="--label")
        if name in _OWN_LABELS:
            raise BadParameter(f"samples have a label {name} of their own: give another name", param_hint="--label")
    return found


def register(app: VerbGroup) -> None:
    """Give the command line its verbs."""
    app.verb(
        metrics,
        **listing("metrics"),
        epilog=examples(
            "metrics shop.store",
            "metrics shop.store > /var/lib/node_exporter/shop.prom",
            "metrics shop.store --label store=shop",
        ),
    )
    app.verb(
        serve,
        **listing("serve"),
        epilog=examples(
            "serve shop.store",
            "serve shop.store --ha 10912",
            "serve shop.store --listen 192.0.2.7:10911 --acl plain_acl.yml --cert server.pem --key server.key",
        ),
    )
