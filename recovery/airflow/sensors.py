"""Sensors: a task that waits for something in a store.

With `deferrable=True`, or where `[operators] default_deferrable` of Airflow says so, waiting costs no worker.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from airflow.sdk import Context

from recovery.airflow.arguments import by_queue, check, plain
from recovery.airflow.hook import CheckbackHook
from recovery.airflow.settings import BadSettings
from recovery.airflow.triggers import CrashTrigger, InDoubtTrigger, MessageTrigger, StoreTrigger
from recovery.airflow.versions import AirflowFailException, BaseSensorOperator, PokeReturnValue, conf


class StoreSensor(BaseSensorOperator):
    """What the sensors share: which store, and that the trigger's event is the task's result."""

    template_fields: Sequence[str] = ("path", "connection")

    def __init__(
        self, *, path: str = "", connection: str | None = None, deferrable: bool | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.path, self.connection = plain(path), connection
        check(self, "path", "connection")
        default = conf.getboolean("operators", "default_deferrable", fallback=False)
        self.deferrable = default if deferrable is None else deferrable

    def pre_execute(self, context: Context) -> None:
        """What was rendered is checked before the task waits. Raises AirflowFailException."""
        try:
            check(self, is_rendered=True)
        except BadSettings as error:
            raise AirflowFailException(str(error)) from None

    def store_path(self) -> str:
        """The store's directory, from the argument or from the connection."""
        return self.path or CheckbackHook(self.connection or CheckbackHook.default_conn_name).path

    @abc.abstractmethod
    def trigger(self) -> StoreTrigger | MessageTrigger:
        """What the triggerer waits with."""

    def begin(self, context: Context) -> None:
        """What is to be done once at the start of each attempt, and after each reschedule."""

    @abc.abstractmethod
    def look(self) -> dict[str, Any] | None:
        """What a sensor that is not deferred finds at this moment; None when there is nothing."""

    def execute(self, context: Context) -> Any:
        """Defer, or poke as other sensors do. Raises NotAStore for a wrong path: no crash is ever seen there."""
        from broker.store.disk.files import Disk
        from broker.store.read.detect import check_is_store

        check_is_store(self.store_path(), Disk())
        self.begin(context)
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

    def __init__(self, *, older_than_s: float | str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.older_than_s = older_than_s
        check(self, "older_than_s")

    def trigger(self) -> InDoubtTrigger:
        """See StoreSensor."""
        older_than_s = float(self.older_than_s)
        return InDoubtTrigger(path=self.store_path(), older_than_s=older_than_s, poll_s=self.poke_interval, once=True)

    def look(self) -> dict[str, Any] | None:
        """What the trigger finds."""
        return self.trigger().look()


class MessageSensor(StoreSensor):
    """Waits until a message arrives on a topic, counted from when the task first began (or from `starts`).

    Where the queues ended then is kept in the task's own state, so that neither a reschedule nor a retry loses what
    came between.
    """

    template_fields: Sequence[str] = (*StoreSensor.template_fields, "topic")

    def __init__(self, *, topic: str, starts: dict[str, int] | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.topic, self.starts = topic, by_queue(starts)
        check(self, "topic", "starts")

    def begin(self, context: Context) -> None:
        """Note where the queues end, before the task waits: nothing falls between the two."""
        if self.starts is not None:
            return
        from recovery.jobs.tasks import queue_ends

        state, key = context.get("task_state_store"), f"starts:{self.topic}"
        noted = None if state is None else state.get(key)
        self.starts = noted if isinstance(noted, dict) else queue_ends(self.store_path(), self.topic)
        if state is not None and noted is None:
            state.set(key, self.starts)

    def trigger(self) -> MessageTrigger:
        """See StoreSensor."""
        starts, poll_s = self.starts or {}, self.poke_interval
        return MessageTrigger(path=self.store_path(), topic=self.topic, starts=starts, poll_s=poll_s, once=True)

    def look(self) -> dict[str, Any] | None:
        """What arrived since the start."""
        from recovery.jobs.tasks import queue_ends

        ends = queue_ends(self.store_path(), self.topic)
        if self.starts is None:  # nothing called `begin`
            self.starts = ends
        news = {
            queue: [self.starts.get(queue, 0), end] for queue, end in ends.items() if end > self.starts.get(queue, 0)
        }
        return {"topic": self.topic, "queues": news} if news else None
