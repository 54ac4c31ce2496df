"""What administrators' programs ask: RocketMQ's exporter, its dashboard, mqadmin."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import broker
from broker.remoting.codes import RequestCode as Code
from broker.remoting.codes import ResponseCode as Answer
from tests.server.conftest import LAYOUT, Connect, Serve
from tests.server.wire_client import json_of, records_of

# Those without which RocketMQ's exporter reads none. RocketMQ: exporter, BrokerRuntimeStats (0.0.3).
READ_BY_THE_EXPORTER = (
    "bootTimestamp", "brokerVersion", "brokerVersionDesc", "commitLogDirCapacity", "commitLogDiskRatio",
    "commitLogMaxOffset", "commitLogMinOffset", "consumeQueueDiskRatio", "dispatchBehindBytes", "dispatchMaxBuffer",
    "earliestMessageTimeStamp", "getFoundTps", "getMessageEntireTimeMax", "getMissTps", "getTotalTps",
    "getTransferredTps", "msgGetTotalTodayMorning", "msgGetTotalTodayNow", "msgGetTotalYesterdayMorning",
    "msgPutTotalTodayMorning", "msgPutTotalTodayNow", "msgPutTotalYesterdayMorning", "pageCacheLockTimeMills",
    "pullThreadPoolQueueCapacity", "pullThreadPoolQueueHeadWaitTimeMills", "pullThreadPoolQueueSize",
    "putMessageAverageSize", "putMessageDistributeTime", "putMessageEntireTimeMax", "putMessageSizeTotal",
    "putMessageTimesTotal", "putTps", "queryThreadPoolQueueCapacity", "queryThreadPoolQueueHeadWaitTimeMills",
    "queryThreadPoolQueueSize", "remainHowManyDataToFlush", "remainTransientStoreBufferNumbs", "runtime",
    "sendThreadPoolQueueCapacity", "sendThreadPoolQueueHeadWaitTimeMills", "sendThreadPoolQueueSize",
    "startAcceptSendRequestTimeStamp",
)  # fmt: skip


def test_rocketmqs_exporter_finds_each_name(serve: Serve, connect: Connect) -> None:
    """It reported no figure of the broker itself: nine names were missing."""
    table = json_of(connect(serve()).request(Code.GET_BROKER_RUNTIME_INFO))["table"]
    assert set(READ_BY_THE_EXPORTER) <= set(table)
    assert float(table["remainHowManyDataToFlush"].split(" ")[0]) >= 0


@pytest.mark.parametrize("topic", ["TBW102", "DefaultCluster_REPLY_TOPIC"])
def test_a_topic_that_is_there_before_its_first_message_has_statistics(
    serve: Serve, connect: Connect, topic: str
) -> None:
    """The list of topics named it, and who asked for the statistics of each got an error in each round."""
    answer = connect(serve()).request(Code.GET_TOPIC_STATS_INFO, {"topic": topic})
    assert answer.code == Answer.SUCCESS
    assert answer.body.count(b'"maxOffset":0') == (8 if topic == "TBW102" else 1)


def test_what_is_not_there_is_not_answered_as_if_it_were_empty(
    serve: Serve, connect: Connect, store: broker.LiveStore
) -> None:
    client = connect(serve())
    place = {"topic": "orders", "queueId": 0, "index": 0, "count": 1}
    spans = {"topic": "orders", "group": "billing"}
    asked = {"consumerGroup": "billing", "topic": "orders", "queueId": 0}
    assert client.request(Code.QUERY_CONSUMER_OFFSET, asked).code == Answer.QUERY_NOT_FOUND
    assert client.request(Code.QUERY_CONSUME_TIME_SPAN, spans).code == Answer.TOPIC_NOT_EXIST
    assert client.request(Code.QUERY_CONSUME_QUEUE, place).code == Answer.SYSTEM_ERROR
    store.create_topic("orders", queues=1)
    assert client.request(Code.QUERY_CONSUME_TIME_SPAN, spans).code == Answer.SUCCESS
    assert json_of(client.request(Code.QUERY_CONSUME_QUEUE, place))["queueData"] == []
    assert client.request(Code.GET_EARLIEST_MSG_STORETIME, place).ext["timestamp"] == "-1"
    assert client.request(Code.QUERY_CONSUMER_OFFSET, asked).ext == {"offset": "0"}
    assert client.request(Code.QUERY_CONSUMER_OFFSET, asked | {"queueId": 1}).code == Answer.QUERY_NOT_FOUND


def test_a_queue_takes_nothing_more_and_is_read_to_its_end_before_it_goes(
    serve: Serve, connect: Connect, store: broker.LiveStore
) -> None:
    """`mqadmin updateTopic -r 2 -w 1` was answered with success, and both queues went on taking messages."""
    client = connect(serve())
    topic = {"topic": "orders", "readQueueNums": 2, "writeQueueNums": 2, "perm": 6}
    assert client.request(Code.UPDATE_AND_CREATE_TOPIC, topic).code == Answer.SUCCESS
    half = client.publish("orders", b"half", queue_id=1, sys_flag=4, TRAN_MSG="true", PGROUP="producers")
    assert client.publish("orders", b"before", queue_id=1).code == Answer.SUCCESS
    assert client.request(Code.UPDATE_AND_CREATE_TOPIC, topic | {"writeQueueNums": 1}).code == Answer.SUCCESS
    route = json_of(client.request(Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"}))["queueDatas"][0]
    assert (route["readQueueNums"], route["writeQueueNums"]) == (2, 1)
    assert client.publish("orders", b"after", queue_id=1).ext["queueId"] == "0"
    end = {"producerGroup": "producers", "tranStateTableOffset": half.ext["queueOffset"], "fromTransactionCheck": False,
           "commitLogOffset": int(half.ext["msgId"][16:], 16), "commitOrRollback": 8}  # fmt: skip
    assert client.request(Code.END_TRANSACTION, end).code == Answer.SUCCESS
    store.append(broker.Message("orders", b"own"))
    with store.consumer("billing", "orders", start="first") as consumer:
        read = [(message.queue_id, message.body) for message in iter(lambda: consumer.receive(2), None)]
    assert sorted(read) == [(0, b"after"), (0, b"own"), (1, b"before"), (1, b"half")]
    for queues in (1, 0):  # it holds messages; a topic has a queue
        refused = client.request(
            Code.UPDATE_AND_CREATE_TOPIC, topic | {"readQueueNums": queues, "writeQueueNums": queues}
        )
        assert refused.code == Answer.MESSAGE_ILLEGAL
    assert connect(serve()).request(Code.UPDATE_AND_CREATE_TOPIC, topic | {"writeQueueNums": -1}).code != Answer.SUCCESS


def test_the_name_of_another_broker_stops_no_sends_here(
    serve: Serve, connect: Connect, store: broker.LiveStore
) -> None:
    """`mqadmin wipeWritePerm -b broker-b` at the server of broker-a: no topic took a message any more."""
    store.create_topic("orders")
    client = connect(serve(admin=True))

    def perm() -> int:
        return int(json_of(client.request(Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"}))["queueDatas"][0]["perm"])

    def count(code: Code, name: str) -> int:
        (found,) = client.request(code, {"brokerName": name}).ext.values()
        return int(found)

    assert (count(Code.WIPE_WRITE_PERM_OF_BROKER, "broker-b"), perm()) == (0, 6)
    assert count(Code.WIPE_WRITE_PERM_OF_BROKER, "broker-a") > 0
    assert (count(Code.ADD_WRITE_PERM_OF_BROKER, "broker-b"), perm()) == (0, 4)
    assert count(Code.ADD_WRITE_PERM_OF_BROKER, "broker-a") > 0
    assert perm() == 6


def test_what_all_groups_have_not_read_is_added_up(serve: Serve, connect: Connect, store: broker.LiveStore) -> None:
    """`mqadmin brokerConsumeStats` and the dashboard said "Diff Total: 0" below the differences."""
    store.create_topic("orders", queues=1)
    for _ in range(4):
        store.append(broker.Message("orders", b"lamp"))
    client = connect(serve())
    for group, read in (("billing", 1), ("mail", 3)):
        made = client.request(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=b'{"groupName": "%b"}' % group.encode())
        assert made.code == Answer.SUCCESS
        place = {"consumerGroup": group, "topic": "orders", "queueId": 0, "commitOffset": read}
        assert client.request(Code.UPDATE_CONSUMER_OFFSET, place).code == Answer.SUCCESS
    answer = client.request(Code.GET_BROKER_CONSUME_STATS, {"isOrder": "false"})
    assert b'"totalDiff":4' in answer.body, answer.body


def test_a_consumer_runs_the_one_message_that_is_named(serve: Serve, connect: Connect) -> None:
    """The client got the request without the message, and `mqadmin` and the dashboard its NullPointerException."""
    server = serve(admin=True)
    consumer, admin = connect(server, client_id="c1"), connect(server)
    place = admin.publish("orders", b"lamp", KEYS="k1").ext["msgId"]
    assert consumer.heartbeat(consumer="billing", topics={"orders": "*"}).code == Answer.SUCCESS
    who = {"consumerGroup": "billing", "clientId": "c1"}
    number = admin.send(Code.CONSUME_MESSAGE_DIRECTLY, who | {"msgId": place})
    asked = consumer.next_asked(Code.CONSUME_MESSAGE_DIRECTLY)
    (record,) = records_of(asked.body)
    assert (bytes(record.body), record.property_map["KEYS"]) == (b"lamp", "k1")
    consumer.socket.sendall(asked.answer(Answer.SUCCESS, None, {}, b'{"consumeResult":"CR_SUCCESS"}').encode())
    assert json_of(admin.answer(number)) == {"consumeResult": "CR_SUCCESS"}

    nothing = f"{place[:-16]}{int(place[-16:], 16) + 1:016X}"
    for wrong in ({}, {"msgId": "x"}, {"msgId": nothing}):
        assert admin.request(Code.CONSUME_MESSAGE_DIRECTLY, who | wrong).code == Answer.SYSTEM_ERROR


@pytest.mark.parametrize("engine", ["state-table", "half-op"])
def test_no_consumer_runs_what_is_undecided_or_not_due(tmp_path: Path, connect: Connect, engine: Any) -> None:
    with (
        broker.open(tmp_path / "other", sync="os", layout=LAYOUT, transactions=engine) as store,
        broker.serve(store, "127.0.0.1:0", admin=True) as server,
    ):
        client = connect(server)
        half = client.publish("orders", b"lamp", sys_flag=4, TRAN_MSG="true", PGROUP="producers")
        delayed = client.publish("orders", b"lamp", DELAY="5")
        assert client.heartbeat(consumer="billing", topics={"orders": "*"}).code == Answer.SUCCESS
        for sent in (half, delayed):
            who = {"consumerGroup": "billing", "clientId": "c1", "msgId": sent.ext["msgId"]}
            answer = client.request(Code.CONSUME_MESSAGE_DIRECTLY, who)
            assert (answer.code, "is not for consumers" in (answer.remark or "")) == (Answer.NO_PERMISSION, True)


def test_a_query_by_key_gives_each_record_once_and_none_of_a_key_or_topic_with_the_same_hash(
    serve: Serve, connect: Connect
) -> None:
    """Java hashes `Aa` and `BB` alike, so that the index holds one number for all of these."""
    client = connect(serve())
    for topic, body, keys in (("Aa", b"1", "Aa"), ("Aa", b"2", "BB"), ("BB", b"3", "Aa"), ("Aa", b"4", "Aa x Aa")):
        assert client.publish(topic, body, KEYS=keys, UNIQ_KEY=f"key{body.decode()}").code == Answer.SUCCESS
    asked = {"topic": "Aa", "key": "Aa", "maxNum": 9, "beginTimestamp": 0, "endTimestamp": 1 << 62}
    found = records_of(client.request(Code.QUERY_MESSAGE, asked).body)
    assert [one.body for one in found] == [b"4", b"1"]
    by_unique_key = asked | {"_UNIQUE_KEY_QUERY": "true"}
    assert client.request(Code.QUERY_MESSAGE, by_unique_key).code == Answer.QUERY_NOT_FOUND
    (one,) = records_of(client.request(Code.QUERY_MESSAGE, by_unique_key | {"key": "key2"}).body)
    assert one.body == b"2"


def test_offsets_by_time(serve: Serve, connect: Connect, store: broker.LiveStore) -> None:
    """The first message at or after a time, and with UPPER the last at or before it, within what is there."""
    client = connect(serve())
    for number in range(3):
        client.publish("orders", b"%d" % number)
        time.sleep(0.005)
    messages = [message for number in range(3) if (message := store.message("orders", 0, number)) is not None]
    times_ms = [message.store_timestamp_ms for message in messages]
    assert times_ms == sorted(set(times_ms))

    def offset(timestamp_ms: int, queue_id: int = 0, **boundary: str) -> int:
        ext = {"topic": "orders", "queueId": queue_id, "timestamp": timestamp_ms, **boundary}
        return int(client.request(Code.SEARCH_OFFSET_BY_TIMESTAMP, ext).ext["offset"])

    assert [offset(at) for at in (0, times_ms[1], times_ms[1] + 1, times_ms[2] + 1)] == [0, 1, 2, 3]
    upper = [offset(at, boundaryType="UPPER") for at in (0, times_ms[1] - 1, times_ms[1], times_ms[2] + 1)]
    assert upper == [0, 0, 1, 2]
    assert [offset(times_ms[1], 1), offset(times_ms[1], 1, boundaryType="UPPER")] == [0, 0]
