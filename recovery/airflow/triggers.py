"""What Airflow's triggerer waits for: a store crashed, transactions in doubt for too long, a message arrived.

Each is an event trigger: it starts DAGs through an asset's watcher, and with `once=True` it ends a deferral. They look
every few seconds, in a thread, so that a disk that is slow, or hangs, does not hold up the triggers of others.
"""

from __future__ import annotations

import abc
import asyncio
import hashlib
import time
from collections.abc import AsyncIterator
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from broker.errors import BrokerError
from recovery.airflow.arguments import by_queue, check, plain
from recovery.airflow.operating.looks import in_a_thread

if TYPE_CHECKING:
    from recovery.jobs.due import DueWatch

_POSITIONS = "positions:"
_REPORTED = "reported"
_DUE_AGAIN_S, _DUE_AGAIN_LOOKS = 60.0, 4


class StoreTrigger(BaseEventTrigger):
    """Looks at one store every `poll_s` seconds; what `look` finds is an event when it is not what was found before.

    As an asset's watcher it keeps that in Airflow's asset state: a triggerer that starts again reports nothing twice.

    A store that cannot be read at the moment is looked at again: a trigger that fails takes its DAG's start with it.
    """

    again_s: float | None = None  # after so long the same finding is reported again; None: never

    def __init__(self, *, path: str, poll_s: float = 2.0, once: bool = False) -> None:
        super().__init__()
        self.path, self.poll_s, self.once = plain(path), poll_s, once
        check(self, "path", "poll_s")

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The class, and the arguments that make it again in the triggerer."""
        kind = type(self)
        return f"{kind.__module__}.{kind.__qualname__}", self.arguments()

    def arguments(self) -> dict[str, Any]:
        """The arguments of `__init__`."""
        return {"path": self.path, "poll_s": self.poll_s, "once": self.once}

    @abc.abstractmethod
    def look(self) -> dict[str, Any] | None:
        """What there is to tell at this moment; None when there is nothing. Runs in a thread."""

    def key(self, found: dict[str, Any]) -> Any:
        """What makes one finding another than the last."""
        return sorted(found.items())

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """One event for each thing found; with `once` the first alone."""
        reported = await self._reported()
        while True:
            found = await self._look_again()
            if found is not None and self._is_news(found, reported):
                reported = {"key": repr(self.key(found)), "at_s": time.time()}
                yield TriggerEvent({"path": self.path, **found})
                if self.once:
                    return
                await self._remember(reported)
            elif found is None and reported and self._reads:
                reported = {}
                await self._remember(reported)
            await asyncio.sleep(self.poll_s)

    def _is_news(self, found: dict[str, Any], reported: dict[str, Any]) -> bool:
        if reported.get("key") != repr(self.key(found)):
            return True
        passed_s = time.time() - reported["at_s"]  # below zero where the clock was ahead
        return self.again_s is not None and not 0 <= passed_s < self.again_s

    async def _reported(self) -> dict[str, Any]:
        """What was reported last, and when; kept with the asset, so that a triggerer that starts again knows it.

        Of several assets each must have heard of it: another report does less harm than none.
        """
        notes = [] if self.once else await _noted(self, _REPORTED)
        found = notes[0] if notes and all(one == notes[0] for one in notes) else {}
        return found if isinstance(found, dict) and "key" in found else {}

    async def _remember(self, reported: dict[str, Any]) -> None:
        await _note(self, _REPORTED, reported)

    async def _look_again(self) -> dict[str, Any] | None:
        try:
            found = await in_a_thread(self.look, self.path)
            self._reads = True
            return found
        except (BrokerError, OSError) as error:
            self._reads = False
            self.log.warning("%s: %s", self.path, error)
            return None

    _reads = True  # whether the last look could be taken


class CrashTrigger(StoreTrigger):
    """A store crashed: its file `abort` is there, and no process has the store open.

    While it stays so, it is reported again every `again_s` seconds, counted from the last report or from when a person
    rejected the recovery. A store that another program wrote is looked at with `take_over` alone: whether its broker
    runs cannot be seen for sure.
    """

    _rejected_s = 0.0  # when a person last rejected the recovery of this crash

    def __init__(
        self,
        *,
        path: str,
        take_over: bool = False,
        again_s: float | None = None,
        poll_s: float = 2.0,
        once: bool = False,
    ) -> None:
        super().__init__(path=path, poll_s=poll_s, once=once)
        self.take_over, self.again_s = take_over, again_s
        check(self, "again_s")

    def arguments(self) -> dict[str, Any]:
        """The arguments of `__init__`."""
        return super().arguments() | {"take_over": self.take_over, "again_s": self.again_s}

    def look(self) -> dict[str, Any] | None:
        """The abort file, and since when it is there."""
        from recovery.jobs.recovering import crashed, rejection

        found = crashed(self.path, foreign=self.take_over)
        rejected = rejection(self.path) if found else None
        self._rejected_s = rejected["rejected_ms"] / 1000 if rejected else 0.0
        return found

    def _is_news(self, found: dict[str, Any], reported: dict[str, Any]) -> bool:
        is_answered = self.again_s is not None and 0 <= time.time() - self._rejected_s < self.again_s
        return not is_answered and super()._is_news(found, reported)


class InDoubtTrigger(StoreTrigger):
    """Transactions are in doubt for longer than `older_than_s`; parked ones do not count, they wait for a person."""

    def __init__(self, *, path: str, older_than_s: float, poll_s: float = 10.0, once: bool = False) -> None:
        super().__init__(path=path, poll_s=poll_s, once=once)
        self.older_than_s = older_than_s
        check(self, "older_than_s")
        self.older_than_s = float(older_than_s)

    def arguments(self) -> dict[str, Any]:
        """The arguments of `__init__`."""
        return super().arguments() | {"older_than_s": self.older_than_s}

    def look(self) -> dict[str, Any] | None:
        """How many there are, and the oldest."""
        from recovery.jobs.tasks import in_doubt_longer

        return in_doubt_longer(self.path, self.older_than_s, time.time_ns() // 1_000_000)

    def key(self, found: dict[str, Any]) -> Any:
        """The same one, still waiting, is not news."""
        return found["commitlog_offset"]


class DueTrigger(StoreTrigger):
    """A transaction in doubt is due to be queried: it starts check-back.

    `policy` are the rules by topic that check-back follows; None when another process knows them (a connection, a
    catalog in a database): then each transaction in doubt counts as due. While the oldest stays so it is reported
    again after a minute or four looks: a round may have failed. One round does all that is due, so that what becomes
    due while it waits for a worker needs no other. While a process leads the check-back of the store, what it asks
    for is not reported: that process does it.

    The gauges of the store are sent with each look: `recovery.airflow.operating.metrics`.
    """

    def __init__(
        self,
        *,
        path: str,
        policy: dict[str, Any] | None = None,
        poll_s: float = 30.0,
        metrics_as: str = "",
        once: bool = False,
    ) -> None:
        super().__init__(path=path, poll_s=poll_s, once=once)
        self.policy, self.metrics_as = policy, metrics_as
        self._watch: DueWatch | None = None
        self.again_s = max(_DUE_AGAIN_S, _DUE_AGAIN_LOOKS * poll_s)

    def arguments(self) -> dict[str, Any]:
        """The arguments of `__init__`."""
        return super().arguments() | {"policy": self.policy, "metrics_as": self.metrics_as}

    def look(self) -> dict[str, Any] | None:
        """How many are due, and the oldest of them."""
        from recovery.airflow.operating.metrics import send_gauges
        from recovery.jobs.due import DueWatch

        self._watch = self._watch or DueWatch(self.path)
        found = self._watch.look(time.time_ns() // 1_000_000, self.policy)
        if self.metrics_as:
            send_gauges(self.metrics_as, found.gauges)
        return found.event

    def key(self, found: dict[str, Any]) -> Any:
        """The oldest that is due."""
        return found["commitlog_offset"]


class MessageTrigger(BaseEventTrigger):
    """Messages arrived on a topic. An event names all that came since the last one: the range of each queue.

    `starts` is where each queue is read from; without it what is there by now counts as known. As an asset's watcher it
    remembers its positions in Airflow's asset state, so that nothing that came while no triggerer ran is missed; after
    a kill an event may come twice. Where a queue ends before its position, since another store took the place of the
    one that was, or a power cut took its end, what comes from the next look on is an event again.
    """

    def __init__(
        self,
        *,
        path: str,
        topic: str,
        starts: dict[str, int] | None = None,
        poll_s: float = 1.0,
        once: bool = False,
    ) -> None:
        super().__init__()
        self.path, self.topic, self.poll_s, self.once = plain(path), topic, poll_s, once
        self.starts = by_queue(starts)
        check(self, "path", "topic", "starts", "poll_s")

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The class, and the arguments that make it again in the triggerer."""
        names = ("path", "topic", "starts", "poll_s", "once")
        return f"{type(self).__module__}.MessageTrigger", {name: getattr(self, name) for name in names}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """One event for each batch of messages; with `once` the first alone."""
        known = self.starts if self.starts is not None else await self._remembered()
        while True:
            ends = await self._ends()
            if ends is not None:
                if known is None:
                    known = ends
                    await self._remember(known)
                elif behind := {queue: end for queue, end in ends.items() if end < known.get(queue, 0)}:
                    known = {**known, **behind}
                    await self._remember(known)
                news = {queue: [known.get(queue, 0), end] for queue, end in ends.items() if end > known.get(queue, 0)}
                if news:
                    count = sum(end - begin for begin, end in news.values())
                    yield TriggerEvent({"path": self.path, "topic": self.topic, "queues": news, "count": count})
                    if self.once:
                        return
                    known = {**known, **ends}
                    await self._remember(known)
            await asyncio.sleep(self.poll_s)

    async def _ends(self) -> dict[str, int] | None:
        """The next queue offset of each queue; None when the store cannot be read at the moment."""
        from recovery.jobs.tasks import queue_ends

        try:
            return await in_a_thread(partial(queue_ends, self.path, self.topic), self.path)
        except (BrokerError, OSError) as error:
            self.log.warning("%s: %s", self.path, error)
            return None

    async def _remembered(self) -> dict[str, int] | None:
        """The positions in the asset's state; None without an asset, or before the first event.

        Of several assets the least: an event may come twice, and none is missed.
        """
        known: dict[str, int] = {}
        notes = [one for one in await _noted(self, _POSITIONS + self.topic) if isinstance(one, dict)]
        for queue, end in (pair for one in notes for pair in one.items()):
            known[str(queue)] = min(known.get(str(queue), int(end)), int(end))
        return known if notes else None

    async def _remember(self, known: dict[str, int]) -> None:
        await _note(self, _POSITIONS + self.topic, known)


# What a watcher knows, in Airflow's asset state


def _states_of(trigger: BaseEventTrigger) -> list[Any]:
    """Where a watcher keeps what it knows: with each of its assets; nowhere outside one, and before Airflow 3.3.

    DAG files that watch the same thing have one trigger in Airflow, which is then of several assets. To it Airflow does
    not say which, and its own accessor raises ValueError: without a state the trigger would end at each start.
    """
    state = getattr(trigger, "asset_state_store", None)
    each = [*getattr(state, "_by_name", {}).values(), *getattr(state, "_by_uri", {}).values()]
    return each or ([] if state is None else [state])


def _key(trigger: BaseEventTrigger, what: str) -> str:
    """The name of a note: an asset may have watchers of several stores, and of several kinds."""
    facts = f"{type(trigger).__name__} {getattr(trigger, 'path', '')}"
    return f"{what}@{hashlib.sha256(facts.encode()).hexdigest()[:16]}"


async def _noted(trigger: BaseEventTrigger, what: str) -> list[Any]:
    """A note in the state of each asset; None where there is none."""
    return [await state.aget(_key(trigger, what)) for state in _states_of(trigger)]


async def _note(trigger: BaseEventTrigger, what: str, value: dict[str, Any]) -> None:
    for state in _states_of(trigger):
        await state.aset(_key(trigger, what), value)
