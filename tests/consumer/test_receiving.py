"""A group gets every message of its topic, from where it stopped, shared among its members."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable

import pytest

import broker
from broker.consumer import Consumer
from broker.consuming.reading import fetch
from broker.consuming.tags import Selection
from broker.consuming.window import Window
from broker.live import LiveStore
from broker.store.disk.files import Disk
from broker.testing.crash_disk import SMALL

WAIT_S = 20


def send(store: LiveStore, *bodies: str, tag: str = "", topic: str = "orders") -> None:
    for number, body in enumerate(bodies):
        store.append(broker.Message(topic, body.encode(), tag=tag), queue_id=number % 4)


def bodies(consumer: Consumer, count: int, *, ack: bool = True) -> list[str]:
    """The next messages, acknowledged."""
    found = []
    for _ in range(count):
        message = consumer.receive(WAIT_S)
        assert message is not None, f"only {found}"
        found.append(message.body.decode())
        if ack:
            assert consumer.ack(message)
    return found


def eventually(true: Callable[[], bool]) -> None:
    """What other threads do soon."""
    deadline = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.005)


def test_a_group_goes_on_where_it_stopped(checkback_store: LiveStore) -> None:
    send(checkback_store, "a", "b", "c", "d")
    with checkback_store.consumer("billing", "orders") as consumer:
        assert sorted(bodies(consumer, 4)) == ["a", "b", "c", "d"]
    send(checkback_store, "e")
    with checkback_store.consumer("billing", "orders") as consumer:
        assert bodies(consumer, 1) == ["e"]
        assert consumer.receive(0) is None


def test_what_was_not_acknowledged_comes_again(checkback_store: LiveStore) -> None:
    """And so does what was acknowledged behind it: the position is the lowest that is open."""
    for body in ("a", "b", "c"):
        checkback_store.append(broker.Message("orders", body.encode()))
    with checkback_store.consumer("billing", "orders") as consumer:
        first, second = consumer.receive(WAIT_S), consumer.receive(WAIT_S)
        assert first is not None
        assert second is not None
        assert consumer.ack(second)
    with checkback_store.consumer("billing", "orders") as consumer:
        assert bodies(consumer, 3) == ["a", "b", "c"]


def test_groups_do_not_know_of_each_other(checkback_store: LiveStore) -> None:
    send(checkback_store, "a", "b")
    for group in ("billing", "shipping"):
        with checkback_store.consumer(group, "orders") as consumer:
            assert sorted(bodies(consumer, 2)) == ["a", "b"]


def test_a_batch_is_what_is_there_up_to_a_limit(checkback_store: LiveStore) -> None:
    """It waits for the first message only; what is not acknowledged comes again, message by message."""
    send(checkback_store, *"abcdefg")
    with checkback_store.consumer("billing", "orders") as consumer:
        five, rest = consumer.batch(5), consumer.batch(5, WAIT_S)
        assert sorted(message.body.decode() for message in (*five, *rest)) == [*"abcdefg"]
        assert (len(five), len(rest), consumer.batch(5, 0)) == (5, 2, [])
        assert consumer.ack_all(five) == 5
        assert consumer.ack_all(five) == 0
    with checkback_store.consumer("billing", "orders") as consumer:
        again = consumer.batch(10, WAIT_S)
        assert {message.body for message in again} >= {message.body for message in rest}
        for limit in (0, -1, True, None):
            with pytest.raises(broker.BrokerError, match="limit is a whole number from 1 on"):
                consumer.batch(limit)  # type: ignore[arg-type]


def test_only_the_tags_that_are_asked_for(checkback_store: LiveStore) -> None:
    """Tags with one hash are told apart, and what is passed over does not hold the position back."""
    for tag in ("Aa", "BB", "C", "D"):
        checkback_store.append(broker.Message("orders", tag.encode(), tag=tag))
    with checkback_store.consumer("billing", "orders", tags="Aa || C") as consumer:
        assert bodies(consumer, 2) == ["Aa", "C"]
        assert consumer.receive(0) is None
        eventually(lambda: consumer.receive_now() is None and consumer.positions()["orders", 0] == 4)


def test_members_share_the_queues_and_lose_none(checkback_store: LiveStore) -> None:
    """A second member takes half; when it leaves, the first has all again."""
    checkback_store.create_topic("orders", queues=4)
    with checkback_store.consumer("billing", "orders") as first:
        with checkback_store.consumer("billing", "orders") as second:
            eventually(lambda: [len([q for q in one.queues if q[0] == "orders"]) for one in (first, second)] == [2, 2])
            assert not set(first.queues) & set(second.queues)
            send(checkback_store, *(str(number) for number in range(40)))
            found = bodies(first, 20) + bodies(second, 20)
            assert sorted(found, key=int) == [str(number) for number in range(40)]
        eventually(lambda: len(first.queues) == 5)


def test_what_is_in_hand_is_not_taken_away_when_another_joins(checkback_store: LiveStore) -> None:
    """The queue goes over when it is acknowledged: nothing is delivered twice for a newcomer's sake."""
    checkback_store.create_topic("orders", queues=2)
    send(checkback_store, "a", "b")
    with checkback_store.consumer("billing", "orders") as first:
        held = [first.receive(WAIT_S), first.receive(WAIT_S)]
        with checkback_store.consumer("billing", "orders") as second:
            assert second.receive(0.3) is None
            assert all(message is not None and first.ack(message) for message in held)
            eventually(lambda: len([q for q in second.queues if q[0] == "orders"]) == 1)
            assert second.receive(0) is None


def test_a_member_that_is_silent_for_too_long_loses_its_queues_and_its_say(
    checkback_store: LiveStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fencing: what it acknowledges afterwards moves nothing, and the message was given to another."""
    send(checkback_store, "a")
    with checkback_store.consumer("billing", "orders") as hung:
        message = hung.receive(WAIT_S)
        assert message is not None
        hung._keeper._stop.set()  # its thread stands still, as in a process that is stopped
        hung._keeper._thread.join()
        hung._positions.cells.beat(hung._member.place, 0)
        monkeypatch.setattr("broker.consuming.group.membership.SILENT_MS", 1000)
        with checkback_store.consumer("billing", "orders") as other:
            assert bodies(other, 1) == ["a"]
            assert not hung.ack(message)
            assert other.positions()["orders", 0] == 1


@pytest.mark.parametrize(("start", "expected"), [("first", ["a", "b", "c"]), ("last", ["c"])])
def test_where_a_new_group_begins(checkback_store: LiveStore, start: str, expected: list[str]) -> None:
    for body in ("a", "b"):
        checkback_store.append(broker.Message("orders", body.encode()))
    with checkback_store.consumer("billing", "orders", start=start) as consumer:
        checkback_store.append(broker.Message("orders", b"c"))
        assert bodies(consumer, len(expected)) == expected


def test_a_group_that_begins_at_a_time(checkback_store: LiveStore) -> None:
    checkback_store.append(broker.Message("orders", b"a"))
    time.sleep(0.003)
    placed = checkback_store.append(broker.Message("orders", b"b"))
    with checkback_store.consumer("billing", "orders", start=placed.store_timestamp_ms) as consumer:
        assert bodies(consumer, 1) == ["b"]


def test_a_queue_that_appears_later_is_read_from_its_first_message(checkback_store: LiveStore) -> None:
    """Whatever `start` says: nothing is skipped."""
    checkback_store.create_topic("orders", queues=1)
    with checkback_store.consumer("billing", "orders", start="last") as consumer:
        checkback_store.create_topic("orders", queues=2)
        checkback_store.append(broker.Message("orders", b"new"), queue_id=1)
        assert bodies(consumer, 1) == ["new"]


def test_a_topic_that_appears_later_is_consumed(checkback_store: LiveStore) -> None:
    with checkback_store.consumer("billing", "orders") as consumer:
        checkback_store.append(broker.Message("orders", b"first"))
        assert bodies(consumer, 1) == ["first"]


def test_several_topics_in_one_group(checkback_store: LiveStore) -> None:
    send(checkback_store, "a")
    send(checkback_store, "b", topic="refunds")
    with checkback_store.consumer("billing", ["orders", "refunds"]) as consumer:
        assert sorted(bodies(consumer, 2)) == ["a", "b"]


def test_members_that_ask_for_other_topics_are_refused(checkback_store: LiveStore) -> None:
    """They share one retry topic: one would get what the other asked for."""
    with checkback_store.consumer("billing", "orders"), pytest.raises(broker.StoreError, match="the same topics"):
        checkback_store.consumer("billing", "refunds")


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


def test_async_for_gets_the_messages_and_leaves_the_loop_free(checkback_store: LiveStore) -> None:
    async def consume() -> list[str]:
        found: list[str] = []
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0)

        ticking = asyncio.create_task(tick())
        async with checkback_store.consumer("billing", "orders") as consumer:
            send(checkback_store, "a", "b")
            async for message in consumer:
                found.append(message.body.decode())
                consumer.ack(message)
                if len(found) == 2:
                    break
        ticking.cancel()
        assert ticks > 0
        return found

    assert sorted(asyncio.run(consume())) == ["a", "b"]


def test_threads_share_a_consumer(checkback_store: LiveStore) -> None:
    """Each message goes to one of them; the loop of each ends when the consumer is closed."""
    send(checkback_store, *(str(number) for number in range(200)))
    found: list[str] = []
    with checkback_store.consumer("billing", "orders") as consumer:

        def work() -> None:
            for message in consumer:
                found.append(message.body.decode())
                consumer.ack(message)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        eventually(lambda: len(found) >= 200)
        eventually(lambda: sum(at for (topic, _), at in consumer.positions().items() if topic == "orders") == 200)
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive()
    assert sorted(found, key=int) == [str(number) for number in range(200)]


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


def test_a_closed_consumer_says_so(checkback_store: LiveStore) -> None:
    consumer = checkback_store.consumer("billing", "orders")
    consumer.close()
    consumer.close()
    with pytest.raises(broker.StoreError, match="was closed"):
        consumer.receive_now()
