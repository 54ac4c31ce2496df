"""The clock that delays are waited for with; and all tests of the room run with both engines."""

from __future__ import annotations

import pytest

from broker.testing.pytest_plugin import checkback_clock

__all__ = ["checkback_clock"]


@pytest.fixture(autouse=True)
def _both(each_engine: str) -> None:
    """New stores have the engine."""
