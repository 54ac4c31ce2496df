"""The verb that answers the checks of a cluster's brokers from the ledger: `answer`."""

from __future__ import annotations

from typing import Annotated, Any

from recovery.cli.checkback import LedgerUrls, Schemas
from recovery.cli.declaration import Argument, BadParameter, Exit, Option, VerbGroup
from recovery.cli.shared import FINDINGS, USAGE, WELL, AsJson, LogOrNone, Otlp, examples, listing, seconds, secret
from recovery.cli.terminal.log_lines import log_to_stderr
from recovery.cli.terminal.output import print_json, show, warn
from recovery.cli.terminal.traces import traced
from recovery.humanize import count
from recovery.interrupts import stopped_by_signal

ACCESS_KEY, SECRET_KEY = "CHECKBACK_ACCESS_KEY", "CHECKBACK_SECRET_KEY"

NameServers = Annotated[str, Argument(metavar="NAMESRV", help="The name servers of the cluster: HOST:9876;HOST:9876.")]
Group = Annotated[str, Option("--group", metavar="GROUP", help="The producer group to answer for.")]
Bind = Annotated[bool, Option("--bind", help="Make the ledger's tables, bind the database to the cluster, and end.")]
Rebind = Annotated[
    bool, Option("--rebind", help="The database was moved here: bind it again as it was bound, and end.")
]
AcceptLostRows = Annotated[
    bool, Option("--accept-lost-rows", help="Rows of transactions before now may be missing: they are lost.")
]
Once = Annotated[bool, Option("--once", help="End when no check came for --idle.")]
Idle = Annotated[str, Option("--idle", metavar="TIME", help="With --once: longer than a broker's interval.")]
For = Annotated[str | None, Option("--for", metavar="TIME", help="End after this time, for example 1h.")]
ClusterName = Annotated[
    str | None, Option("--cluster", metavar="NAME", help="Which one, where the name servers have several.")
]
Tls = Annotated[bool, Option("--tls", help="Connect by TLS; certificates are verified.")]
Ca = Annotated[
    str | None,
    Option("--ca", metavar="FILE", help="The authority's certificate (PEM) for TLS, if it is private."),
]


def answer(
    namesrv: NameServers,
    group: Group = "",
    ledger: LedgerUrls = None,
    schema: Schemas = None,
    bind: Bind = False,
    rebind: Rebind = False,
    accept_lost_rows: AcceptLostRows = False,
    once: Once = False,
    idle: Idle = "75s",
    for_: For = None,
    cluster: ClusterName = None,
    tls: Tls = False,
    ca: Ca = None,
    otlp: Otlp = None,
    log: LogOrNone = None,
    as_json: AsJson = False,
) -> None:
    """Answer the checks of a RocketMQ cluster for a producer group, from the ledger.

    It joins the group as a producer that never sends: a row means commit; where there is none, a tombstone is inserted
    and the answer is rollback; a transaction that still runs gets "unknown". The producers may be in any language, and
    none of them needs to be alive. Several may run for one group. A database decides only when it proves that it is the
    ledger. An ACL account is in the environment variables CHECKBACK_ACCESS_KEY and CHECKBACK_SECRET_KEY.

    Ctrl-C or SIGTERM ends it. Exits with 1 when a database did not answer, with 2 when one is not certainly the ledger.
    """
    from recovery.jobs.answering import answer as answer_checks
    from recovery.jobs.answering import bind_ledgers

    log_to_stderr(log)
    if not ledger:
        raise BadParameter("name the ledger's database: --ledger URL")
    reach: dict[str, Any] = {"schemas": schema or (), "acl": account(), "tls": ca or tls, "cluster": cluster}
    if bind or rebind:
        if once or for_ or accept_lost_rows:
            text = "it binds the ledgers and ends: leave --once, --for and --accept-lost-rows to the call that answers"
            raise BadParameter(text, param_hint="--bind")
        found = bind_ledgers(namesrv, ledger, again=rebind, **reach)
        _show_bindings(found, as_json)
        return
    if not group:
        raise BadParameter("name the producer group to answer for: --group GROUP")
    stopped = stopped_by_signal()
    with traced(otlp, "answer"):
        report = answer_checks(
            namesrv, group, ledger, once=once,
            for_s=None if for_ is None else seconds("--for", for_), idle_s=seconds("--idle", idle),
            accept_lost_rows=accept_lost_rows, is_stopped=stopped.wait,
            on_report=lambda one: None if as_json else show([_summary(one)]), **reach,
        )  # fmt: skip
    _show_report(report, as_json)
    raise Exit(USAGE if report["refused"] else FINDINGS if report["down"] else WELL)


def account() -> list[str] | None:
    """The ACL account of the environment; None without one. Raises BadParameter for half of one."""
    access_key, secret_key = secret(ACCESS_KEY), secret(SECRET_KEY)
    if (access_key is None) != (secret_key is None):
        raise BadParameter(f"an ACL account needs both {ACCESS_KEY} and {SECRET_KEY}")
    return None if access_key is None or secret_key is None else [access_key, secret_key]


def _show_bindings(found: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    for one in found:
        show([f"{one['database']} is the ledger of {one['store_id']}: binding {one['binding_id']}"])


def _show_report(report: dict[str, Any], as_json: bool) -> None:
    for why in report["refusals"]:
        warn(why)
    if as_json:
        print_json(report)
        return
    show([_summary(report)])
    show([f"  {number:,} not asked: {why}" for why, number in report["not_asked"].items()])


def _summary(report: dict[str, Any]) -> str:
    ended = f"{report['committed']:,} committed, {report['rolled_back']:,} rolled back"
    open_ = f"{report['unknown']:,} unknown, {report['running']:,} still running"
    rest = f"{report['down']:,} not asked, {report['refused']:,} refused"
    return f"Group {report['group']}: {count(report['checks'], 'check')}: {ended}; {open_}; {rest}"


def register(app: VerbGroup) -> None:
    """Give the command line its verb."""
    app.verb(
        answer,
        **listing("answer"),
        epilog=examples(
            "answer 192.0.2.7:9876 --ledger postgresql+psycopg:///shop --bind",
            "answer 192.0.2.7:9876 --group shop --ledger postgresql+psycopg:///shop",
        ),
    )
