"""Shares and holdings of a member of a group of a cluster: decisions, most of them without a broker."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

import broker
from broker.cluster.membership.allocation import averagely
from broker.cluster.membership.group_calls import Pulled
from broker.cluster.membership.group_member import GroupMember
from broker.cluster.membership.holdings import Holdings
from broker.cluster.membership.written_positions import WrittenPositions
from broker.consuming.tags import Selection
from broker.format import properties as names
from broker.format.commitlog import encode, make_record
from broker.format.record.innerbatch import InnerHead, InnerTail, inner_records
from broker.format.sysflag import INNER_BATCH
from broker.message import ReceivedMessage
from broker.remoting.bodies import MessageQueue, decode_consumer_list
from broker.remoting.codes import RequestCode
from broker.remoting.command import RemotingCommand
from broker.remoting.fastjson import dumps
from broker.store.write.pending_record import LOCAL_HOST
from tests.backends.clusters import Connected
from tests.cluster.waiting import awaited
from tests.golden.unpack import unpack


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 9])
@pytest.mark.parametrize("members", [1, 2, 3, 4, 9])
def test_every_queue_has_one_member(count: int, members: int) -> None:
    queues = [MessageQueue("t", number % 4, f"b{number // 4}") for number in range(count)]
    ids = [f"c{number}" for number in range(members)]
    shares = [averagely(queues, ids, one) for one in ids]
    assert sorted((q.broker_name, q.queue_id) for share in shares for q in share) == sorted(
        (q.broker_name, q.queue_id) for q in queues
    )
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert averagely(queues, ids, "stranger") == []
    assert averagely(queues, [*ids, ids[0], ids[0]], ids[0]) == shares[0]  # a broker that hung names it so


def test_a_member_that_its_broker_names_several_times_has_all_of_its_queues(served: Connected) -> None:
    def thrice(answer: RemotingCommand) -> RemotingCommand:
        if answer.body.startswith(b'{"consumerIdList"'):
            answer.body = dumps({"consumerIdList": [*decode_consumer_list(answer.body)] * 3})
        return answer

    served.client.create_topic("carts", queues=4)
    served.proxy.answer = thrice
    with served.client.consumer("billing", "carts") as consumer:
        assert awaited(lambda: [one[1] for one in consumer.queues if one[0] == "carts"] == [0, 1, 2, 3])


def test_the_messages_of_a_batch_in_one_record_come_one_by_one(served: Connected, tmp_path: Path) -> None:
    """As RocketMQ stores a batch of a topic with queue.type=BatchCQ: its bytes came as one message."""
    with broker.open(unpack("kinds/rocketmq-5.3.3-batchcq", tmp_path / "golden"), read_only=True) as golden:
        batch = next(one for one in golden.records() if one.sys_flag & INNER_BATCH)
        raw = golden.commitlog.raw(batch.commitlog_offset, batch.total_size)
        expected = [one.body for one in inner_records(batch)]

    def as_batch(command: RemotingCommand) -> RemotingCommand:
        if command.body and "nextBeginOffset" in command.ext:
            command.body, command.ext["nextBeginOffset"] = raw, str(len(expected))
        return command

    served.client.create_topic("carts", queues=1)
    served.client.producer("plain").send(broker.Message("carts", b"lamp"))
    served.proxy.answer = as_batch
    with served.client.consumer("billing", "carts") as consumer:
        messages = [consumer.receive(5.0) for _ in expected]
        assert [message.body for message in messages if message] == expected
        held = next(one for one in consumer._holdings.held if one.queue.topic == "carts")
        for number, message in enumerate(messages):
            assert held.window.position == number
            assert message is not None
            assert consumer.ack(message)
        assert held.window.position == len(expected) > 1


def test_the_messages_of_a_batch_without_keys_are_processed_each(served: Connected, tmp_path: Path) -> None:
    """As a Go producer sends them: by the message id, which is that of the record, they were one."""
    parts = [(InnerHead(23, 0, 0, 0, 1), text, InnerTail(0)) for text in (b"a", b"b", b"c")]
    body = b"".join(head.pack() + text + tail.pack() for head, text, tail in parts)
    numbers = names.encode({names.INNER_BASE: "0", names.INNER_NUM: "3"})
    raw = encode(
        make_record("carts", body, numbers, born_host=LOCAL_HOST, store_host=LOCAL_HOST, born_timestamp_ms=1,
                    store_timestamp_ms=1, sys_flag=INNER_BATCH)
    )  # fmt: skip

    def as_batch(command: RemotingCommand) -> RemotingCommand:
        if command.body and "nextBeginOffset" in command.ext:
            command.body, command.ext["nextBeginOffset"] = raw, "3"
            served.proxy.request = lambda asked: None if asked.code == RequestCode.PULL_MESSAGE else asked
        return command

    engine = create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    broker.Processed().create_all(engine)
    served.client.create_topic("carts", queues=1)
    served.client.producer("plain").send(broker.Message("carts", b"lamp"))
    served.proxy.answer = as_batch
    with served.client.consumer("billing", "carts") as consumer:
        one, two, three = (consumer.receive(5.0) for _ in range(3))
        assert one is not None
        assert two is not None
        assert three is not None
        firsts = list[bool]()
        with Session(engine) as session, consumer.process(one, session) as first:
            firsts += [first, consumer.ack(three)]  # as another thread does
        with Session(engine) as session, consumer.process(two, session) as first:
            firsts.append(first)
    assert firsts == [True] * 3
    engine.dispose()


def test_what_comes_back_is_first_where_that_is_asked_for() -> None:
    """Whosever turn it is."""
    for first in (True, False):
        holdings = Holdings(ordered=False, retries_first=first)
        for topic in ("carts", "%RETRY%billing"):
            held = holdings.add(MessageQueue(topic, 0, "broker"), 0)
            messages = [SimpleNamespace(message_id=topic, queue_offset=at, body=topic.encode()) for at in range(3)]
            holdings.put(held, [(at, cast("ReceivedMessage", one)) for at, one in enumerate(messages)], 3)
        taken = [message.body for _ in range(6) if (message := holdings.take()) is not None]
        assert len(taken) == 6
        assert all(body.startswith(b"%RETRY%") for body in taken[:3]) is first


def test_large_messages_are_not_all_pulled() -> None:
    """64 messages of 4 MiB from each queue would fill the memory."""
    holdings = Holdings(ordered=False)
    held = holdings.add(MessageQueue("carts", 0, "broker"), 0)
    bodies = [bytes(6 << 20)] * 3
    messages = [SimpleNamespace(message_id="", queue_offset=at, body=body) for at, body in enumerate(bodies)]
    holdings.put(held, [(at, cast("ReceivedMessage", one)) for at, one in enumerate(messages[:2])], 2)
    assert not held.is_full
    holdings.put(held, [(2, cast("ReceivedMessage", messages[2]))], 3)
    assert held.is_full
    assert holdings.take() is not None
    assert not held.is_full
    holdings.move(held, 0)
    assert held.ready_bytes == 0


def test_an_ordered_queue_is_given_up_when_nothing_of_it_is_in_hand() -> None:
    """Its next member would be handed what follows, while this one still works on what is before."""
    member, given_up = member_of(ordered=True)
    held: Any = SimpleNamespace(in_hand=1, is_draining=False)
    assert not asyncio.run(member._leave_queue(held))
    assert (held.is_draining, given_up) == (True, [])
    held.in_hand = 0
    assert asyncio.run(member._leave_queue(held))
    assert given_up == [held]


@pytest.mark.parametrize(("known", "goes_on_at"), [(10, 10), (50, 30)])
def test_a_queue_that_shrank_is_read_no_further_on_than_its_end(known: int, goes_on_at: int) -> None:
    """A position that was written before its broker lost the end of the log: what comes next would be passed over."""
    member, _ = member_of(known=known)
    held: Any = SimpleNamespace(queue=MessageQueue("carts", 0, "broker-a"), window=SimpleNamespace(next=60))
    assert asyncio.run(member._moved_to(held, SimpleNamespace(next_offset=30, end=30))) == goes_on_at  # type: ignore[arg-type]


def test_a_pull_of_a_place_that_was_left_meanwhile_brings_nothing() -> None:
    member, _ = member_of()
    holdings = member._holdings = Holdings(ordered=False)
    member._subscriptions = cast("Any", {"carts": None})
    held = holdings.add(MessageQueue("carts", 0, "broker"), 0)
    pulled = [(at, cast("ReceivedMessage", SimpleNamespace(body=b""))) for at in range(2)]
    begun: list[int] = []

    async def pull(_queue: object, at: int, *_: object) -> Pulled:
        begun.append(at)
        if at == 0:
            holdings.move(held, 7)
            return Pulled(pulled, 2, 8, is_moved=False, is_of_master=True)
        holdings.drop(held)
        return Pulled([], at, 8, is_moved=False, is_of_master=True)

    member._calls = cast("Any", SimpleNamespace(pull=pull, is_of_master=lambda _queue: True))
    member._selection, member._positions = Selection(), WrittenPositions(member._calls, holdings)
    asyncio.run(member._pull_on(held))
    assert (begun, list(held.ready), held.window.position) == ([0, 7], [], 7)


def member_of(*, ordered: bool = False, known: int = 0) -> tuple[GroupMember, list[object]]:
    """A member without a broker, and what it gave up; its broker knows the position `known`."""
    member: Any = GroupMember.__new__(GroupMember)
    given_up: list[object] = []

    async def start_offset(*_: object) -> int:
        return known

    async def give_up(held: object) -> None:
        given_up.append(held)

    member._ordered, member._data = ordered, SimpleNamespace(group="billing")
    member._calls, member._give_up = SimpleNamespace(start_offset=start_offset), give_up
    return member, given_up


@pytest.mark.parametrize("meanwhile", [True, False])
def test_a_position_that_its_broker_forgot_is_written_by_whom_the_queue_is_given_up(meanwhile: bool) -> None:
    """The next member begins there. Once it has the queue, nothing is written into what it has written."""
    member: Any = member_of()[0]
    del member._give_up
    holdings = member._holdings = Holdings(ordered=False, retries_first=False)
    held = holdings.add(MessageQueue("carts", 0, "broker-a"), 5)
    held.committed, held.may_be_forgotten, held.is_pulled_since = 5, True, True
    written = list[int]()

    async def position(_: MessageQueue) -> int:
        if meanwhile:
            holdings.drop(held)
        return 3

    async def commit(_: MessageQueue, position: int) -> None:
        written.append(position)

    calls: Any = SimpleNamespace(position=position, commit=commit)
    positions = member._positions = WrittenPositions(calls, holdings)
    asyncio.run(positions.write(held) if meanwhile else member._give_up(held))
    assert written == ([] if meanwhile else [5])
