"""UPDATE_BROKER_CONFIG: the few settings that can change while the server runs; nothing is written to a file.

RocketMQ: AdminBrokerProcessor.updateBrokerConfig (5.3.3), which rewrites its configuration file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from broker.remoting.codes import ResponseCode
from broker.remoting.command import RemotingCommand
from broker.server.context import Refused, Request, ServerContext
from broker.server.requests.stats import broker_config


def _seconds(value: str) -> float:
    return int(value) / 1000


def _truth(value: str) -> bool:
    return value.lower() == "true"


_SETTINGS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "autoCreateTopicEnable": ("auto_create", _truth),
    "enablePropertyFilter": ("sql92", _truth),
    "transactionCheckInterval": ("check_interval_s", _seconds),
    "transactionTimeOut": ("transaction_timeout_s", _seconds),
    "transactionCheckMax": ("check_max", int),
}


def update_config(context: ServerContext, request: Request) -> RemotingCommand:
    """Change what can be changed, all of it or nothing. A setting that has the value already is not a change."""
    held = broker_config(context)
    changes: dict[str, Any] = {}
    for line in request.command.body.decode("utf-8", "replace").splitlines():
        name, equals, value = (part.strip() for part in line.partition("="))
        if not name or name.startswith("#") or (equals and held.get(name) == value):
            continue
        if name not in _SETTINGS:
            text = f"{name} cannot be changed here: one of {', '.join(_SETTINGS)} can"
            raise Refused(ResponseCode.INVALID_PARAMETER, text)
        ours, parse = _SETTINGS[name]
        try:
            changes[ours] = parse(value)
        except (ValueError, OverflowError):  # the second: of milliseconds beyond what a float holds
            raise Refused(ResponseCode.INVALID_PARAMETER, f"{name} is a number, not {value!r:.40}") from None
    if changes:
        context.settings = replace(context.settings, **changes)
    return request.answer()
