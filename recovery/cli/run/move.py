"""The verb that carries a store to a cluster: `move`."""

from __future__ import annotations

from typing import Annotated

from recovery.cli.checkback import LedgerUrls, Schemas
from recovery.cli.declaration import Argument, Exit, Option, VerbGroup
from recovery.cli.run.answer import Ca, ClusterName, Tls, account
from recovery.cli.shared import FINDINGS, USAGE, AsJson, Store, examples, listing
from recovery.cli.terminal.output import Bar, print_json, show, warn
from recovery.humanize import printable

Url = Annotated[str, Argument(metavar="URL", help="The cluster: rocketmq://HOST:9876;HOST:9876, name servers.")]


def move(
    store: Store,
    url: Url,
    apply: Annotated[bool, Option("--apply", help="Do it. Without it nothing is changed or sent.")] = False,
    ledger: LedgerUrls = None,
    schema: Schemas = None,
    cluster: ClusterName = None,
    tls: Tls = False,
    ca: Ca = None,
    as_json: AsJson = False,
) -> None:
    """Carry messages, consumer positions and transactions in doubt to a RocketMQ cluster; without --apply list them.

    Each message is sent once, to the queue with the same number, in order, and read back at the end. A run that was
    killed goes on where it was. Stop every process that has the store open, and every consumer of its groups at the
    cluster; from its start on nobody opens the store for writing. --ledger: the checks of transactions in doubt find
    their rows by checkback answer. An ACL account is in CHECKBACK_ACCESS_KEY and CHECKBACK_SECRET_KEY.

    Exits with 1 when a message is missing there, is there twice, or is another one; with 2 when the plan is refused.
    """
    from broker.cluster.network.settings import ClientSettings, credentials_of, parse_url, tls_of
    from recovery.checkback.config import ledgers_of
    from recovery.jobs.answering import url_of
    from recovery.moving.mover import move as carry
    from recovery.moving.mover import plan_move

    made = list(ledgers_of({"ledger": ledger, **({"schema": schema} if schema else {})})) if ledger else []
    settings = ClientSettings(parse_url(url_of(url)), credentials_of(account()), tls_of(ca or tls), cluster)
    if not apply:
        plan = plan_move(store, settings, has_ledgers=bool(ledger))
        if as_json:
            print_json(plan.as_json())
        else:
            show([printable(line) for line in plan.lines()])
        for refusal in plan.refusals if not as_json else ():
            warn(refusal)
        if plan.refusals:
            raise Exit(USAGE)
        if not as_json:
            show(["Nothing was changed. To move: the same command with --apply"])
        return
    with Bar("Moving") as progress:
        report = carry(store, settings, ledgers=made, progress=progress)
    if as_json:
        print_json(report.as_json())
    else:
        if report.was_done:
            show([f"{printable(store)} was moved before, as follows; nothing was sent now."])
        show([printable(line) for line in report.lines()])
        for finding in report.findings:
            warn(finding)
    if not report.ok:
        raise Exit(FINDINGS)


def register(app: VerbGroup) -> None:
    """Give the command line its verb."""
    app.verb(
        move,
        **listing("move"),
        epilog=examples(
            "move shop.store rocketmq://192.0.2.7:9876",
            "move shop.store rocketmq://192.0.2.7:9876 --ledger postgresql+psycopg:///shop --apply",
        ),
    )
