"""UPDATE_BROKER_CONFIG: the few settings that can change while the server runs; nothing is written to a file.

RocketMQ: AdminBrokerProcessor.updateBrokerConfig (5.3.3), which rewrites its configuration file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from broker.remoting.codes import ResponseCode
from broker.remoting.command import RemotingCommand
from broker.server.context import Refused, Request, ServerContext
from broker.server.requests.stats import broker_config


def _truth(value: str) -> bool:
    return {"true": True, "false": False}[value.lower()]


def _count(value: str) -> int:
    if (number := int(value)) < 1:
        raise ValueError
    return number


def _seconds(value: str) -> float:
    return _count(value) / 1000


class _ServerSetting(NamedTuple):
    """A setting by its name in ServerSettings, and how its text is read."""

    name: str
    parse: Callable[[str], Any]
    takes: str


_SETTINGS = {
    "autoCreateTopicEnable": _ServerSetting("auto_create", _truth, "true or false"),
    "enablePropertyFilter": _ServerSetting("sql92", _truth, "true or false"),
    "transactionCheckInterval": _ServerSetting("check_interval_s", _seconds, "a number of milliseconds above 0"),
    "transactionTimeOut": _ServerSetting("transaction_timeout_s", _seconds, "a number of milliseconds above 0"),
    "transactionCheckMax": _ServerSetting("check_max", _count, "a number above 0"),
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
        setting = _SETTINGS[name]
        try:
            changes[setting.name] = setting.parse(value)
        except (KeyError, ValueError, OverflowError):  # the last: of milliseconds beyond what a float holds
            raise Refused(ResponseCode.INVALID_PARAMETER, f"{name} is {setting.takes}, not {value!r:.40}") from None
    if changes:
        context.settings = replace(context.settings, **changes)
    return request.answer()
