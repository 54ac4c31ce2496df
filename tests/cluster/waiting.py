"""Wait for what comes by itself, and no longer than it may take."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from broker.cluster.network.channels import Channels
from broker.remoting.codes import RequestCode
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


def wait_less(patch: pytest.MonkeyPatch, seconds: float, is_meant: Callable[[str, RequestCode], bool]) -> None:
    """A limit for the calls that are meant, by address and code, where they have none of their own.

    The others keep theirs: on a busy machine a name server may take longer, and nothing is sent without it.
    """
    request = Channels.request

    async def limited(
        self: Channels, address: str, code: RequestCode, *words: Any, timeout_s: float | None = None, **named: Any
    ) -> Any:
        limit_s = seconds if timeout_s is None and is_meant(address, code) else timeout_s
        return await request(self, address, code, *words, timeout_s=limit_s, **named)

    patch.setattr(Channels, "request", limited)
