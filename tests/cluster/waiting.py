"""Wait for what comes by itself, and no longer than it may take."""

from __future__ import annotations

import time
from collections.abc import Callable


def awaited(fact: Callable[[], object], seconds: float = 10.0) -> bool:
    """Whether something became true in time."""
    deadline = time.monotonic() + seconds
    while not fact():
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.02)
    return True
