"""OpenTelemetry spans of messages: sent, committed, received, processed, settled, in one trace across processes.

    from broker import telemetry

    telemetry.switch_on()                       # the application's tracer provider; or export_to(url) makes one
    store = broker.open("shop.store")           # producers and consumers that are made from now on have spans

A message carries the context of its `send` span in the property `traceparent` (W3C Trace Context), which its commit
repeats; so the span that ends it, in check-back's process too, links to it, and the span that processes it continues
its trace. Needs the extra `telemetry`. Nothing of it loads before `switch_on`.

OpenTelemetry: Semantic conventions for messaging spans, and for RocketMQ (1.30).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.telemetry.switch import export_to, processing, switch_off, switch_on

__all__ = ["export_to", "processing", "switch_off", "switch_on"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'broker.telemetry' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module("broker.telemetry.switch"), name)
    return value
