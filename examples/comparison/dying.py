"""A process that kills itself where its settings say: between the two halves of a purchase. No contender's own code."""

from __future__ import annotations

import os
import signal
from typing import Any

from examples.comparison.settings import settings


def die_at(point: str) -> None:
    """SIGKILL, when this is the point."""
    if settings().die == point:
        os.kill(os.getpid(), signal.SIGKILL)


def die_before_the_end(app: Any) -> None:
    """Of an application of checkback: after the COMMIT of the database, before the message is released."""
    if settings().die == "between":
        app.store.transactions.commit = lambda *_, **__: die_at("between")
