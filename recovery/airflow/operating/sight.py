"""Whether a process sees the stores' directories: the page's, the triggerer's and the workers' must, all of them.

SightOperator(task_id="worker", stores={"shop": {"path": "/srv/shop.store"}})                       by a worker
SightOperator(task_id="triggerer", stores={"billing": {"connection": "billing"}}, deferrable=True)  by the triggerer

One task looks at all stores: fifty of them cost two tasks, not a hundred.
"""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from typing import Any

from airflow.sdk import BaseOperator, Context
from airflow.triggers.base import BaseTrigger, TriggerEvent

from broker.errors import BrokerError
from recovery.airflow.operating.looks import in_a_thread
from recovery.airflow.versions import AirflowException
from recovery.hanging import DoesNotAnswer, within_time


def why_not_seen(path: str) -> str:
    """Why this process cannot work on the store at a path; empty when it can.

    One whose disk hangs keeps nobody from the others: it is not waited for.
    """
    try:
        return within_time(path, partial(look_at, path))
    except DoesNotAnswer as error:
        return str(error)


def look_at(path: str) -> str:
    """As `why_not_seen`, however long it takes. A store that another program wrote is only read: that is enough."""
    import broker
    from broker.store.disk.paths import Paths

    try:
        broker.open(path, read_only=True).close()
    except (BrokerError, OSError) as error:
        return str(error)
    if os.path.exists(Paths(path).store_json) and not os.access(path, os.W_OK | os.X_OK):
        return f"{path}: user {os.getuid()} may not write there"
    return ""


def sight_of(paths: Mapping[str, str]) -> dict[str, Any]:
    """What this process sees: `host`, `uid`, and in `stores` by name why a store is not seen, empty when it is."""
    stores = {name: why_not_seen(path) for name, path in paths.items()}
    return {"host": socket.gethostname(), "uid": os.getuid(), "stores": stores}


class SightTrigger(BaseTrigger):
    """One look by the triggerer; `paths` by the names of the stores."""

    def __init__(self, paths: Mapping[str, str]) -> None:
        super().__init__()
        self.paths = dict(paths)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The class, and the arguments that make it again in the triggerer."""
        return f"{type(self).__module__}.{type(self).__qualname__}", {"paths": self.paths}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """What it sees."""
        yield TriggerEvent(await in_a_thread(partial(sight_of, self.paths), "the stores"))


class SightOperator(BaseOperator):
    """One look by a worker, or, deferrable, by the triggerer; the result is that of `sight_of`.

    `stores` has for each name a `path`, or a `connection` that has one.
    """

    template_fields: Sequence[str] = ()

    def __init__(
        self, *, stores: Mapping[str, Mapping[str, str | None]], deferrable: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.stores, self.deferrable = {name: dict(place) for name, place in stores.items()}, deferrable

    def execute(self, context: Context) -> dict[str, Any]:
        """What is seen. A store that is not seen does not fail the task."""
        paths, unknown = self._paths()
        if self.deferrable:
            self.defer(trigger=SightTrigger(paths), method_name="execute_complete", kwargs={"unknown": unknown})
        return self.execute_complete(context, sight_of(paths), unknown)

    def execute_complete(
        self, context: Context, event: dict[str, Any], unknown: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """What was seen, with the stores whose connection the worker could not read."""
        return {**event, "stores": {**event["stores"], **(unknown or {})}}

    def _paths(self) -> tuple[dict[str, str], dict[str, str]]:
        """Where the stores are, and why that is not known."""
        from recovery.airflow.hook import CheckbackHook

        paths, unknown = dict[str, str](), dict[str, str]()
        for name, place in self.stores.items():
            try:
                paths[name] = place.get("path") or CheckbackHook(place.get("connection") or "").path
            except (AirflowException, BrokerError) as error:
                unknown[name] = str(error)
        return paths, unknown
