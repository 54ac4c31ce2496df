"""A clock that is set back delays nothing that is due."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import broker
from broker.store.clock import StoreClock
from broker.store.read.layout import StoreLayout
from broker.testing.fixtures import FakeClock

LAYOUT = StoreLayout(1 << 20, 60_000, 24_000, 20_000, 1000, 4000)
HOUR_MS = 3_600_000


@dataclass
class Clocks:
    """Both clocks of a machine, by hand."""

    wall_ns: int = 1_700_000_000_000_000_000
    monotonic_ns: int = 5_000_000_000
    newest_ms: int = 0

    def clock(self) -> StoreClock:
        return StoreClock(lambda: self.newest_ms, wall_ns=lambda: self.wall_ns, monotonic_ns=lambda: self.monotonic_ns)

    def goes_on(self, ms: int) -> None:
        self.wall_ns += ms * 1_000_000
        self.monotonic_ns += ms * 1_000_000

    def is_set(self, ms: int) -> None:
        self.wall_ns += ms * 1_000_000


def test_it_goes_on_where_it_was_when_the_wall_clock_is_set_back() -> None:
    clocks = Clocks()
    clock = clocks.clock()
    began = clock.now_ms()
    assert began == clocks.wall_ns // 1_000_000
    clocks.is_set(-HOUR_MS)
    assert clock.now_ms() == began
    clocks.goes_on(1500)
    assert clock.now_ms() == began + 1500
    assert clocks.clock().now_ms() == began + 1500 - HOUR_MS  # of another process, which has seen nothing


def test_it_follows_a_clock_that_is_set_forward_and_stays_there() -> None:
    clocks = Clocks()
    clock = clocks.clock()
    began = clock.now_ms()
    clocks.is_set(HOUR_MS)
    assert clock.now_ms() == began + HOUR_MS
    clocks.is_set(-HOUR_MS)
    clocks.goes_on(10)
    assert clock.now_ms() == clock.seen_ms == began + HOUR_MS + 10


def test_a_pause_between_its_two_readings_is_no_clock_that_was_set_forward() -> None:
    """A thread that waits for a processor there put the store's clock ahead for as long as the process lived."""
    clocks = Clocks()
    pauses_ms = iter([0, 0, 500, 0, 0, 0])

    def paused(reading_ns: int) -> int:
        clocks.goes_on(next(pauses_ms))
        return reading_ns

    clock = StoreClock(wall_ns=lambda: paused(clocks.wall_ns), monotonic_ns=lambda: paused(clocks.monotonic_ns))
    for _ in range(2):
        clock.now_ms()
    assert clock.now_ms() == clocks.wall_ns // 1_000_000


def test_a_process_that_begins_later_goes_on_where_the_log_ends() -> None:
    clocks = Clocks()
    clocks.newest_ms = clocks.wall_ns // 1_000_000 + HOUR_MS
    clock = clocks.clock()
    began = clock.now_ms()
    assert began == clocks.newest_ms
    clocks.goes_on(1000)
    assert clock.now_ms() == began + 1000
    assert clock.now_ms(at_least_ms=began + HOUR_MS) == began + HOUR_MS


def test_a_retry_comes_though_the_clock_was_set_back(tmp_path: Path) -> None:
    with broker.open(tmp_path, layout=LAYOUT) as store, FakeClock() as clock:
        store.append(broker.Message("orders", b"x", keys=["k"]))
        with store.consumer("billing", "orders", retry_delay_level=1) as consumer:  # 1 s
            message = consumer.receive(timeout_s=10)
            assert message is not None
            clock.advance(-3600)
            consumer.retry(message)
            again = consumer.receive(timeout_s=20)
            assert again is not None
            assert again.body == b"x"


def test_a_retry_comes_to_a_process_that_begins_after_that(tmp_path: Path) -> None:
    with broker.open(tmp_path, layout=LAYOUT) as store:
        store.append(broker.Message("orders", b"x", keys=["k"]))
        with store.consumer("billing", "orders", retry_delay_level=1) as consumer:
            message = consumer.receive(timeout_s=10)
            assert message is not None
            consumer.retry(message)
    with FakeClock() as clock:
        clock.advance(-3600)
        with broker.open(tmp_path) as store, store.consumer("billing", "orders") as consumer:
            assert consumer.receive(timeout_s=20) is not None


def test_store_times_go_on_and_what_is_delayed_is_not_delivered_early(tmp_path: Path) -> None:
    """Both ends use one clock: else a record that is stored after the clock was set back would be due at once."""
    with broker.open(tmp_path, layout=LAYOUT) as store, FakeClock() as clock:
        first = store.append(broker.Message("orders", b"x"))
        clock.advance(7200)
        ahead_ms = store.writer.clock.now_ms()
        second = store.append(broker.Message("orders", b"x"))
        assert second.store_timestamp_ms >= ahead_ms > first.store_timestamp_ms
        clock.advance(-7200)
        third = store.append(broker.Message("orders", b"x"))
        assert second.store_timestamp_ms <= third.store_timestamp_ms < ahead_ms + 60_000


def test_a_delay_of_any_length_counts_from_the_send_though_the_clock_was_set_back(tmp_path: Path) -> None:
    """It was a time by the wall clock, and compared with the store's, which was ahead: each was over at the first look.

    Nobody receives while the clock is ahead, so that only the delay that is sent later waits.
    """
    with broker.open(tmp_path, layout=LAYOUT) as store, FakeClock() as clock:
        store.append(broker.Message("orders", b"x"))
        clock.advance(7200)
        store.writer.clock.now_ms()  # as a thread of the store looks, and each record's time is a look
        clock.advance(-7200)
        store.producer("shop").send(broker.Message("later", b"x"), delay=3)
        sent_s = time.monotonic()
        with store.consumer("billing", "later") as consumer:
            assert consumer.receive(timeout_s=20) is not None
        assert time.monotonic() - sent_s > 2.5
