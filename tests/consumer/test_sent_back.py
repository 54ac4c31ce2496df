"""How a store sends a message back: delays by its clock, the record of the copy, the dead letters, a full disk."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import broker
from broker.app.delivery import DelayedDelivery
from broker.consumer import Consumer
from broker.consuming.group.offset_export import OffsetExport
from broker.consuming.redelivery import resent, sent_back
from broker.format.commitlog import decode, encode, make_record
from broker.format.java import Host
from broker.format.sysflag import BORN_IPV6, COMPRESSED, TransactionType
from broker.format.topics import SCHEDULE_TOPIC
from broker.live import LiveStore
from broker.message import ReceivedMessage
from broker.testing.crash_disk import SMALL, FakeClock
from recovery.views.dead_letters import dead_letters
from tests.server.processes import await_true

WAIT_S = 20


def next_of(consumer: Consumer) -> ReceivedMessage:
    message = consumer.receive(WAIT_S)
    assert message is not None
    return message


def test_it_comes_again_after_the_delay_of_its_level(checkback_store: LiveStore, checkback_clock: FakeClock) -> None:
    """As it was sent: topic, body, keys and unique key; only the count is one more."""
    checkback_store.append(broker.Message("orders", b"a", tag="t", keys=["k"], properties={"mine": "yes"}))
    with checkback_store.consumer("billing", "orders", tags="t") as consumer:
        first = next_of(consumer)
        assert consumer.retry(first)
        assert consumer.receive(0.2) is None
        checkback_clock.advance(9)
        assert consumer.receive(0.2) is None
        checkback_clock.advance(2)
        second = next_of(consumer)
        assert (second.topic, second.body, second.tag, second.keys) == ("orders", b"a", "t", ("k",))
        assert (second.unique_key, second.properties["mine"]) == (first.unique_key, "yes")
        assert (first.reconsume_times, second.reconsume_times) == (0, 1)
        assert consumer.ack(second)
    with checkback_store.consumer("billing", "orders") as consumer:
        assert consumer.receive(0) is None


@pytest.mark.parametrize("level", [0, -1])
def test_what_retention_removed_meanwhile_is_sent_back_all_the_same(tmp_path: Path, level: int) -> None:
    """With `even_unread`: `retry` was True, and neither the group nor its dead letters had the message any more."""
    with (
        broker.open(tmp_path / "store", layout=SMALL, sync="os") as store,
        store.consumer("billing", "orders") as consumer,
    ):
        store.append(broker.Message("orders", b"a", tag="t", keys=["k"], properties={"mine": "yes"}))
        first = next_of(consumer)
        while store.begin_offset == 0:
            store.append(broker.Message("others", bytes(SMALL.segment_bytes // 2)))
            store.retain(broker.Retention(max_bytes=1, even_unread=True))
        assert consumer.retry(first, delay_level=level, reason="no")
        if level < 0:
            (dead,) = dead_letters(store, "billing")
            assert (dead.topic, dead.body_bytes, dead.why) == ("orders", 1, "no")
            return
        second = next_of(consumer)
        assert (second.topic, second.body, second.tag, second.keys) == ("orders", b"a", "t", ("k",))
        assert (second.unique_key, second.properties["mine"]) == (first.unique_key, "yes")
        assert (second.reconsume_times, second.born_timestamp_ms) == (1, first.born_timestamp_ms)
        assert second.properties["ORIGIN_MESSAGE_ID"] == first.message_id


@pytest.mark.parametrize("first", [True, False])
def test_what_comes_back_is_first_where_that_is_asked_for(checkback_store: LiveStore, first: bool) -> None:
    """Else its queue takes its turn, behind those of the topic."""
    for number in range(40):
        checkback_store.append(broker.Message("orders", b"%d" % number), queue_id=number % 4)
    with checkback_store.consumer("billing", "orders", retries_first=first) as consumer:
        failed = [next_of(consumer) for _ in range(3)]
        assert all(consumer.retry(message, delay_level=0) for message in failed)
        times = [next_of(consumer).reconsume_times for _ in range(12)]
    assert (times[:3] == [1, 1, 1]) is first
    assert sum(times) >= 2


def test_the_delay_grows_from_time_to_time_and_ends_in_the_dead_letters(checkback_store: LiveStore) -> None:
    """10 s first, 2 h last: RocketMQ's levels 3 to 18, and %DLQ%group after 16 times."""
    checkback_store.append(broker.Message("orders", b"a"))
    topics, levels = [], []
    at = 0
    for _ in range(17):
        record = checkback_store.commitlog.read(at)
        assert record is not None
        draft = sent_back(record, "billing")
        topics.append(draft.topic)
        levels.append(draft.queue_id + 1)
        at = checkback_store.writer.append([draft])[0].commitlog_offset
    assert topics == [SCHEDULE_TOPIC] * 16 + ["%DLQ%billing"]
    assert levels[:16] == list(range(3, 19))
    last = checkback_store.record(at)
    assert last is not None
    assert last.property_map.items() >= {"RETRY_TOPIC": "orders", "DELAY": "0", "WAIT": "false"}.items()
    assert last.property_map["RETRY_TOPIC"] == "orders"


def test_a_dead_letter_of_another_group_comes_back_as_that(checkback_store: LiveStore) -> None:
    """And not under the topic that the other group had it from: a handler of dead letters would never get it again."""
    checkback_store.append(broker.Message("orders", b"a"))
    with checkback_store.consumer("billing", "orders") as consumer:
        assert consumer.retry(next_of(consumer), -1)
    with checkback_store.consumer("alerts", "%DLQ%billing") as consumer:
        for times in (1, 2, 3):
            message = next_of(consumer)
            assert (message.topic, message.reconsume_times) == ("%DLQ%billing", times)
            assert consumer.retry(message, 0)
        assert consumer.retry(next_of(consumer), -1)
    (letter,) = dead_letters(checkback_store, "alerts")
    assert letter.topic == "%DLQ%billing"


def test_the_copy_of_a_committed_message_ends_no_transaction(
    checkback_store: LiveStore, checkback_clock: FakeClock
) -> None:
    """Its type is 0 all the way: RocketMQ 3.1 took such copies for ends of the transaction at offset 0."""
    half = checkback_store.transactions.prepare(broker.Message("orders", b"a"), "shop")
    checkback_store.transactions.commit(half)
    with checkback_store.consumer("billing", "orders") as consumer:
        consumer.retry(next_of(consumer))
        checkback_clock.advance(11)
        again = next_of(consumer)
        assert again.transaction_type is TransactionType.NONE
        consumer.retry(again, delay_level=-1)
    kinds = [(record.transaction_type.name, record.topic) for record in checkback_store.records()]
    assert kinds == [
        ("PREPARED", "orders"),
        ("COMMIT", "orders"),
        ("NONE", SCHEDULE_TOPIC),
        ("NONE", "%RETRY%billing"),
        ("NONE", "%DLQ%billing"),
    ]
    assert not list(checkback_store.transactions.in_doubt())


def test_the_copy_has_our_address_and_the_bodys_compression(checkback_store: LiveStore) -> None:
    """A producer with an IPv6 address has a longer field in its record: the copy's is ours."""
    made = make_record(
        "orders",
        b"zipped",
        sys_flag=COMPRESSED | BORN_IPV6,
        born_host=Host(bytes(16), 1),
        store_host=Host(bytes(4), 1),
        born_timestamp_ms=0,
        store_timestamp_ms=0,
    )
    record = decode(encode(made))
    copy = decode(sent_back(record, "billing").raw, check_crc=False)
    assert (copy.sys_flag, copy.body, copy.born_host.is_ipv6) == (COMPRESSED, b"zipped", False)


def full_message(store: LiveStore, topic: str, body: bytes) -> None:
    """A message whose properties take all the room that a record has."""
    for size in range(32_800, 32_600, -1):
        try:
            store.producer("shop").send(broker.Message(topic, body, properties={"x": "y" * size}))
        except broker.MessageRejected:
            continue
        return
    raise AssertionError("no size fits")


def test_a_message_whose_properties_leave_no_room_is_sent_back_with_less(checkback_store: LiveStore) -> None:
    """It comes at once, in the end as a dead letter, and goes to its group from there."""
    full_message(checkback_store, "orders", b"full")
    with checkback_store.consumer("billing", "orders", max_retries=2) as consumer:
        for times in range(3):
            message = next_of(consumer)
            assert (message.body, message.reconsume_times) == (b"full", times)
            assert consumer.retry(message, reason="no room")
        assert consumer.receive(0) is None
        (record,) = [one for one in checkback_store.records() if one.topic == "%DLQ%billing"]
        checkback_store.writer.append([resent(record, "billing")])
        assert next_of(consumer).body == b"full"


def test_what_fits_besides_the_properties_of_a_message_is_kept(checkback_store: LiveStore) -> None:
    """The place of the first message goes first, then the delay; the topic last."""
    for free, kept in ((300, "delay, place"), (80, "delay"), (25, "topic"), (5, "")):
        texts = b"x\x01" + b"y" * (32_741 - free) + b"\x02"
        host = Host(bytes(4), 1)
        places = {"born_host": host, "store_host": host, "born_timestamp_ms": 0, "store_timestamp_ms": 0}
        record = decode(encode(make_record("orders", b"x", properties=texts, **places)))  # type: ignore[arg-type]
        made = decode(sent_back(record, "billing").raw, check_crc=False)
        found = {
            "delay": made.topic == SCHEDULE_TOPIC,
            "place": "ORIGIN_MESSAGE_ID" in made.property_map,
            "topic": made.topic == "%RETRY%billing" and made.property_map.get("RETRY_TOPIC") == "orders",
        }
        assert ", ".join(name for name, is_there in found.items() if is_there) == kept


def test_an_overdue_message_that_cannot_be_read_holds_up_no_other(
    checkback_store: LiveStore, caplog: pytest.LogCaptureFixture
) -> None:
    """It waits for a repair; it is said once."""
    places = [checkback_store.append(broker.Message("orders", body)) for body in (b"a", b"b")]
    with checkback_store.consumer("billing", "orders", ack_timeout_s=0.3, retry_delay_level=0) as consumer:
        assert [next_of(consumer).body for _ in places] == [b"a", b"b"]
        view, at = checkback_store.writer.appender.log.at(places[0].end - 40)
        view[at] ^= 0xFF
        again = next_of(consumer)
        assert (again.body, again.reconsume_times) == (b"b", 1)
        assert consumer.ack(again)
        assert consumer.receive(0.3) is None
    assert [one.levelname for one in caplog.records if "cannot be delivered" in one.getMessage()] == ["ERROR"]


def test_a_damaged_delayed_message_holds_up_no_consumer(
    checkback_store: LiveStore, checkback_clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither what is sent now nor what is due on other levels."""
    producer = checkback_store.producer("shop")
    for level in (1, 2):
        producer.send(broker.Message("orders", b"%d" % level), delay_level=level)
    damaged = next(record for record in checkback_store.records() if record.body == b"1")
    view, at = checkback_store.writer.appender.log.at(damaged.commitlog_offset + damaged.total_size - 40)
    view[at] ^= 0xFF
    with checkback_store.consumer("billing", "orders") as consumer:
        checkback_clock.advance(60)
        assert next_of(consumer).body == b"2"
        checkback_store.append(broker.Message("orders", b"now"))
        assert next_of(consumer).body == b"now"
    assert [one.levelname for one in caplog.records if "cannot be delivered" in one.getMessage()] == ["ERROR"]


@pytest.mark.parametrize("deliver", [DelayedDelivery, lambda store: broker.serve(store, "127.0.0.1:0")])
def test_delayed_messages_come_where_the_export_of_positions_finds_no_room(
    checkback_store: LiveStore,
    checkback_clock: FakeClock,
    monkeypatch: pytest.MonkeyPatch,
    deliver: Callable[[LiveStore], Any],
) -> None:
    """A segment of the log has room for long on a full disk. Nobody else delivers while this process has the lease."""

    def full(*_: object, **__: object) -> None:
        raise broker.StoreFull("there is no room")

    checkback_store.append(broker.Message("orders", b"a"), extra_properties={"DELAY": "1"})
    with contextlib.closing(deliver(checkback_store)), monkeypatch.context() as patch:
        patch.setattr(OffsetExport, "export", full)
        checkback_clock.advance(2)
        await_true(lambda: checkback_store.queue_end("orders", 0) == 1, WAIT_S)


def test_messages_that_fit_together_only_while_they_wait_are_delivered(
    tmp_path: Path, checkback_clock: FakeClock
) -> None:
    """In segments so small that what is due together fills one: under its own topic a record is larger."""
    topic, layout = "t" * 100, dataclasses.replace(SMALL, segment_bytes=4096)
    with broker.open(tmp_path / "store", layout=layout, sync="os") as store:
        for number in range(40):
            store.append(broker.Message(topic, b"%02d" % number), extra_properties={"DELAY": "1"})
        checkback_clock.advance(2)
        with store.consumer("billing", topic) as consumer:
            assert [next_of(consumer).body for _ in range(40)] == [b"%02d" % number for number in range(40)]


def test_what_is_being_sent_back_cannot_be_acknowledged(checkback_store: LiveStore) -> None:
    """Else `ack` would say that the message is done, and it would come again."""
    checkback_store.append(broker.Message("orders", b"a"))
    with checkback_store.consumer("billing", "orders") as consumer:
        held = next_of(consumer)
        with consumer._leases.sending_back(held.commitlog_offset) as is_ours:
            assert is_ours
            assert not consumer.ack(held)
        assert consumer._leases.acknowledge(held.commitlog_offset, was_sent_back=True)
        assert not consumer.ack(held)


def test_a_message_that_fails_on_a_full_disk_stays_in_hand(
    checkback_store: LiveStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It can be sent back when there is room again: nothing was lost."""

    def full(_: object) -> None:
        raise broker.StoreFull("no room")

    checkback_store.append(broker.Message("orders", b"a"))
    with checkback_store.consumer("billing", "orders") as consumer:
        message = next_of(consumer)
        with monkeypatch.context() as patch:
            patch.setattr(checkback_store.writer, "append", full)
            with pytest.raises(broker.StoreFull):
                consumer.retry(message, delay_level=0)
        assert consumer.retry(message, delay_level=0)
        assert next_of(consumer).reconsume_times == 1


def test_what_is_due_is_where_rocketmq_looks_for_it(tmp_path: Path, checkback_clock: FakeClock) -> None:
    """The unit in the schedule topic holds the time, delayOffset.json how far we delivered."""
    path = tmp_path / "store"
    with broker.open(path, layout=SMALL, sync="os") as store:
        placed = store.append(broker.Message("orders", b"a"))
        with store.consumer("billing", "orders") as consumer:
            consumer.retry(next_of(consumer))
            checkback_clock.advance(11)
            consumer.ack(next_of(consumer))
        queue = store.consumequeues.queue(SCHEDULE_TOPIC, 2)
        unit = None if queue is None else queue.get(0)
        record = None if unit is None else store.record(unit.commitlog_offset)
        assert unit is not None
        assert record is not None
        assert unit.tags_code == record.store_timestamp_ms + 10_000
        assert placed.commitlog_offset == 0
    from broker.format.config import decode_delay_offsets

    assert decode_delay_offsets((path / "config/delayOffset.json").read_bytes()).positions[3] == 1


class WithoutText(Exception):
    """As exceptions of other libraries are, whose text needs what is not there any more."""

    def __str__(self) -> str:
        raise RuntimeError("closed")


@pytest.mark.parametrize(
    ("reason", "why"),
    [(ValueError("no card"), "no card"), (ValueError(), "ValueError"), (WithoutText(), "WithoutText")],
    ids=["text", "none", "raises"],
)
def test_an_exception_can_be_the_reason(checkback_store: LiveStore, reason: Exception, why: str) -> None:
    checkback_store.append(broker.Message("orders", b"a"))
    with checkback_store.consumer("billing", "orders") as consumer:
        assert consumer.retry(next_of(consumer), -1, reason=reason)
    (letter,) = dead_letters(checkback_store, "billing")
    assert letter.why == why


@pytest.mark.parametrize("delay_s", [10**400, -(10**5000), 1e306], ids=["beyond floats", "long", "beyond clocks"])
def test_a_delay_that_no_clock_reaches_is_refused(checkback_store: LiveStore, delay_s: float) -> None:
    checkback_store.append(broker.Message("orders", b"a"))
    with checkback_store.consumer("billing", "orders") as consumer:
        message = next_of(consumer)
        with pytest.raises(broker.BrokerError, match="delay_s is a number of seconds from 0 on, not"):
            consumer.retry(message, delay_s=delay_s)
        assert consumer.ack(message)


def test_a_reason_that_is_no_text_is_refused_at_once(checkback_store: LiveStore) -> None:
    """Not only when the message becomes a dead letter, many retries later."""
    checkback_store.append(broker.Message("orders", b"a"))
    with checkback_store.consumer("billing", "orders") as consumer:
        message = next_of(consumer)
        with pytest.raises(broker.BrokerError, match="reason is text, or the exception"):
            consumer.retry(message, reason=7)  # type: ignore[arg-type]
        assert consumer.ack(message)
