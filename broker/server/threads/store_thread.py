"""The thread that writes to the store for all connections, and the one that waits for the disk for all of them.

    requests ──► append, one after the other ──► fsync for all that were appended meanwhile ──► answers

So the event loop never waits for a lock of the store or for an fsync, and many senders cost one. Where no lock is to be
waited for, the event loop appends itself (`do`), which saves two changes of threads.
RocketMQ: SendMessageExecutor, CommitLog.GroupCommitService (5.3.3).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from broker import compiled

_SLOW_S, _AVOIDED = 0.02, 5  # so such writes keep the event loop at most a sixth of its time
_BATCH, _BATCH_S = 64, 0.005  # pieces of work that are taken together, and after how long the others wait for a turn


class Stored(NamedTuple):
    """A result that rests on the log being durable up to an offset."""

    value: Any
    end: int
    waits_for_slave: bool = True  # where sends do at all. RocketMQ: MessageExt.isWaitStoreMsgOK


Work = Callable[[], Any]
Done = Callable[[Any], None]  # of the result, or of the exception
Deliver = Callable[[list[tuple[Done, Any]]], None]


class _Inbox:
    """Work for one thread; `take` waits, and returns nothing when it is over."""

    def __init__(self) -> None:
        self._wake = threading.Condition()
        self._held: list[Any] = []
        self._is_over = False

    def put(self, one: Any) -> None:
        with self._wake:
            self._held.append(one)
            self._wake.notify()

    def take(self) -> list[Any]:
        with self._wake:
            while not (self._held or self._is_over):
                self._wake.wait()
            taken, self._held = self._held, []
        return taken

    def end(self) -> None:
        with self._wake:
            self._is_over = True
            self._wake.notify()

    def __len__(self) -> int:
        return len(self._held)


class _Turns:
    """The same of work by who asked for it: a piece of each, by turns."""

    def __init__(self) -> None:
        self._wake = threading.Condition()
        self._held: dict[Any, deque[Any]] = {}
        self._count, self._is_over = 0, False

    def put(self, of: Any, one: Any) -> None:
        with self._wake:
            self._held.setdefault(of, deque()).append(one)
            self._count += 1
            self._wake.notify()

    def take(self) -> list[tuple[Any, Any]]:
        """Some of it, each piece with who asked for it."""
        taken = list[tuple[Any, Any]]()
        with self._wake:
            while not (self._count or self._is_over):
                self._wake.wait()
            while self._held and len(taken) < _BATCH:
                of, waiting = next(iter(self._held.items()))
                taken.append((of, waiting.popleft()))
                del self._held[of]
                if waiting:  # behind all others
                    self._held[of] = waiting
            self._count -= len(taken)
        return taken

    def give_back(self, taken: list[tuple[Any, Any]]) -> None:
        """What was taken last and not done."""
        with self._wake:
            for of, one in reversed(taken):
                self._held.setdefault(of, deque()).appendleft(one)
            self._held = {of: self._held[of] for of in (*dict(taken), *self._held)}
            self._count += len(taken)

    def end(self) -> None:
        with self._wake:
            self._is_over = True
            self._wake.notify()

    def __len__(self) -> int:
        return self._count


class StoreThread:
    """Does the work of each who asks in the order in which it comes, and that of several by turns.

    `deliver` gets results, many at once, in one of the two threads.
    """

    def __init__(self, settle: Callable[[int], None], deliver: Deliver, *, waits: bool) -> None:
        """`settle(end)` waits for the disk; without `waits` nothing does (sync mode os)."""
        self._settle, self._deliver, self._waits = settle, deliver, waits
        self._work, self._appended = _Turns(), _Inbox()
        self._submitted = self._finished = 0  # each counted by one thread
        self._slow_until_s = 0.0
        self._threads = [
            threading.Thread(target=target, name=f"checkback-serve-{name}", daemon=True)
            for name, target in (("append", self._append), ("fsync", self._fsync))
        ]
        try:
            for thread in self._threads:
                thread.start()
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        return len(self._work) + len(self._appended)

    def submit(self, work: Work, done: Done, *, of: Any = None) -> None:
        """Do something; `done` gets what it returned, once that is durable, or what it raised. For one thread.

        `of` is who asks for it, such as a connection.
        """
        self._submitted += 1
        self._work.put(of, (work, done))

    def do(
        self, work: Callable[..., Any], done: Done, at_once: Callable[..., Any], *arguments: Any, of: Any = None
    ) -> None:
        """The same with `work(*arguments)`; in the caller's thread where `at_once(*arguments)` does it.

        That returns None, and has done nothing, where `work` would wait. What was submitted is not overtaken. When the
        memory of the store's files was slow to write, as with a disk that cannot keep up, the work of a while goes to
        the thread.
        """
        result = self._at_once(at_once, *arguments)
        if result is None:
            self.submit(partial(work, *arguments), done, of=of)
        elif not isinstance(result, Stored):
            done(result)
        elif self._waits:
            self._appended.put([(done, result)])
        else:
            done(result.value)

    def _at_once(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """What it returns or raises; None when it is to be submitted."""
        begun_s = time.monotonic()
        if compiled.fast is None or self._submitted != self._finished or begun_s < self._slow_until_s:
            return None  # only the C module stores without waiting
        result: Any
        try:
            result = work(*arguments)
        except Exception as error:  # noqa: BLE001 - it is the answer to this request
            result = error
        now_s = time.monotonic()
        if now_s - begun_s > _SLOW_S:
            self._slow_until_s = now_s + _AVOIDED * (now_s - begun_s)
        return result

    def close(self) -> None:
        """Finish what was submitted, and end."""
        inboxes: tuple[_Turns | _Inbox, ...] = self._work, self._appended
        for inbox, thread in zip(inboxes, self._threads, strict=True):
            inbox.end()
            if thread.ident is not None:  # else it could not be started
                thread.join()

    def _append(self) -> None:
        while batch := self._work.take():
            results, waiting, until_s = [], [], time.monotonic() + _BATCH_S
            for number, (_, (work, done)) in enumerate(batch, 1):
                try:
                    result = work()
                except Exception as error:  # noqa: BLE001 - it is the answer to this request, and of no other
                    result = error
                if isinstance(result, Stored) and self._waits:
                    waiting.append((done, result))
                else:
                    results.append((done, result.value if isinstance(result, Stored) else result))
                if time.monotonic() > until_s:
                    self._work.give_back(batch[number:])
                    break
            self._finished += number
            if waiting:
                self._appended.put(waiting)
            if results:
                self._deliver(results)

    def _fsync(self) -> None:
        while groups := self._appended.take():
            waiting = [one for group in groups for one in group]
            fault: Exception | None = None
            try:
                self._settle(max(stored.end for _, stored in waiting))
            except Exception as error:  # noqa: BLE001 - it is the answer to all of them
                fault = error
            self._deliver([(done, stored.value if fault is None else fault) for done, stored in waiting])
