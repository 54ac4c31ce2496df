"""Wait for what comes by itself, and no longer than it may take."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from tests.backends.backend import Backend


def awaited(fact: Callable[[], object], seconds: float = 10.0) -> bool:
    """Whether something became true in time."""
    deadline = time.monotonic() + seconds
    while not fact():
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.02)
    return True


def comes_to(backend: Backend, delivered: Sequence[bytes], in_doubt: int = 0) -> bool:
    """Whether in time these orders are delivered, and so many half messages have no end.

    What is in doubt comes first: after that, what was not delivered never is. A real broker may check again before it
    knows of an end, and delivers once for each: docs/cluster.md, "delivered more than once".
    """

    def seen() -> list[bytes]:
        bodies = backend.delivered()
        return sorted(bodies if backend.name in ("embedded", "served") else set(bodies))

    return awaited(lambda: backend.in_doubt() == in_doubt, backend.soon_s) and awaited(
        lambda: seen() == sorted(delivered), backend.soon_s
    )
