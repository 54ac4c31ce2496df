"""An event loop in a thread of its own: the network of a client, whichever threads and loops use it."""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from broker.errors import ClusterError

_T = TypeVar("_T")
_CLOSE_S = 10.0


class LoopThread:
    """Runs coroutines for threads that wait for them. A forked child cannot use its parent's."""

    def __init__(self, name: str) -> None:
        self._pid, self._is_closed = os.getpid(), False
        self._beginning = threading.Lock()  # what begins, begins before the loop is closed, and is ended with it
        self.loop = asyncio.new_event_loop()
        self._pool = ThreadPoolExecutor(thread_name_prefix=name)
        self.loop.set_default_executor(self._pool)
        self._apart = ThreadPoolExecutor(thread_name_prefix=f"{name}-check")
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def check(self) -> None:
        """Raises ClusterError in a forked child, and after `close`."""
        if self._pid != os.getpid():
            text = f"the connection to the cluster belongs to process {self._pid}, of which this one was forked"
            raise ClusterError(f"{text}: call broker.connect here")
        if self._is_closed:
            raise ClusterError("the connection to the cluster was closed")

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """The value of a coroutine, which bounds its own waiting. From any thread but the loop's."""
        try:
            return self.start(work).result()
        except CancelledError:
            raise ClusterError("the connection to the cluster was closed meanwhile", was_sent=True) from None

    def start(self, work: Coroutine[Any, Any, _T]) -> Future[_T]:
        """Begin a coroutine."""
        try:
            self.check()  # first without the lock, which a forked child may have as another thread held it
            if threading.current_thread() is self._thread:
                raise ClusterError("the cluster's own thread cannot wait for itself: call from another one")
            with self._beginning:
                self.check()
                return asyncio.run_coroutine_threadsafe(work, self.loop)
        except ClusterError:
            work.close()
            raise

    async def apart(self, function: Callable[..., _T], *arguments: object) -> _T:
        """Call what may hang, as an application's resolver: not in the threads that names are resolved in."""
        called = partial(contextvars.copy_context().run, function, *arguments)
        return await self.loop.run_in_executor(self._apart, called)

    def close(self) -> None:
        """End the loop and what runs in it."""
        if self._pid != os.getpid():
            return
        with self._beginning:
            if self._is_closed:
                return
            self._is_closed = True
            ended = asyncio.run_coroutine_threadsafe(_cancel_all(), self.loop)
        ended.result(_CLOSE_S)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(_CLOSE_S)
        waiting = threading.Thread(target=self._end_threads, daemon=True)
        waiting.start()
        waiting.join(_CLOSE_S / 2)  # a resolver that hangs is left alone
        if not self._thread.is_alive():
            self.loop.close()

    def _end_threads(self) -> None:
        for pool in (self._pool, self._apart):
            pool.shutdown()


async def _cancel_all() -> None:
    own = asyncio.current_task()
    others = [task for task in asyncio.all_tasks() if task is not own]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
