"""Sensors: a task that waits for something in a store. Deferred, so that waiting costs no worker."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from airflow.sdk import BaseSensorOperator, Context, PokeReturnValue

from recovery.airflow.hook import CheckbackHook
from recovery.airflow.triggers import CrashTrigger, InDoubtTrigger, MessageTrigger, StoreTrigger


class StoreSensor(BaseSensorOperator):
    """What the sensors share: which store, and that the trigger's event is the task's result."""

    template_fields: Sequence[str] = ("path", "connection")

    def __init__(
        self, *, path: str = "", connection: str | None = None, deferrable: bool = True, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.path, self.connection, self.deferrable = path, connection, deferrable

    def store_path(self) -> str:
        """The store's directory, from the argument or from the connection."""
        return self.path or CheckbackHook(self.connection or CheckbackHook.default_conn_name).path

    @abc.abstractmethod
    def trigger(self) -> StoreTrigger | MessageTrigger:
        """What the triggerer waits with."""

    @abc.abstractmethod
    def look(self) -> dict[str, Any] | None:
        """What a sensor that is not deferred finds at this moment; None when there is nothing."""

    def execute(self, context: Context) -> Any:
        """Defer, or poke as other sensors do."""
        if not self.deferrable:
            return super().execute(context)
        timeout = timedelta(seconds=self.timeout)
        return self.defer(trigger=self.trigger(), method_name="execute_complete", timeout=timeout)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """The event, for the tasks behind."""
        return event

    def poke(self, context: Context) -> PokeReturnValue | bool:
        """One look."""
        found = self.look()
        return PokeReturnValue(found is not None, found)


class CrashSensor(StoreSensor):
    """Waits until a store has crashed."""

    def trigger(self) -> CrashTrigger:
        """See StoreSensor."""
        return CrashTrigger(path=self.store_path(), poll_s=self.poke_interval, once=True)

    def look(self) -> dict[str, Any] | None:
        """What the trigger finds."""
        return self.trigger().look()


class InDoubtSensor(StoreSensor):
    """Waits until a transaction has been in doubt for longer than `older_than_s`."""

    template_fields: Sequence[str] = (*StoreSensor.template_fields, "older_than_s")

    def __init__(self, *, older_than_s: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.older_than_s = older_than_s

    def trigger(self) -> InDoubtTrigger:
        """See StoreSensor."""
        older_than_s = float(self.older_than_s)
        return InDoubtTrigger(path=self.store_path(), older_than_s=older_than_s, poll_s=self.poke_interval, once=True)

    def look(self) -> dict[str, Any] | None:
        """What the trigger finds."""
        return self.trigger().look()


class MessageSensor(StoreSensor):
    """Waits until a message arrives on a topic, counted from when the task began (or from `starts`)."""

    template_fields: Sequence[str] = (*StoreSensor.template_fields, "topic")

    def __init__(self, *, topic: str, starts: dict[str, int] | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.topic, self.starts = topic, starts

    def trigger(self) -> MessageTrigger:
        """See StoreSensor. Where the queues end is fixed before the task defers: nothing falls between the two."""
        from recovery.jobs.tasks import queue_ends

        path = self.store_path()
        starts = queue_ends(path, self.topic) if self.starts is None else self.starts
        return MessageTrigger(path=path, topic=self.topic, starts=starts, poll_s=self.poke_interval, once=True)

    def look(self) -> dict[str, Any] | None:
        """What arrived; the first look of a task that has no `starts` only notes where the queues end."""
        from recovery.jobs.tasks import queue_ends

        ends = queue_ends(self.store_path(), self.topic)
        if self.starts is None:
            self.starts = ends
        news = {
            queue: [self.starts.get(queue, 0), end] for queue, end in ends.items() if end > self.starts.get(queue, 0)
        }
        return {"topic": self.topic, "queues": news} if news else None
