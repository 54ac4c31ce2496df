"""Find the implementations of the transaction service by entry point.

    checkback.transaction_service    called with a TransactionalMessageBridge, returns a TransactionalMessageService

RocketMQ: ServiceProvider.loadClass, BrokerController.initialTransaction (5.3.3).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from broker.errors import BrokerError, shown
from broker.transaction.service import TransactionalMessageBridge, TransactionalMessageService

_GROUP = "checkback.transaction_service"


def _state_table(bridge: TransactionalMessageBridge) -> TransactionalMessageService:
    from broker.transaction.statetable import StateTableService

    return StateTableService(bridge)


def _half_op(bridge: TransactionalMessageBridge) -> TransactionalMessageService:
    from broker.transaction.half_op import HalfOpService

    return HalfOpService(bridge)


# Ours, for a source tree that was never installed; pyproject.toml names the same. PyInstaller, which packs what is
# imported, sees no module that is named in a text.
_OWN: dict[str, Callable[..., Any]] = {"state-table": _state_table, "half-op": _half_op}


def load_service(name: str, bridge: TransactionalMessageBridge) -> TransactionalMessageService:
    """The service of this name, for one store. Raises BrokerError when there is none, or it is not a service."""
    found = (_OWN.get(name) or _installed(name))(bridge)
    if not isinstance(found, TransactionalMessageService):
        raise BrokerError(f"{name!r} in {_GROUP} makes {shown(found)}, which is not a TransactionalMessageService")
    return found


def _installed(name: str) -> Callable[..., Any]:
    from importlib.metadata import entry_points  # it takes as long as half of `broker.open`'s other imports

    installed = entry_points(group=_GROUP)
    for entry in installed:
        if entry.name == name:
            return entry.load()  # type: ignore[no-any-return]
    there = ", ".join(sorted({entry.name for entry in installed} | _OWN.keys()))
    raise BrokerError(f"there is no {name!r} in the entry point group {_GROUP}: it has {there}")
