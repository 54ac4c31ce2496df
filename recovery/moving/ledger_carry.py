"""Bind a cluster to the ledgers of a store under the same binding: the transactions in doubt find their rows there.

A row of a ledger is found by its key alone. Who may insert a tombstone is decided by the binding, which names the store
or the cluster that it is for; so the cluster gets a row with the binding id that the store has.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

import broker
from broker.consuming.group.positions import Positions
from broker.database.ledger_binding import put_binding, read_binding
from broker.errors import BrokerError
from broker.ledger import Ledger, executor
from recovery.checkback.ledger_resolver import LedgerResolver
from recovery.checkback.ledgers.proof import LedgerEvidence


def prepare(path: str, cluster_id: str, ledgers: Sequence[Ledger]) -> dict[str, str]:
    """Recover the store, if it was not closed, write its positions down, and carry its bindings over.

    Returns the binding of the cluster for each binding of the store. Raises WrongLedger when a database is not
    certainly a ledger of the store, BrokerError when it does not answer, StoreError.
    """
    with broker.open(path, create=False) as store:
        positions = Positions(store)
        try:
            positions.exchange.export(at_once=True)
        finally:
            positions.close()
        evidence = LedgerEvidence(store)
        return dict(_carried(LedgerResolver(one, evidence), store.store_id, cluster_id) for one in ledgers)


def _carried(resolver: LedgerResolver, store_id: str, cluster_id: str) -> tuple[str, str]:
    """(binding of the store, binding of the cluster) of one database, which proves first that it is the ledger."""
    try:
        proved, ledger = resolver.binding_id(), resolver.ledger
        with ledger.engine.begin() as connection:
            execute = executor(connection)
            held = read_binding(execute, ledger.bindings_name, cluster_id)
            own = read_binding(execute, ledger.bindings_name, store_id)
            assert own is not None  # it was proved a moment ago
            if held is None:
                held = replace(own, store_id=cluster_id, made_ms=time.time_ns() // 1_000_000)
                put_binding(execute, ledger.bindings_name, held)
            marks = ledger.marks
            lows = {str(of): int(low) for of, low in execute(select(marks.c.store_id, marks.c.low_water_ms))}
            if store_id in lows and cluster_id not in lows:  # rows below it were removed
                execute(marks.insert().values(store_id=cluster_id, low_water_ms=lows[store_id]))
    except SQLAlchemyError as error:
        raise BrokerError(resolver.trouble(error).why) from error
    finally:
        resolver.close()
    return proved, held.binding_id
