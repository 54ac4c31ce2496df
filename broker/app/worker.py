"""The handlers of an application at work in this process: threads for each group, and one event loop for all.

A group has one consumer, whose threads take turns to receive. An async handler runs in the loop, and a thread waits
for it. Stopping finishes what runs and gives the queues back; what is still running after the time that it is given is
delivered again to another process, and its effects happen once nevertheless.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Coroutine, Sequence
from concurrent import futures
from types import TracebackType
from typing import Any, Self

from broker import observing
from broker.app.delivery import DelayedDelivery
from broker.app.execution import Execution
from broker.app.handler_runs import HandlerRuns
from broker.app.handlers import HandlerGroup, HandlerHost
from broker.consuming.arguments import check_seconds
from broker.errors import BrokerError, StoreError, StoreFull, shown
from broker.log_fields import event
from broker.message import ReceivedMessage

GRACE_S = 30.0
_RECEIVE_S = 0.2  # how soon a thread notices that it is to stop
_FULL_S = 1.0  # between tries while the disk is full
_CANCEL_S = 2.0  # for what an async handler does when it is cancelled
_AGAIN_S = 0.1  # before a loop that raised runs again
_log = logging.getLogger("broker")


class HandlerLoop:
    """An event loop in a thread of its own, made when the first coroutine is to run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def wait(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Run a coroutine in the loop, and wait for it. Raises what it raises."""
        with self._lock:
            try:
                loop = self._loop or self._begin()
            except BaseException:
                coroutine.close()
                raise
        try:
            error = asyncio.run_coroutine_threadsafe(_error_of(coroutine), loop).result()
        except futures.CancelledError:
            coroutine.close()  # one that had not begun
            raise
        if error is not None:
            raise error

    def _begin(self) -> asyncio.AbstractEventLoop:
        """Start the loop. Where the system has no thread for it there is none: nobody waits for a loop that rests."""
        self._closing, loop = threading.Event(), asyncio.new_event_loop()
        thread = threading.Thread(target=_run_until, args=(self._closing, loop), name="checkback-loop", daemon=True)
        try:
            thread.start()
        except BaseException:
            loop.close()
            raise
        self._loop, self._thread = loop, thread
        return loop

    def close(self, last: Coroutine[Any, Any, Any] | None = None) -> None:
        """Cancel what still runs, run one `last` coroutine, and end the thread.

        A coroutine that blocks the loop, or goes on after it was cancelled, is left to the end of the process.
        """
        with self._lock:
            loop, thread, closing = self._loop, self._thread, self._closing
            self._loop = self._thread = None
        if loop is None or thread is None:
            if last is not None:
                last.close()
            return
        cancelling = asyncio.run_coroutine_threadsafe(_cancel_all(last), loop)
        has_ended = bool(futures.wait([cancelling], _CANCEL_S).done)
        closing.set()
        if not has_ended:
            text = "an async handler did not end %g s after it was cancelled: it goes on until the process ends"
            _log.warning(text, _CANCEL_S, extra=event("handler-loop"))
            return
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
        cancelling.result()


def _run_until(closing: threading.Event, loop: asyncio.AbstractEventLoop) -> None:
    """Run a loop for all handlers, also after one of them stopped it.

    A SystemExit leaves `run_forever` when a task raised it that a handler made; those who wait for the task get it.
    """
    while not closing.is_set():
        try:
            loop.run_forever()
        except BaseException as error:  # noqa: BLE001 - handlers wait for it
            _log.error("a task of an async handler raised %r", error, exc_info=error, extra=event("handler-loop"))
            closing.wait(_AGAIN_S)


async def _error_of(coroutine: Coroutine[Any, Any, Any]) -> BaseException | None:
    """What a coroutine raised. A SystemExit that left its task would end the loop under all other handlers."""
    try:
        await coroutine
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001 - the thread that waits for it raises it
        return error
    return None


async def _cancel_all(last: Coroutine[Any, Any, Any] | None) -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    if last is not None:
        await last


class GroupWorker:
    """One group's consumer in this process, and the threads that process its messages."""

    def __init__(self, app: HandlerHost, group: HandlerGroup, loop: HandlerLoop, runs: HandlerRuns | None) -> None:
        self._stopping = threading.Event()
        first = group.handlers[0]
        self.consumer = app.store.consumer(
            group.group, group.topics, tags=group.tags, ordered=first.ordered, start=first.start,
            max_retries=group.max_retries, retries_first=any(one.retry.first for one in group.handlers),
            processed=app.processed,
        )  # fmt: skip
        execution = Execution(app, group, self.consumer, loop, self._stopping, runs)
        self._process, self._processed = observing.handling(execution.run, group.group), app.processed
        self._turn, self._counting = threading.Lock(), threading.Lock()
        self.failure: BaseException | None = None
        self.handled = self.running = 0
        self._threads = [
            threading.Thread(target=self._work, name=f"checkback-{group.group}-{number}", daemon=True)
            for number in range(first.concurrency)
        ]
        try:
            for thread in self._threads:
                thread.start()
        except BaseException:  # no room for so many: those that run would go on, as would the consumer
            self.stop()
            self.join(threading.TIMEOUT_MAX)
            self.consumer.close()
            raise

    def _work(self) -> None:
        while not self._stopping.is_set():
            try:
                with self._turn:
                    message = None if self._stopping.is_set() else self.consumer.receive(_RECEIVE_S)
                if message is not None:
                    self._run(message)
            except StoreFull as error:
                _log.error(
                    "%s: what is in hand is settled when there is room",
                    error,
                    extra=event("store-full", group=self.consumer.group),
                )
                self._stopping.wait(_FULL_S)
            except BaseException as error:  # noqa: BLE001 - a thread that dies would process nothing any more
                self.failure = error
                self._stopping.set()
                return

    def _run(self, message: ReceivedMessage) -> None:
        with self._counting:
            self.running += 1
        try:
            self._processed.find_place()
            self._process(message)
        finally:
            with self._counting:
                self.running -= 1
                self.handled += 1

    def stop(self) -> None:
        """Receive nothing more."""
        self._stopping.set()

    def join(self, deadline_s: float) -> bool:
        """Wait for what runs, until a time of the monotonic clock; whether it is done."""
        for thread in self._threads:
            if thread.ident is not None:  # else it could not be started
                thread.join(min(max(0.0, deadline_s - time.monotonic()), threading.TIMEOUT_MAX))
        return not any(thread.is_alive() for thread in self._threads)


class Workers:
    """All groups of an application in this process. `with app.workers(): ...`, or `start` and `stop`."""

    def __init__(
        self, app: HandlerHost, groups: Sequence[HandlerGroup] | None = None, *, runs: HandlerRuns | None = None
    ) -> None:
        """`groups` are those that work here; None: all of the application. `runs` counts what their handlers do.

        Raises BrokerError for what are not groups and counts.
        """
        _check_groups(groups)
        if runs is not None and not isinstance(runs, HandlerRuns):
            raise BrokerError(f"runs= takes what counts the runs of handlers, HandlerRuns(), not {shown(runs)}")
        self._app, self._loop, self._runs = app, HandlerLoop(), runs
        self._wanted = groups
        self._groups: list[GroupWorker] = []
        self._delivery: DelayedDelivery | None = None

    def start(self) -> Self:
        """Open the application and start its threads; returns itself.

        Raises what `App.start` and `LiveStore.consumer` raise.
        """
        self._app.start()
        if self._app.engine is not None:
            self._app.processed.stay_in_place(self._app.engine)
        try:
            for group in self._app.groups if self._wanted is None else self._wanted:
                self._groups.append(GroupWorker(self._app, group, self._loop, self._runs))
            if not self._groups:
                self._delivery = DelayedDelivery(self._app.store)
        except BaseException:
            self.stop(0)
            raise
        return self

    @property
    def failure(self) -> BaseException | None:
        """Why the threads of a group ended by themselves; None while all is well."""
        return next((one.failure for one in self._groups if one.failure is not None), None)

    @property
    def handled(self) -> int:
        """How many messages were received and settled since `start`, repeated ones included; 0 after `stop`."""
        return sum(one.handled for one in self._groups)

    @property
    def running(self) -> int:
        """How many messages are being processed."""
        return sum(one.running for one in self._groups)

    def stop(self, grace_s: float = GRACE_S) -> bool:
        """Receive nothing more, finish what runs for up to `grace_s` seconds, give the queues back; True: all finished.

        What did not finish is delivered again. Leaving the `with` block calls it, and raises `failure`: StoreError for
        one that is not a BrokerError. Raises BrokerError for a `grace_s` that is not a time, and stops nothing then.
        """
        if grace_s is None:
            raise BrokerError(f"grace_s is a number of seconds from 0 on, not None: leave it out for {GRACE_S:g}")
        check_seconds("grace_s", grace_s, may_be_zero=True)
        for one in self._groups:
            one.stop()
        deadline_s = time.monotonic() + grace_s
        finished = [one.join(deadline_s) for one in self._groups]
        engine = self._app.async_engine
        self._loop.close(None if engine is None else engine.dispose())
        for one in self._groups:
            try:
                one.consumer.close()
            except BrokerError as error:
                _log.warning(
                    "a consumer was not closed cleanly: %s",
                    error,
                    extra=event("consumer-not-closed", group=one.consumer.group),
                )
        self._groups.clear()
        if self._delivery is not None:
            self._delivery.close()
            self._delivery = None
        return all(finished)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        failure = self.failure
        self.stop()
        if failure is not None and error is None:
            raise failure if isinstance(failure, BrokerError) else StoreError(f"a worker ended: {failure!r}")


def _check_groups(groups: object) -> None:
    """Raises BrokerError for what are not groups of handlers, the name of one among them."""
    if groups is None:
        return
    if not isinstance(groups, list | tuple) or not all(isinstance(one, HandlerGroup) for one in groups):
        step = "app.workers([one for one in app.groups if one.group == ...])"
        raise BrokerError(f"workers takes groups of handlers, as app.groups has them, not {shown(groups)}: {step}")
