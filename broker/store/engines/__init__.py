"""The engines of transactions: by the name that store.json and `broker.open` give them."""

from __future__ import annotations

from broker.errors import BrokerError
from broker.store.engines.half_op import HALF_OP
from broker.store.engines.state_table import STATE_TABLE
from broker.store.write.engine import TransactionEngine

ENGINES: dict[str, TransactionEngine] = {engine.name: engine for engine in (STATE_TABLE, HALF_OP)}

default = STATE_TABLE.name  # of a new store; the tests run with each


def engine_of(name: str) -> TransactionEngine:
    """The engine of this name. Raises BrokerError when there is none."""
    if name not in ENGINES:
        raise BrokerError(f"transactions is one of {', '.join(ENGINES)}, not {name!r}")
    return ENGINES[name]
