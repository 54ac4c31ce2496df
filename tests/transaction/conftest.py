"""The clock that delays are waited for with."""

from __future__ import annotations

from broker.testing.pytest_plugin import checkback_clock

__all__ = ["checkback_clock"]
