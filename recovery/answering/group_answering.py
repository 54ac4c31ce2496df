"""Answer for a producer group from its ledgers: the proof, the binding, and the producers of an application.

with answering(cluster, "shop", [ledger]) as answerer: ...       # a process that never sends
with for_producers(cluster, [producer]): ...                     # beside the producers of an application
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from sqlalchemy.exc import SQLAlchemyError

from broker.cluster.live_cluster import LiveCluster
from broker.database.ledger_binding import Binding, RememberedLedgers, put_binding, read_binding
from broker.errors import BrokerError
from broker.ledger import Ledger, executor
from broker.producer import Producer
from recovery.answering.answerer import Answerer
from recovery.answering.cluster_evidence import ClusterEvidence
from recovery.checkback.ledger_resolver import LedgerResolver, check_file
from recovery.checkback.ledgers.routing import Ledgers
from recovery.checkback.protocol import Resolver
from recovery.checkback.resolvers import Breaker, CallableResolver, Router
from recovery.checkback.time_limit import Bounded


def bind(cluster: LiveCluster, ledger: Ledger) -> Binding:
    """Make the ledger's tables, and bind the cluster and the database to each other: producers name the binding.

    Done again it returns the binding that there is. Raises TransactionError when the database is another one than it
    was, BrokerError for a ledger with an async engine, ClusterError, and what the database raises.
    """
    ledger.create_all()
    ledger.bind(cluster.store_id, RememberedLedgers())
    return ledger.binding(cluster.store_id)


def rebind(cluster: LiveCluster, ledger: Ledger) -> Binding:
    """Bind the cluster to this database under the binding that its rows came with: it was moved, a person says.

    Raises BrokerError when it holds none of the cluster, for a SQLite file that is not there, and for a ledger with an
    async engine; ClusterError, and what the database raises.
    """
    check_file(ledger)
    with ledger.engine.begin() as connection:
        execute = executor(connection)
        observed = ledger.look(execute)
        found = read_binding(execute, ledger.bindings_name, cluster.store_id) if observed.has_table else None
        if found is None:
            raise BrokerError(f"{observed.identity} holds no binding of the cluster {cluster.store_id}: use --bind")
        bound = replace(found, identity=observed.identity)
        put_binding(execute, ledger.bindings_name, bound)
    return bound


@contextmanager
def answering(
    cluster: LiveCluster, group: str, ledgers: Sequence[Ledger], *, accept_lost_rows: bool = False
) -> Iterator[Answerer]:
    """Answer the checks of a producer group from its ledgers, until the block is left.

    `accept_lost_rows`: a person accepts that rows of keys made before now may be missing. Each database must prove
    first that it is the ledger. Raises WrongLedger when one is not, BrokerError when one does not answer and for no
    ledger at all, ClusterError when no name server does.
    """
    if not ledgers:  # it would take checks from members that know
        raise BrokerError(f"nothing could answer for the group {group}: name its ledgers")
    evidence = ClusterEvidence(cluster, group, accepted_ms=_now_ms() if accept_lost_rows else 0)
    resolvers = [LedgerResolver(one, evidence, by="checkback answer") for one in ledgers]
    try:
        for one in resolvers:
            try:
                one.binding_id()
            except SQLAlchemyError as error:
                raise BrokerError(one.trouble(error).why) from error
        with Answerer(cluster, group, Breaker(Bounded(Ledgers(resolvers))), on_topic=evidence.saw) as answerer:
            yield answerer
    finally:
        for one in resolvers:
            one.close()


@contextmanager
def for_producers(cluster: LiveCluster, producers: Sequence[Producer]) -> Iterator[list[Answerer]]:
    """Answer for the producers of an application, fully: a row that is missing is decided by a tombstone.

    Without this, a producer's process answers what it decided itself and what a row says, and "unknown" where there is
    none, as long as its broker checks. Yields an Answerer for each group. Raises ClusterError when no name server
    answers, and what `with_engine` of a ledger raises.
    """
    with ExitStack() as stack:
        made = []
        for group in dict.fromkeys(one.group for one in producers):
            of_group = [one for one in producers if one.group == group]
            evidence = ClusterEvidence(cluster, group)
            ledgers = [LedgerResolver(one.ledger.with_engine(), evidence) for one in of_group if one.ledger]
            asked = [CallableResolver(one.resolver) for one in of_group if one.resolver is not None]
            default: Resolver | None = Breaker(asked[0]) if asked else None
            by_ledger = {group: Breaker(Bounded(Ledgers(ledgers)))} if ledgers else {}
            router = Router({}, default, by_ledger=by_ledger)
            made.append(stack.enter_context(Answerer(cluster, group, router, on_topic=evidence.saw)))
        yield made


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
