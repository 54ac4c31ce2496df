"""A limit on the time of what others do: a question is asked in a thread, and given up when its time is over.

    limit = TimeLimit("shop.orders:was_saved", seconds=10)
    limit.run(lambda: ask(message), key=commitlog_offset)      # its value, or TimedOut

Python cannot end a thread. One that hangs is left alone with its question; it costs its memory and whatever it holds.
Not more than four may hang at a time: then nothing more is asked until one of them comes back, or the process is
started again, and each answer says so. A question that still hangs is not asked a second time beside itself, so that
one bad order costs one thread and not four. What comes back too late is dropped: it will be asked again.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

from recovery.checkback.protocol import Answer, Outcome, Question, Resolver

ANSWER_WITHIN_S = 10.0  # one question to a callable or an endpoint
LEDGER_WITHIN_S = 60.0  # all questions of a batch to a ledger, whose own limits are far below it
ASKING_MOST_S = 60.0  # a batch of questions to one resolver: the others' turn comes
HANGING_MOST = 4
_DOWN_IN_A_ROW = 3

T = TypeVar("T")


class TimedOut(Exception):
    """What was asked took too long, or was not even asked; the text is the reason."""


class _Call:
    """One call, and whether somebody still waits for it."""

    def __init__(self, function: Callable[[], Any], key: Hashable) -> None:
        self.function, self.key = function, key
        self.done = threading.Event()
        self.value: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.value = self.function()
        except BaseException as error:  # noqa: BLE001 - it goes to the waiting thread
            self.error = error
        self.done.set()


class TimeLimit:
    """Runs functions one at a time, each in a thread that is left alone when it takes longer than `seconds`."""

    def __init__(self, name: str, seconds: float, *, hanging_most: int = HANGING_MOST) -> None:
        self.name, self.seconds, self._hanging_most = name, seconds, hanging_most
        self._hanging: dict[Hashable, _Call] = {}
        self._calls: queue.SimpleQueue[_Call] | None = None
        self._pid = os.getpid()

    def __del__(self) -> None:
        """The thread ends with the last who could ask: `put` of a SimpleQueue may be called from here."""
        if self._calls is not None:
            self._calls.put(_END)

    @property
    def hanging(self) -> int:
        """How many calls were given up and did not come back yet."""
        self._hanging = {key: call for key, call in self._hanging.items() if not call.done.is_set()}
        return len(self._hanging)

    def run(self, function: Callable[[], T], key: Hashable = None) -> T:
        """What the function returns or raises. Raises TimedOut when it takes too long, or others do, or for want of a
        thread."""
        if self._pid != os.getpid():  # a child has none of its parent's threads
            self._pid, self._calls, self._hanging = os.getpid(), None, {}
        if self.hanging and key in self._hanging:
            raise TimedOut(f"{self.name} was asked this before, and still did not come back")
        if len(self._hanging) >= self._hanging_most:
            text = f"{self.name} hangs: {len(self._hanging)} questions did not come back"
            raise TimedOut(f"{text}. It is asked again when one does, or when check-back is started again")
        call = _Call(function, key)
        if self._calls is None:
            self._calls = self._begin()
        self._calls.put(call)
        if not call.done.wait(self.seconds):
            self._calls.put(_END)  # the thread ends when it comes back
            self._calls = None
            self._hanging[key if key is not None else id(call)] = call
            raise TimedOut(f"{self.name} did not answer within {self.seconds:g} s")
        if call.error is not None:
            raise call.error
        value: T = call.value
        return value

    def _begin(self) -> queue.SimpleQueue[_Call]:
        """Calls for a new thread. Raises TimedOut where the system has none to give: then nobody was asked."""
        calls: queue.SimpleQueue[_Call] = queue.SimpleQueue()
        try:
            thread = threading.Thread(target=_work, args=(calls,), name=f"checkback-ask {self.name}", daemon=True)
            thread.start()
        except RuntimeError as error:
            raise TimedOut(f"{self.name} was not asked: {error}") from error
        return calls


_END = _Call(lambda: None, None)


def _work(calls: queue.SimpleQueue[_Call]) -> None:
    while (call := calls.get()) is not _END:
        call.run()
        del call  # its resolver, and the store of that, are not kept until the next question


class Bounded:
    """A resolver whose whole batch has a limit: for a ledger, whose database may leave a connection hanging."""

    def __init__(self, resolver: Resolver, seconds: float = LEDGER_WITHIN_S) -> None:
        self._resolver, self._limit = resolver, TimeLimit(repr(resolver), seconds)

    def __repr__(self) -> str:
        return repr(self._resolver)

    def ask(self, questions: Sequence[Question], now_ms: int) -> list[Answer]:
        """See Resolver."""
        try:
            return self._limit.run(lambda: self._resolver.ask(questions, now_ms))
        except TimedOut as error:
            return [Answer(Outcome.DOWN, str(error))] * len(questions)


def ask_each(
    questions: Sequence[Question], one: Callable[[Question], Answer], clock_s: Callable[[], float], name: str
) -> list[Answer]:
    """One answer after the other. After three without one, or when a batch takes too long, the rest is not asked.

    One alone says nothing about the others: an order may make its own question fail each time.
    """
    found: list[Answer] = []
    down, started = 0, clock_s()
    for question in questions:
        if down >= _DOWN_IN_A_ROW:
            found.append(Answer(Outcome.DOWN, found[-1].why))
        elif clock_s() - started > ASKING_MOST_S:
            text = f"not asked this time: {name} took {ASKING_MOST_S:g} s for {len(found)} others"
            found.append(Answer(Outcome.DOWN, text))
        else:
            found.append(one(question))
            down = down + 1 if found[-1].outcome is Outcome.DOWN else 0
    return found
