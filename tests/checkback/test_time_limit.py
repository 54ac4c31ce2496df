"""The limit on the time of what others do: what comes through it, what is left alone, and what it leaves behind."""

from __future__ import annotations

import os
import threading
import time
import weakref
from contextlib import suppress

import pytest

from recovery.checkback.time_limit import TimedOut, TimeLimit
from tests.checkback.room import refuse_threads

LIMIT_S = 1.0  # far more than a call takes that does not hang, on a busy machine, too
PATIENCE_S = 30.0  # of a test, on a machine that does other things, too


def test_a_value_and_an_error_come_through() -> None:
    limit = TimeLimit("x", PATIENCE_S)
    assert limit.run(lambda: 4711) == 4711
    with pytest.raises(ZeroDivisionError):
        limit.run(lambda: 1 // 0)


def test_a_forked_child_asks_with_a_thread_of_its_own() -> None:
    """That of its parent is not there: each question would take its whole time."""
    limit = TimeLimit("x", PATIENCE_S)
    limit.run(lambda: None)
    child = os.fork()
    if child == 0:
        limit.seconds = LIMIT_S
        answer = 1
        with suppress(BaseException):
            answer = limit.run(lambda: 0)
        os._exit(answer)
    assert os.waitpid(child, 0)[1] == 0


def test_its_thread_ends_with_it_and_keeps_nothing_of_a_question() -> None:
    """Each round over another store left a thread behind, and the thread the store of its last question."""
    limit, released = TimeLimit("ends with it", PATIENCE_S), threading.Event()

    class Asked:
        def ask(self) -> int:
            return 4711

    asked = Asked()
    weakref.finalize(asked, released.set)
    assert limit.run(asked.ask) == 4711
    del asked
    assert released.wait(PATIENCE_S)
    (thread,) = [one for one in threading.enumerate() if one.name == "checkback-ask ends with it"]
    del limit
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_a_question_that_hangs_is_not_asked_beside_itself(gate: threading.Event) -> None:
    limit = TimeLimit("x", LIMIT_S)
    for text in ("did not answer within", "still did not come back", "still did not come back"):
        with pytest.raises(TimedOut, match=text):
            limit.run(lambda: gate.wait(PATIENCE_S), key=1)
    assert limit.hanging == 1
    assert limit.run(lambda: "another", key=2) == "another"


def test_only_so_many_hang_and_then_nothing_is_asked_until_one_comes_back(gate: threading.Event) -> None:
    limit = TimeLimit("x", LIMIT_S / 4, hanging_most=3)
    for key in range(3):
        with pytest.raises(TimedOut, match="did not answer within"):
            limit.run(lambda: gate.wait(PATIENCE_S), key=key)
    before = threading.active_count()
    with pytest.raises(TimedOut, match="3 questions did not come back"):
        limit.run(lambda: 1, key=4)
    assert threading.active_count() == before
    gate.set()
    started = time.monotonic()
    while limit.hanging and time.monotonic() - started < PATIENCE_S:
        time.sleep(0.01)
    assert limit.run(lambda: 1, key=4) == 1


def test_a_thread_that_the_system_does_not_give_is_not_a_call_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = TimeLimit("x", LIMIT_S)
    with monkeypatch.context() as patch:
        refuse_threads(patch)
        with pytest.raises(TimedOut, match="x was not asked: can't start new thread"):
            limit.run(lambda: 1)
    assert limit.run(lambda: 4711) == 4711
