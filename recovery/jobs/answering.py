"""The job `answer`: answer the checks of a cluster's brokers for a producer group, for a while or until it is stopped.

JSON in and out, as for Airflow: `answer("namesrv:9876", "shop", ["postgresql+psycopg://…"], for_s=3600)`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import broker
from broker.cluster.network.settings import SCHEME
from broker.consuming.arguments import check_seconds
from broker.errors import BrokerError, shown
from broker.ledger import Ledger
from broker.producing.send_arguments import check_group
from recovery.answering.answerer import Answerer
from recovery.answering.group_answering import answering, bind, rebind
from recovery.checkback.config import ledgers_of

_LOOK_S = 0.2
IDLE_S = 75.0
"""With `once`: so long without a check is the end. Brokers check every 30 s (5.x) or 60 s (4.x)."""


def answer(
    namesrv: str,
    group: str,
    ledgers: Sequence[str],
    *,
    schemas: Sequence[str] = (),
    for_s: float | None = None,
    once: bool = False,
    idle_s: float = IDLE_S,
    accept_lost_rows: bool = False,
    acl: Sequence[str] | None = None,
    tls: bool | str | None = None,
    cluster: str | None = None,
    is_stopped: Callable[[float], bool] | None = None,
    on_report: Callable[[dict[str, Any]], object] = lambda _: None,
) -> dict[str, Any]:
    """Answer for `for_s` seconds (None: no limit), until no check came for `idle_s` seconds (`once`), or until it is
    stopped; returns `AnswerReport.as_json`.

    `namesrv` is HOST:PORT;HOST:PORT, `ledgers` are URLs of SQLAlchemy, `schemas` those of tenants. `accept_lost_rows`
    is as of `answering`; `acl`, `tls` and `cluster` are as of `broker.connect`. `is_stopped(seconds)` waits so long and
    says whether to stop (None: nothing stops it); `on_report` hears of the report once a minute while it changes.

    Raises MessageRejected for an impossible group; WrongLedger when a database is not certainly the ledger; BrokerError
    for a database that does not answer or cannot be a ledger, for a URL that is not one, and for arguments of another
    kind; ClusterError when no name server answers.
    """
    check_group(group)
    check_seconds("for_s", for_s, may_be_zero=True)
    check_seconds("idle_s", idle_s)
    made = _ledgers(ledgers, schemas)
    ends_s = None if for_s is None else time.monotonic() + for_s
    with (
        broker.connect(url_of(namesrv), acl=acl, tls=tls, cluster=cluster) as connected,
        answering(connected, group, made, accept_lost_rows=accept_lost_rows) as answerer,
    ):
        wait = is_stopped or _sleep
        reported_s, last = time.monotonic(), answerer.report.as_json()
        while not wait(_LOOK_S) and not _is_over(answerer, ends_s, idle_s if once else None):
            now_s = time.monotonic()
            if now_s - reported_s >= 60 and (now := answerer.report.as_json()) != last:
                reported_s, last = now_s, now
                on_report(now)
    return answerer.report.as_json()


def _is_over(answerer: Answerer, ends_s: float | None, idle_s: float | None) -> bool:
    now_s = time.monotonic()
    return (ends_s is not None and now_s >= ends_s) or (idle_s is not None and now_s - answerer.last_check_s >= idle_s)


def _sleep(seconds: float) -> bool:
    time.sleep(seconds)
    return False


def bind_ledgers(
    namesrv: str,
    ledgers: Sequence[str],
    *,
    schemas: Sequence[str] = (),
    again: bool = False,
    acl: Sequence[str] | None = None,
    tls: bool | str | None = None,
    cluster: str | None = None,
) -> list[dict[str, Any]]:
    """Make the tables of each ledger, and bind it to the cluster; with `again` a database that was moved.

    The arguments are as of `answer`. Returns for each ledger `store_id` and `binding_id` (32 characters) and `database`
    as text. Raises TransactionError when a database is another one than it was, BrokerError for a URL that is not one,
    for a database that does not answer and with `again` for one without a binding; ClusterError.
    """
    from recovery.checkback.ledgers.database_errors import translated_errors

    found = []
    made = _ledgers(ledgers, schemas)
    with broker.connect(url_of(namesrv), acl=acl, tls=tls, cluster=cluster) as connected:
        for ledger in made:
            try:
                with translated_errors(ledger.engine.url):
                    bound = (rebind if again else bind)(connected, ledger)
            finally:
                ledger.engine.dispose()
            found.append({"store_id": bound.store_id, "binding_id": bound.binding_id, "database": str(bound.identity)})
    return found


def _ledgers(ledgers: Sequence[str], schemas: Sequence[str]) -> list[Ledger]:
    """Those that are named. Raises BrokerError for none: who knows nothing would take the checks of other members."""
    for what, named, example in (("ledgers", ledgers, "postgresql+psycopg:///shop"), ("schemas", schemas, "tenant1")):
        given: object = named
        if not isinstance(given, list | tuple) or not all(isinstance(one, str) and one for one in given):
            raise BrokerError(f"{what} is a list of texts, such as ['{example}'], not {type(given).__name__}")
    if not ledgers:
        raise BrokerError("ledgers is empty: name the database of the ledger, and nothing is answered without one")
    return list(ledgers_of({"ledger": list(ledgers), **({"schema": list(schemas)} if schemas else {})}))


def url_of(namesrv: str) -> str:
    """The URL of a cluster, `rocketmq://HOST:PORT`, of which people write the name servers alone; a URL stays.

    Raises BrokerError for what is not text.
    """
    if not isinstance(namesrv, str):
        raise BrokerError(f"namesrv is text, HOST:PORT;HOST:PORT, not {shown(namesrv)}")
    return namesrv if namesrv.startswith(SCHEME) else SCHEME + namesrv
