"""Whether a process sees the directory of a store: the page's, the triggerer's and the workers' must, all of them.

SightOperator(task_id="worker", path="/srv/shop.store")                       as a worker sees it
SightOperator(task_id="triggerer", path="/srv/shop.store", deferrable=True)   as the triggerer does
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from typing import Any

from airflow.sdk import BaseOperator, Context
from airflow.triggers.base import BaseTrigger, TriggerEvent

from broker.errors import BrokerError


def sight_of(path: str) -> dict[str, Any]:
    """What this process sees at a path: `why` is empty when there is a store that it can read and write."""
    import broker

    facts = {"host": socket.gethostname(), "uid": os.getuid(), "path": path}
    try:
        broker.open(path, read_only=True).close()
    except (BrokerError, OSError) as error:
        return {**facts, "why": str(error)}
    why = "" if os.access(path, os.W_OK | os.X_OK) else f"{path}: user {os.getuid()} may not write there"
    return {**facts, "why": why}


class SightTrigger(BaseTrigger):
    """One look by the triggerer."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The class, and the arguments that make it again in the triggerer."""
        return f"{type(self).__module__}.{type(self).__qualname__}", {"path": self.path}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """What it sees."""
        yield TriggerEvent(await asyncio.to_thread(sight_of, self.path))


class SightOperator(BaseOperator):
    """One look by a worker, or, deferrable, by the triggerer; the result says which process looked, and what it saw."""

    def __init__(
        self, *, path: str = "", connection: str | None = None, deferrable: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.path, self.connection, self.deferrable = path, connection, deferrable

    def execute(self, context: Context) -> dict[str, Any] | None:
        """What is seen; never an error."""
        path = self.path
        if not path:
            from recovery.airflow.hook import CheckbackHook

            path = CheckbackHook(self.connection or CheckbackHook.default_conn_name).path
        if self.deferrable:
            self.defer(trigger=SightTrigger(path), method_name="execute_complete")
        return sight_of(path)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """What the triggerer saw."""
        return event
