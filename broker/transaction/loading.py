"""Find the implementations of the transaction service and of the check listener by entry point.

    checkback.transaction_service    called with a TransactionalMessageBridge, returns a TransactionalMessageService
    checkback.check_listener         called without arguments, returns a CheckListener

RocketMQ: ServiceProvider.loadClass, BrokerController.initialTransaction (5.3.3).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from broker.errors import BrokerError
from broker.transaction.service import CheckListener, TransactionalMessageBridge, TransactionalMessageService

SERVICES, LISTENERS = "checkback.transaction_service", "checkback.check_listener"


def _state_table(bridge: TransactionalMessageBridge) -> TransactionalMessageService:
    from broker.transaction.statetable import StateTableService

    return StateTableService(bridge)


def _half_op(bridge: TransactionalMessageBridge) -> TransactionalMessageService:
    from broker.transaction.half_op import HalfOpService

    return HalfOpService(bridge)


def _connected() -> CheckListener:
    from broker.transaction.connected import ConnectedProducers

    return ConnectedProducers()


# Ours, for a source tree that was never installed; pyproject.toml names the same. PyInstaller, which packs what is
# imported, sees no module that is named in a text.
_OWN: dict[tuple[str, str], Callable[..., Any]] = {
    (SERVICES, "state-table"): _state_table,
    (SERVICES, "half-op"): _half_op,
    (LISTENERS, "connected"): _connected,
}


def load_service(name: str, bridge: TransactionalMessageBridge) -> TransactionalMessageService:
    """The service of this name, for one store. Raises BrokerError when there is none, or it is not a service."""
    found = _load(SERVICES, name)(bridge)
    if not isinstance(found, TransactionalMessageService):
        raise BrokerError(f"{name!r} in {SERVICES} makes a {type(found).__name__}, no TransactionalMessageService")
    return found


def load_listener(name: str) -> CheckListener:
    """The check listener of this name. Raises BrokerError when there is none, or when it is not a listener."""
    found = _load(LISTENERS, name)()
    if not isinstance(found, CheckListener):
        raise BrokerError(f"{name!r} in {LISTENERS} makes a {type(found).__name__}, no CheckListener")
    return found


def _load(group: str, name: str) -> Callable[..., Any]:
    own = _OWN.get((group, name))
    if own is not None:
        return own
    from importlib.metadata import entry_points  # it takes as long as half of `broker.open`'s other imports

    installed = entry_points(group=group)
    for entry in installed:
        if entry.name == name:
            return entry.load()  # type: ignore[no-any-return]
    there = sorted({entry.name for entry in installed} | {own for kind, own in _OWN if kind == group})
    raise BrokerError(f"there is no {name!r} in the entry point group {group}: it has {', '.join(there)}")
