"""An interrupt (Ctrl-C, a time limit of a worker) at any line of a flush: other threads and `close` go on."""

from __future__ import annotations

import linecache
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import broker
from broker.store.disk.append_lock import AppendLock
from broker.store.read.layout import StoreLayout
from broker.store.write import sync
from recovery.verify import verify
from tests.producer.delivered import delivered

WAIT_S = 5


def is_interrupted(call: Callable[[], object], line: int) -> bool:
    """Interrupt a call at a line of the flush, counted from 1 as they are run; False when it has fewer."""
    left = line

    def trace(frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal left
        if frame.f_code.co_filename != sync.__file__:
            return None
        source = linecache.getline(sync.__file__, frame.f_lineno)
        if event == "line" and "with self._mutex" not in source:  # no interrupt comes between its last line and its end
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def test_an_interrupt_at_any_line_of_a_flush_holds_up_nobody(tmp_path: Path) -> None:
    """Neither the threads that waited beside it, nor the next one, nor the end."""
    store = broker.open(tmp_path / "store", layout=StoreLayout.small())

    def send() -> None:
        store.append(broker.Message("orders", b"a"))

    line = 1
    while True:
        beside = [threading.Thread(target=send, daemon=True) for _ in range(3)]
        for thread in beside:
            thread.start()
        was_interrupted = is_interrupted(send, line)
        beside.append(threading.Thread(target=send, daemon=True))
        beside[-1].start()
        for thread in beside:
            thread.join(WAIT_S)
            assert not thread.is_alive(), line
        if not was_interrupted and line > 20:
            break
        line += 1
    end = threading.Thread(target=store.close, daemon=True)
    end.start()
    end.join(WAIT_S)
    assert not end.is_alive()


def test_a_consumer_that_an_interrupt_left_with_the_lock_closes(tmp_path: Path) -> None:
    """Its worker waits for that lock, and `close` for the worker."""
    with broker.open(tmp_path / "store", layout=StoreLayout.small()) as store:
        consumer = store.consumer("billing", "orders")
        held, ended = consumer._positions.cells.lock, threading.Event()

        def close() -> None:
            held.acquire()  # as an interrupt between two lines of an acknowledgement leaves it
            consumer.close()
            ended.set()

        threading.Thread(target=close, daemon=True).start()
        if not ended.wait(WAIT_S):
            held._threads = threading.RLock()  # else the end of the store waits, too
            pytest.fail("it never closed")


@pytest.mark.parametrize("where", ["_mutex", "lock"])
def test_a_signal_handler_that_sends_inside_a_flush_is_refused(tmp_path: Path, where: str) -> None:
    """It waited for the thread that it interrupted, which is its own, and another thread led meanwhile."""
    raised: list[BaseException] = []
    with broker.open(tmp_path / "store", layout=broker.StoreLayout.small()) as store:
        syncer = store.writer.syncer

        def interrupted() -> None:
            with getattr(syncer, where):
                syncer._leader = -1
                try:
                    store.append(broker.Message("orders", b"x"))
                except broker.StoreError as error:
                    raised.append(error)
                syncer._leader = 0

        thread = threading.Thread(target=interrupted, daemon=True)
        thread.start()
        thread.join(10)
        assert "already inside an append" in str(raised)
        store.append(broker.Message("orders", b"y"))


def test_a_signal_handler_that_closes_the_store_inside_a_flush_and_exits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`store.close(); sys.exit(0)` for SIGTERM: the process ended with a traceback of a released memoryview."""
    store = broker.open(tmp_path / "store", layout=StoreLayout.small())

    real, mine = store.writer.syncer._force, threading.current_thread()
    monkeypatch.setattr(store.writer.upkeep, "_sync", lambda: None)  # which may have flushed it before

    def interrupted() -> None:
        if threading.current_thread() is not mine:
            return real()
        monkeypatch.undo()
        store.close()
        raise SystemExit(0)

    def send() -> None:
        while True:  # the store's own thread may flush a message before it does
            store.append(broker.Message("orders", b"a"))

    monkeypatch.setattr(store.writer.syncer, "_force", interrupted)
    with pytest.raises(SystemExit):
        send()
    with broker.open(tmp_path / "store") as again:
        assert set(delivered(again)) == {b"a"}


def test_a_signal_handler_that_closes_a_lock_as_it_is_released_and_exits(tmp_path: Path) -> None:
    """As `store.close()` does it. The process ended with a traceback: cannot release un-acquired lock."""
    lock, signals = AppendLock(str(tmp_path / "lock")), [True]

    def interrupted() -> bool:
        if signals and signals.pop():
            lock.give_back()
            lock.close()
            raise SystemExit(0)
        return False

    lock.hold_across_appends(interrupted)
    with pytest.raises(SystemExit), lock:
        pass


@pytest.mark.parametrize("place", ["allocate", "at"])
def test_an_append_in_whose_middle_a_signal_handler_closes_the_store_writes_nothing_more(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It went on without the lock, in maps that it made again, where another process may append by then."""
    path, layout = tmp_path / "store", StoreLayout.small()
    store = broker.open(path, layout=layout)
    log = store.writer.appender.log
    real: Callable[[int], Any] = getattr(log, place)

    def interrupted(position: int) -> Any:
        if store.writer.append_lock.is_mine:
            store.close()
            with broker.open(path) as other:
                other.append(broker.Message("orders", b"theirs"))
        return real(position)

    monkeypatch.setattr(log, place, interrupted)
    with pytest.raises(broker.StoreError, match="closed"):
        store.append(broker.Message("orders", b"ours" * 20))
    with broker.open(path) as other:
        assert delivered(other) == [b"theirs"]
    assert not verify(path).findings.counts


def test_a_signal_handler_that_closes_the_store_where_other_threads_wait_for_this_one_ends(tmp_path: Path) -> None:
    """`close` waited for the store's own thread, which waited for the one that was interrupted: without an end."""
    store = broker.open(tmp_path / "store", layout=StoreLayout.small())
    store.append(broker.Message("orders", b"a"))
    raised: list[BaseException] = []

    def send() -> None:
        try:
            store.append(broker.Message("orders", b"b"))
        except BaseException as error:  # noqa: BLE001 - of a store that was closed
            raised.append(error)

    other = threading.Thread(target=send, daemon=True)
    with store.writer.syncer._mutex:  # where SIGTERM came
        other.start()
        time.sleep(0.3)  # until the store's own thread waits, too
        with pytest.raises(broker.StoreError, match="already inside an append"):
            store.close()
    other.join(10)
    assert not other.is_alive()
    with broker.open(tmp_path / "store") as again:
        assert delivered(again) == [b"a", b"b"]
    assert all(isinstance(one, broker.StoreError) for one in raised), raised
