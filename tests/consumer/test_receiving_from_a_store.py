"""What only a consumer of a store on this machine does: fencing, durability, damage, forks."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

import broker
from broker.consumer import Consumer
from broker.consuming.group.membership import Membership
from broker.consuming.group.offset_export import SCHEDULE_GROUP
from broker.consuming.group.positions import Positions
from broker.consuming.reading import fetch
from broker.consuming.schedule import Schedule
from broker.consuming.tags import Selection
from broker.consuming.window import Window
from broker.format import properties as names
from broker.format.topics import SCHEDULE_TOPIC
from broker.live import LiveStore
from broker.log_fields import fields_of
from broker.store.disk.files import Disk
from broker.store.write.pending_record import PendingRecord, draft
from broker.testing.crash_disk import SMALL

WAIT_S = 20
DEAD, QUICKER = 999, 1000  # numbers of members


def bodies(consumer: Consumer, count: int) -> list[str]:
    """The next messages, acknowledged."""
    received = []
    for _ in range(count):
        message = consumer.receive(WAIT_S)
        assert message is not None, f"only {received}"
        received.append(message.body.decode())
        assert consumer.ack(message)
    return received


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("verb", [Consumer.ack, Consumer.retry])
def test_a_member_that_is_silent_for_too_long_loses_its_queues_and_its_say(
    checkback_store: LiveStore,
    monkeypatch: pytest.MonkeyPatch,
    verb: Callable[[Consumer, broker.ReceivedMessage], bool],
    *,
    ordered: bool,
) -> None:
    """Fencing: what it acknowledges or gives back afterwards moves nothing, and the message was given to another."""
    checkback_store.append(broker.Message("orders", b"a"))
    with checkback_store.consumer("billing", "orders", ordered=ordered) as hung:
        message = hung.receive(WAIT_S)
        assert message is not None
        hung._keeper._stop.set()  # its thread stands still, as in a process that is stopped
        hung._keeper._thread.join()
        hung._positions.cells.beat(hung._member.place, 0)
        monkeypatch.setattr("broker.consuming.group.membership.SILENT_MS", 1000)
        with checkback_store.consumer("billing", "orders", ordered=ordered) as other:
            assert bodies(other, 1) == ["a"]
            assert not verb(hung, message)
            assert other.positions()["orders", 0] == 1


@pytest.mark.parametrize("ordered", [False, True])
def test_a_member_that_was_silent_for_too_long_hands_out_nothing_that_it_had_read(
    checkback_store: LiveStore, monkeypatch: pytest.MonkeyPatch, *, ordered: bool
) -> None:
    """Another one went on in its queues: it would process an older message behind a newer one."""
    for number in range(8):
        checkback_store.append(broker.Message("orders", b"%d" % number), queue_id=number % 4)
    with checkback_store.consumer("billing", "orders", ordered=ordered) as hung:
        bodies(hung, 4)
        hung._keeper._stop.set()  # its thread stands still, as in a process that is stopped
        hung._keeper._thread.join()
        hung._positions.cells.beat(hung._member.place, 0)
        monkeypatch.setattr("broker.consuming.group.membership.SILENT_MS", 1000)
        with checkback_store.consumer("billing", "orders", ordered=ordered) as other:
            assert sorted(bodies(other, 4)) == ["4", "5", "6", "7"]
            assert hung.receive_now() is None
        hung._keeper.tick()
        checkback_store.append(broker.Message("orders", b"8"))
        assert bodies(hung, 1) == ["8"]


def test_a_consumer_that_was_dropped_leaves_its_group(
    checkback_store: LiveStore, caplog: pytest.LogCaptureFixture
) -> None:
    """A function that makes one at each call, or a cell of a notebook that runs again."""
    for number in range(8):
        checkback_store.append(broker.Message("orders", b"%d" % number), queue_id=number % 4)
    threads = []
    for _ in range(3):
        dropped = checkback_store.consumer("billing", "orders")
        assert dropped.receive(WAIT_S) is not None
        threads.append(dropped._keeper._thread)
    del dropped
    with checkback_store.consumer("billing", "orders") as consumer:
        assert sorted(bodies(consumer, 8)) == [str(number) for number in range(8)]
    for thread in threads:
        thread.join(WAIT_S)
    assert [fields_of(record).get("event") for record in caplog.records].count("consumer-dropped") == 3


def test_nothing_is_seen_before_it_is_durable(tmp_path: object) -> None:
    """A power cut takes back nothing that a consumer saw."""
    with broker.open(f"{tmp_path}/store", layout=SMALL) as store:
        store.append(broker.Message("orders", b"a"))
        made = store.writer.appender.append([_draft(store)])
        window = Window(0)
        assert [at for at, _ in fetch(store, "orders", 0, window, Selection(), 32)] == [0]
        store.writer.settle(made[-1].end)
        assert [at for at, _ in fetch(store, "orders", 0, window, Selection(), 32)] == [1]


def test_what_a_killed_producer_did_not_force_is_forced_by_the_consumer(tmp_path: object) -> None:
    """No message waits for the next send."""
    with broker.open(f"{tmp_path}/store", layout=SMALL) as store:
        store.writer.appender.append([_draft(store)])
        with store.consumer("billing", "orders") as consumer:
            assert bodies(consumer, 1) == ["x"]


def _draft(store: LiveStore) -> object:
    from broker.store.write.pending_record import draft

    if store.topic("orders") is None:
        store.create_topic("orders")
    return draft("orders", b"x", {}, queue_id=0, born_timestamp_ms=0)


def test_an_idle_consumer_hardly_uses_the_processor(checkback_store: LiveStore) -> None:
    """It wakes within milliseconds and still sleeps nearly always."""
    with checkback_store.consumer("billing", "orders") as consumer:
        before, started = time.process_time(), time.monotonic()
        assert consumer.receive(1.0) is None
        assert time.process_time() - before < 0.15 * (time.monotonic() - started)


def test_a_forked_child_is_told_to_open_its_own(checkback_store: LiveStore) -> None:
    with checkback_store.consumer("billing", "orders") as consumer:
        child = os.fork()
        if not child:
            try:
                consumer.receive_now()
            except broker.StoreError as error:
                os._exit(0 if "forked" in str(error) else 1)
            os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
        checkback_store.append(broker.Message("orders", b"a"))
        assert bodies(consumer, 1) == ["a"]


def test_a_store_that_was_closed_first_is_said_and_no_harm(tmp_path: object) -> None:
    store = broker.open(f"{tmp_path}/store", layout=SMALL, sync="os")
    store.append(broker.Message("orders", b"a"))
    consumer = store.consumer("billing", "orders")
    assert bodies(consumer, 1) == ["a"]
    store.close()
    with pytest.raises(broker.BrokerError, match="closed"):
        consumer.receive(WAIT_S)
    consumer.close()
    with broker.open(f"{tmp_path}/store") as again, again.consumer("billing", "orders") as other:
        assert other.positions()["orders", 0] == 1


def test_a_consumer_that_cannot_begin_leaves_no_member_behind(checkback_store: LiveStore) -> None:
    """It would have queues for as long as its heartbeat counts, and a place as long as its process lives."""
    for queue_id in range(4):
        checkback_store.append(broker.Message("orders", b"%d" % queue_id), queue_id=queue_id)
    groups = Path(checkback_store.path, "config", "subscriptionGroup.json")
    groups.write_text("{")
    for _ in range(3):
        with pytest.raises(broker.CorruptStore, match="subscriptionGroup"):
            checkback_store.consumer("billing", "orders")
    groups.unlink()
    with checkback_store.consumer("billing", "orders") as consumer:
        assert sorted(bodies(consumer, 4)) == ["0", "1", "2", "3"]


def test_a_background_thread_that_fails_is_said_whatever_it_raised(checkback_store: LiveStore) -> None:
    """As where the system has no more threads for the first append of a process: each receive would wait forever."""
    with checkback_store.consumer("billing", "orders") as consumer:

        def raises(*_: object) -> None:
            raise RuntimeError("can't start new thread")

        consumer._keeper._schedule.deliver = raises  # type: ignore[assignment, method-assign]
        consumer._keeper._thread.join(WAIT_S)
        with pytest.raises(broker.StoreError, match=r"can't start new thread.*open it again"):
            consumer.receive(WAIT_S)


def test_what_is_whole_before_a_damaged_message_is_handed_out(tmp_path: object) -> None:
    """Then the damage is said, and never passed over."""
    with broker.open(f"{tmp_path}/store", layout=SMALL, sync="os") as store:
        for body in (b"a", b"b", b"c"):
            placed = store.append(broker.Message("orders", body))
        view, at = store.writer.appender.log.at(placed.commitlog_offset - 20)
        view[at] ^= 0xFF  # in the record before the last
        with store.consumer("billing", "orders") as consumer:
            assert bodies(consumer, 1) == ["a"]
            for _ in range(2):
                with pytest.raises(broker.CorruptStore):
                    consumer.receive(WAIT_S)
            assert consumer.positions()["orders", 0] == 1


def test_the_directories_are_looked_at_once_for_a_block(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for each message: a stat takes as long as a record."""
    looks: list[str] = []
    entry = Disk.entry
    monkeypatch.setattr(Disk, "entry", lambda disk, path: looks.append(path) or entry(disk, path))  # type: ignore[func-returns-value]
    with broker.open(f"{tmp_path}/store", layout=SMALL, sync="os") as store:
        for number in range(33):
            store.append(broker.Message("orders", str(number).encode()))
        counts = []
        for limit in (1, 1, 32):  # the first also learns which files there are
            looks.clear()
            assert len(fetch(store, "orders", 0, Window(0), Selection(), limit)) == limit
            counts.append(len(looks))
        assert counts[1] == counts[2] <= 5, looks


@pytest.mark.parametrize("timeout_s", [None, 0.0, 1.0])
def test_a_closed_consumer_says_so(checkback_store: LiveStore, timeout_s: float | None) -> None:
    """A loop around `receive(1.0)` would never end, and never wait."""
    consumer = checkback_store.consumer("billing", "orders")
    consumer.close()
    with pytest.raises(broker.StoreError, match="was closed"):
        consumer.receive(timeout_s)  # type: ignore[arg-type]
    with pytest.raises(broker.StoreError, match="was closed"):
        consumer.positions()


@pytest.mark.parametrize("is_async", [False, True])
def test_a_loop_ends_where_another_thread_closes_the_consumer_as_it_looks(
    checkback_store: LiveStore, monkeypatch: pytest.MonkeyPatch, is_async: bool
) -> None:
    consumer = checkback_store.consumer("billing", "orders")
    check = consumer._check

    def closed_first() -> None:
        consumer.close()
        check()

    async def consume() -> list[broker.ReceivedMessage]:
        return [message async for message in consumer]

    monkeypatch.setattr(consumer, "_check", closed_first)
    assert (asyncio.run(consume()) if is_async else list(consumer)) == []


# Two who take over at the same moment from a member that died


def test_of_two_members_that_take_a_dead_ones_queue_the_second_leaves_it(checkback_store: LiveStore) -> None:
    """Both saw the dead owner: whoever comes second would make void what the first has handed out by then."""
    checkback_store.append(broker.Message("orders", b"a"))
    with checkback_store.consumer("billing", "orders") as consumer:
        consumer._keeper.stop()
        leases, cells, queue_id = consumer._leases, consumer._positions.cells, consumer.queues[0][1]
        cell = cells.find("billing", "orders", queue_id)
        assert cell is not None
        leases.release()
        with cells.lock:
            cells.give(cell, DEAD, 5)

        def lives(_number: int, _place: int) -> bool:
            with cells.lock:
                cells.give(cell, QUICKER, 6)
            return False

        consumer._member.lives = lives  # type: ignore[method-assign]
        leases._take(cell, "orders", queue_id, has_clients=False)
        assert ("orders", queue_id) not in consumer.queues
        assert cells.owner(cell) == (QUICKER, 6)


@pytest.fixture
def schedule(checkback_store: LiveStore) -> Iterator[Schedule]:
    """With a message that is due, and no consumer that delivers it."""
    properties = {names.REAL_TOPIC: "orders", names.REAL_QID: "0", names.DELAY: "1"}
    checkback_store.writer.append([draft(SCHEDULE_TOPIC, b"late", properties, queue_id=0, born_timestamp_ms=1)])
    positions = Positions(checkback_store)
    member = Membership(positions.cells, SCHEDULE_GROUP, (SCHEDULE_TOPIC,))
    yield Schedule(checkback_store, positions, member)
    member.leave()
    positions.close()


def test_of_two_that_take_a_dead_ones_schedule_the_second_leaves_it(
    schedule: Schedule, checkback_store: LiveStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells, later_ms = schedule._cells, checkback_store.writer.clock.now_ms() + 2000
    assert schedule._has_lease()
    cell = schedule._lease_cell
    assert cell is not None
    with cells.lock:
        cells.give(cell, DEAD, 5)

    def lives(_number: int, _place: int) -> bool:
        with cells.lock:
            cells.give(cell, QUICKER, 6)
        return False

    monkeypatch.setattr(schedule._member, "lives", lives)
    assert schedule.deliver(later_ms) == 0
    assert cells.owner(cell) == (QUICKER, 6)


def test_who_lost_the_schedule_while_it_delivered_moves_no_position(
    schedule: Schedule, checkback_store: LiveStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the level stands is the next one's to say, which may have been put back meanwhile."""
    cells, writer, append = schedule._cells, checkback_store.writer, checkback_store.writer.append
    level = schedule._positions.cell(SCHEDULE_GROUP, SCHEDULE_TOPIC, 0)

    def lost(drafts: Sequence[PendingRecord]) -> object:
        assert schedule._lease_cell is not None
        with cells.lock:
            cells.give(schedule._lease_cell, QUICKER, 6)
        return append(drafts)

    monkeypatch.setattr(writer, "append", lost)
    monkeypatch.setattr(schedule._member, "lives", lambda _number, _place: True)
    assert schedule.deliver(writer.clock.now_ms() + 2000) == 1
    assert cells.position(level) == 0
