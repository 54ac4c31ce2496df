"""Sends, pulls, positions, retries and delays over the wire, with what a store adds to them."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

import broker
from broker.consuming.group.offset_export import SCHEDULE_GROUP
from broker.format import properties as names
from broker.format.topics import CHECK_GROUP
from broker.remoting.codes import RequestCode as Code
from broker.remoting.codes import ResponseCode as Answer
from broker.store.read.commitlog import CommitLog
from tests.server.conftest import Connect, Serve
from tests.server.processes import await_true, lock
from tests.server.wire_client import json_of, records_of, sending


def test_a_message_is_stored_as_it_was_sent_and_pulled_again(
    serve: Serve, connect: Connect, store: broker.LiveStore
) -> None:
    client = connect(serve(advertise="127.0.0.1:20911"))
    sent = client.publish("orders", b"paid", queue_id=2, flag=7, KEYS="k1 k2", TAGS="new", UNIQ_KEY="U1", colour="blé")
    assert sent.code == Answer.SUCCESS
    assert sent.ext.items() >= {"queueId": "2", "queueOffset": "0", "transactionId": "U1", "TRACE_ON": "true"}.items()
    assert sent.ext["msgId"] == "7F000001000051AF" + f"{0:016X}"
    code, (record,) = client.pulled("g", "orders", queue_id=2)
    assert (code, record.body, record.flag, record.sys_flag) == (Answer.SUCCESS, b"paid", 7, 0)
    assert str(record.store_host) == "127.0.0.1:20911"
    assert record.property_map.items() >= {"KEYS": "k1 k2", "colour": "blé", "CLUSTER": "DefaultCluster"}.items()
    assert names.CRC32 not in record.property_map
    local = store.message("orders", 2, 0)
    assert local is not None
    assert (local.body, local.born_timestamp_ms, local.keys) == (b"paid", 1_700_000_000_000, ("k1", "k2"))
    viewed = client.request(Code.VIEW_MESSAGE_BY_ID, {"offset": 0})
    assert [one.body for one in records_of(viewed.body)] == [b"paid"]
    by_key = {"topic": "orders", "key": "k2", "maxNum": 32, "beginTimestamp": 0, "endTimestamp": (1 << 63) - 1}
    assert len(records_of(client.request(Code.QUERY_MESSAGE, by_key).body)) == 1


@pytest.mark.parametrize(
    ("ext", "body", "code"),
    [
        (sending("bad topic!"), b"x", Answer.INVALID_PARAMETER),
        (sending("SCHEDULE_TOPIC_XXXX"), b"x", Answer.NO_PERMISSION),
        (sending("orders", 99), b"x", Answer.INVALID_PARAMETER),
        (sending("orders") | {"c": "other"}, b"x", Answer.TOPIC_NOT_EXIST),
        (sending("orders") | {"i": "a\x01" + "x" * 32_767}, b"x", Answer.MESSAGE_ILLEGAL),
        (sending("orders"), b"x" * ((4 << 20) + 1), Answer.MESSAGE_ILLEGAL),
        (sending("orders"), b"", Answer.MESSAGE_ILLEGAL),
        (sending("orders", DELAY="soon"), b"x", Answer.MESSAGE_ILLEGAL),
        (sending("orders", DELAY="9" * 5000), b"x", Answer.MESSAGE_ILLEGAL),
        (sending("orders", DELAY="\u0665"), b"x", Answer.MESSAGE_ILLEGAL),
        (sending("orders", 0, 1), b"not compressed", Answer.MESSAGE_ILLEGAL),
        (sending("orders", 0, 1 | 4 << 8), b"x", Answer.MESSAGE_ILLEGAL),
        (sending("%RETRY%nobody"), b"x", Answer.SUBSCRIPTION_GROUP_NOT_EXIST),
        ({"b": "orders"}, b"x", Answer.SYSTEM_ERROR),
    ],
)
def test_what_cannot_be_stored_is_refused_with_rocketmqs_code(
    serve: Serve, connect: Connect, store: broker.LiveStore, ext: dict[str, object], body: bytes, code: int
) -> None:
    answer = connect(serve()).request(Code.SEND_MESSAGE_V2, ext, body)
    assert (answer.code, bool(answer.remark)) == (code, True)
    assert store.visible_end == 0


def test_a_topic_without_a_queue_to_write_to_is_refused(
    serve: Serve, connect: Connect, store: broker.LiveStore
) -> None:
    """No request makes one; a store that was taken over may have it."""
    store.create_topic("orders", message_type="")
    path = Path(store.path) / "config" / "topics.json"
    path.write_bytes(path.read_bytes().replace(b'"writeQueueNums":4', b'"writeQueueNums":0'))
    client = connect(serve())
    for queue_id in (-1, 0):
        deadline = time.monotonic() + 10  # the file is read again within a second
        while (answer := client.publish("orders", b"x", queue_id=queue_id)).code == Answer.SUCCESS:
            assert time.monotonic() < deadline
        assert answer.code == Answer.NO_PERMISSION


def test_a_topic_that_another_process_made_just_now_stays_as_it_is(
    serve: Serve, connect: Connect, store: broker.LiveStore
) -> None:
    client = connect(serve())
    client.publish("warm", b"x")  # the server looked at the topics a moment ago
    with broker.open(store.path) as other:
        other.create_topic("pay", queues=6, message_type="TRANSACTION")
    assert client.publish("pay", b"x").code == Answer.MESSAGE_ILLEGAL
    kept = store.topic("pay")
    assert kept is not None
    assert (kept.write_queue_count, kept.attributes) == (6, {"message.type": "TRANSACTION"})


def test_a_queue_that_is_only_read_any_more_gets_nothing_new(
    serve: Serve, connect: Connect, store: broker.LiveStore
) -> None:
    """A broker's topic that was made smaller, in a store that was taken over: a producer may have an old route."""
    store.create_topic("orders", message_type="")
    path = Path(store.path) / "config" / "topics.json"
    path.write_bytes(path.read_bytes().replace(b'"writeQueueNums":4', b'"writeQueueNums":2'))
    await_true(lambda: (found := store.topic("orders")) is not None and found.write_queue_count == 2)
    client = connect(serve())
    sent = client.publish("orders", b"x", queue_id=3)
    assert (sent.code, sent.ext["queueId"], store.queue_range("orders", 1)) == (Answer.SUCCESS, "1", (0, 1))
    assert client.publish("orders", b"x", queue_id=4).code == Answer.INVALID_PARAMETER


def test_statuses_of_pulls(serve: Serve, connect: Connect) -> None:
    client = connect(serve())
    for number in range(3):
        client.publish("orders", b"%d" % number, TAGS="ab"[number % 2])
    seen = {}
    for queue_offset in (0, 3, 4, 99):
        answer = client.answer(client.pull("g", "orders", queue_offset))
        seen[queue_offset] = (answer.code, answer.remark, answer.ext["nextBeginOffset"], answer.ext["maxOffset"])
    assert seen == {
        0: (0, "FOUND", "3", "3"),
        3: (19, "OFFSET_OVERFLOW_ONE", "3", "3"),
        4: (21, "OFFSET_OVERFLOW_BADLY", "3", "3"),
        99: (21, "OFFSET_OVERFLOW_BADLY", "3", "3"),
    }
    for queue_offset, code in ((0, Answer.PULL_NOT_FOUND), (5, Answer.PULL_OFFSET_MOVED)):
        empty = client.answer(client.pull("g", "orders", queue_offset, queue_id=1))
        assert (empty.code, empty.remark, empty.ext["nextBeginOffset"]) == (code, "NO_MESSAGE_IN_QUEUE", "0")
    assert client.pulled("g", "orders", text="none")[0] == Answer.PULL_RETRY_IMMEDIATELY
    assert [one.body for one in client.pulled("g", "orders", text="b || c")[1]] == [b"1"]
    assert client.answer(client.pull("g", "nothing")).code == Answer.TOPIC_NOT_EXIST
    assert client.answer(client.pull("g", "orders", queue_id=7)).code == Answer.INVALID_PARAMETER
    assert len(client.pulled("g", "orders", most=2)[1]) == 2


@pytest.mark.parametrize("most", [0, -5])
def test_a_pull_of_no_message_gets_one(serve: Serve, connect: Connect, most: int) -> None:
    """Else its client would be told to ask again at once, for ever."""
    client = connect(serve())
    client.publish("orders", b"x")
    client.publish("orders", b"y")
    code, records = client.pulled("g", "orders", most=most)
    assert (code, [record.body for record in records]) == (Answer.SUCCESS, [b"x"])


def test_sql_filters_select_by_properties(serve: Serve, connect: Connect) -> None:
    client = connect(serve())
    for price in ("3", "12", "no"):
        client.publish("orders", price.encode(), price=price)
    found = client.pulled("g", "orders", text="price > 5 AND price IS NOT NULL", kind="SQL92")[1]
    assert [one.body for one in found] == [b"12"]
    assert client.pulled("g", "orders", text="price >", kind="SQL92")[0] == Answer.SUBSCRIPTION_PARSE_FAILED


def test_a_held_pull_wakes_by_a_send_of_anyone_and_ends_in_time(
    serve: Serve, connect: Connect, store: broker.LiveStore
) -> None:
    client, other = connect(serve()), threading.Event()
    client.publish("orders", b"first")
    waits = client.pull("g", "orders", 1, hold_ms=10_000)
    assert client.pulled("g", "orders", 0)[0] == Answer.SUCCESS  # the connection is not blocked
    took_ms = []
    for number in range(1, 6):
        other.wait(0.05)
        began = time.monotonic()
        store.append(broker.Message("orders", b"local"))
        assert client.answer(waits).remark == "FOUND"
        took_ms.append((time.monotonic() - began) * 1000)
        waits = client.pull("g", "orders", number + 1, hold_ms=10_000)
    assert min(took_ms) < 50, took_ms
    began = time.monotonic()
    answer = client.answer(client.pull("g", "orders", 6, hold_ms=300))
    assert (answer.remark, 0.25 <= time.monotonic() - began < 5) == ("OFFSET_OVERFLOW_ONE", True)


def test_a_pull_that_waits_gets_nothing_once_its_group_is_paused(
    serve: Serve, connect: Connect, store: broker.LiveStore
) -> None:
    """It was answered with what came later, for as long as it waited."""
    server = serve()
    client = connect(server)
    client.publish("orders", b"x")
    client.heartbeat(consumer="billing", topics={"orders": "*"})
    waits = client.pull("billing", "orders", 1, hold_ms=20_000)
    await_true(lambda: len(server.held) == 1)
    store.pause_group("billing")
    await_true(lambda: server.context.groups.is_paused("billing"))
    client.publish("orders", b"late")
    answer = client.answer(waits)
    assert (answer.code, answer.body) == (Answer.NO_PERMISSION, b"")


def test_positions_are_the_stores_own(serve: Serve, connect: Connect, store: broker.LiveStore) -> None:
    client = connect(serve())
    for _ in range(3):
        store.append(broker.Message("orders", b"x"))
    client.heartbeat(consumer="billing", topics={"orders": "*"})
    asked = {"consumerGroup": "billing", "topic": "orders", "queueId": 0}
    assert client.request(Code.QUERY_CONSUMER_OFFSET, asked).ext == {"offset": "0"}
    client.oneway(Code.UPDATE_CONSUMER_OFFSET, asked | {"commitOffset": 2})
    assert client.request(Code.QUERY_CONSUMER_OFFSET, asked).ext == {"offset": "2"}
    client.request(Code.UPDATE_CONSUMER_OFFSET, asked | {"commitOffset": 77})
    assert client.request(Code.QUERY_CONSUMER_OFFSET, asked).ext == {"offset": "3"}  # never beyond the queue
    stats = client.request(Code.GET_CONSUME_STATS, {"consumerGroup": "billing", "topic": "orders"}).body
    assert b'"consumerOffset":3' in stats
    unknown = asked | {"consumerGroup": "nobody", "commitOffset": 1}
    assert client.request(Code.UPDATE_CONSUMER_OFFSET, unknown).code == Answer.SUBSCRIPTION_GROUP_NOT_EXIST


def test_a_time_that_a_client_states_as_ours_delays_no_message(serve: Serve, connect: Connect) -> None:
    """With TIMER_OUT_MS in the year 5138 a delay and a retry never ended: each level wrote the message again."""
    client = connect(serve(delay_levels=" ".join(["1s"] * 18)))
    client.heartbeat(consumer="billing", topics={"orders": "*"})
    client.publish("orders", b"failed", TIMER_OUT_MS=f"{10**14}")
    back = {"group": "billing", "offset": 0, "delayLevel": 1}
    assert client.request(Code.CONSUMER_SEND_MSG_BACK, back).code == Answer.SUCCESS
    client.publish("orders", b"late", TIMER_OUT_MS=f"{10**14}", DELAY="1")
    for topic, queue_offset, body in (("%RETRY%billing", 0, b"failed"), ("orders", 1, b"late")):
        found = client.answer(client.pull("billing", topic, queue_offset, hold_ms=5000))
        assert [record.body for record in records_of(found.body)] == [body]


@pytest.mark.usefixtures("each_engine")
@pytest.mark.parametrize("waits_for", [{"TRAN_MSG": "true", "PGROUP": "shop"}, {"DELAY": "18"}])
def test_what_is_not_delivered_is_not_sent_back(serve: Serve, connect: Connect, waits_for: dict[str, str]) -> None:
    """Its copy was delivered to the group that named its place, whatever became of a transaction."""
    client = connect(serve())
    client.heartbeat(consumer="billing", topics={"orders": "*"})
    sent = client.publish("orders", b"x", UNIQ_KEY="K", **waits_for)
    back = {"group": "billing", "offset": int(sent.ext["msgId"][16:], 16), "delayLevel": 0}
    answer = client.request(Code.CONSUMER_SEND_MSG_BACK, back)
    assert (answer.code, answer.remark) == (Answer.SYSTEM_ERROR, f"look message by offset failed, {back['offset']}")


def test_what_is_sent_back_comes_again_and_is_given_up(serve: Serve, connect: Connect) -> None:
    client = connect(serve(delay_levels=" ".join(["1s"] * 18)))
    client.heartbeat(consumer="billing", topics={"orders": "*"})
    client.publish("orders", b"bad", TAGS="t")
    (record,) = client.pulled("billing", "orders")[1]
    fields = {"group": "billing", "delayLevel": 0, "originMsgId": "m", "originTopic": "orders", "maxReconsumeTimes": 1}
    back = client.request(Code.CONSUMER_SEND_MSG_BACK, fields | {"offset": record.commitlog_offset})
    assert back.code == Answer.SUCCESS
    answer = client.answer(client.pull("billing", "%RETRY%billing", 0, hold_ms=8000))
    (again,) = records_of(answer.body)
    said = {"RETRY_TOPIC": "orders", "DELAY": "3", "REAL_TOPIC": "%RETRY%billing", "WAIT": "false", "TAGS": "t"}
    assert (again.reconsume_times, again.property_map.items() >= said.items()) == (1, True)
    client.request(Code.CONSUMER_SEND_MSG_BACK, fields | {"offset": again.commitlog_offset})
    (dead,) = client.pulled("reader", "%DLQ%billing")[1]
    assert (dead.reconsume_times, dead.body, dead.property_map["DELAY"]) == (2, b"bad", "0")
    assert client.publish("orders", b"as RocketMQ's dead letters", DELAY="-1").code == Answer.SUCCESS
    assert len(client.pulled("reader", "orders")[1]) == 2
    missing = client.request(Code.CONSUMER_SEND_MSG_BACK, fields | {"offset": 1 << 40})
    assert missing.code == Answer.SYSTEM_ERROR


def test_what_a_group_that_works_in_order_gives_up_is_a_dead_letter_at_once(serve: Serve, connect: Connect) -> None:
    """Java before 5.1.1 states as many retries as it allows, each time: it would come again for ever."""
    client = connect(serve())
    client.publish("orders", b"x")
    client.heartbeat(consumer="billing", topics={"orders": "*"})
    stated = sending("%RETRY%billing", RETRY_TOPIC="orders", DELAY="5", TIMER_DELAY_MS="60000") | {"j": 2, "l": 2}
    assert client.request(Code.SEND_MESSAGE_V2, stated, b"again").code == Answer.SUCCESS
    assert client.request(Code.SEND_MESSAGE_V2, stated | {"j": 3}, b"too often").code == Answer.SUCCESS
    lock(client, client.client_id, 0)
    assert client.request(Code.SEND_MESSAGE_V2, stated, b"in order").code == Answer.SUCCESS
    dead = client.pulled("reader", "%DLQ%billing")[1]
    assert [(one.body, one.property_map["DELAY"]) for one in dead] == [(b"too often", "0"), (b"in order", "0")]
    (waits,) = client.pulled("reader", "SCHEDULE_TOPIC_XXXX", queue_id=4)[1]
    assert (waits.body, waits.property_map["REAL_TOPIC"]) == (b"again", "%RETRY%billing")


def test_a_delay_of_any_length_is_never_early(serve: Serve, connect: Connect) -> None:
    client, began = connect(serve()), time.time()
    assert client.publish("later", b"x", TIMER_DELAY_MS="1500").code == Answer.SUCCESS
    client.publish("later", b"by level", TIMER_DELAY_MS="1500", DELAY="4")  # the level counts
    (waits,) = client.pulled("g", "SCHEDULE_TOPIC_XXXX", queue_id=3)[1]
    assert "TIMER_DELAY_MS" not in waits.property_map
    answer = client.answer(client.pull("g", "later", 0, hold_ms=9000))
    (record,) = records_of(answer.body)
    assert 1.5 <= time.time() - began < 6
    assert {"TIMER_OUT_MS", "TIMER_DEQUEUE_MS", "REAL_TOPIC"} <= record.property_map.keys()
    assert "DELAY" not in record.property_map


def test_a_place_that_a_client_names_inside_a_record_costs_one_small_read(
    serve: Serve, connect: Connect, store: broker.LiveStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not searched for what it might be: that took 30 ms each, in the thread that stores what others send."""
    monkeypatch.setattr(CommitLog, "_next_record", None)
    client = connect(serve())
    client.heartbeat(consumer="billing", topics={"orders": "*"})
    sent = client.publish("orders", b"x" * 100_000)
    record = store.commitlog.at(int(sent.ext["msgId"][16:], 16))
    assert record is not None
    for offset in (1, 88, 1000, record.total_size - 4, record.total_size, -1, 1 << 62):
        for code, more in ((Code.VIEW_MESSAGE_BY_ID, {}), (Code.CONSUMER_SEND_MSG_BACK, {"group": "billing"})):
            answer = client.request(code, {"offset": offset, "delayLevel": 0, **more})
            assert (answer.code, "offset" in str(answer.remark)) == (Answer.SYSTEM_ERROR, True)
    assert client.request(Code.VIEW_MESSAGE_BY_ID, {"offset": 0}).code == Answer.SUCCESS


def test_a_body_that_only_begins_as_a_compressed_one_holds_nothing_up(
    serve: Serve, connect: Connect, store: broker.LiveStore
) -> None:
    """The server looks at its beginning; consumers in processes get it as it is, and what follows it."""
    client, begins = connect(serve()), b"x\x9c" + bytes(9)
    assert client.publish("orders", begins, sys_flag=1, KEYS="k").code == Answer.SUCCESS
    assert client.publish("orders", b"next", KEYS="k").code == Answer.SUCCESS
    with store.consumer("local", "orders") as consumer:
        got = [consumer.receive(10) for _ in range(2)]
    assert [message and message.body for message in got] == [begins, b"next"]
    by_key = {"topic": "orders", "key": "k", "maxNum": 32, "beginTimestamp": 0, "endTimestamp": (1 << 63) - 1}
    assert len(records_of(client.request(Code.QUERY_MESSAGE, by_key).body)) == 2


@pytest.mark.parametrize("group", [SCHEDULE_GROUP, CHECK_GROUP])
def test_no_client_moves_a_group_of_the_stores_own(serve: Serve, connect: Connect, group: str) -> None:
    """By the first one delayed messages are delivered, by the second a broker knows which half messages to check."""
    client = connect(serve(delay_levels=" ".join(["1s"] * 18)))
    client.publish("orders", b"later", DELAY="3")
    topic, queue = "SCHEDULE_TOPIC_XXXX", {"topic": "SCHEDULE_TOPIC_XXXX", "queueId": 2}
    client.pulled(group, topic, queue_id=2)  # makes the group
    client.pulled("billing", topic, queue_id=2)
    client.request(Code.UPDATE_CONSUMER_OFFSET, queue | {"consumerGroup": "billing", "commitOffset": 1})
    pull = queue | {"consumerGroup": group, "queueOffset": 1, "maxMsgNums": 1, "sysFlag": 5, "commitOffset": 1,
                    "suspendTimeoutMillis": 0, "subVersion": 0, "subscription": "*"}  # fmt: skip
    reset = {"timestamp": -1, "isForce": "true", "offset": 1}
    for code, ext in (
        (Code.UPDATE_CONSUMER_OFFSET, queue | {"consumerGroup": group, "commitOffset": 1}),
        (Code.PULL_MESSAGE, pull),
        (Code.INVOKE_BROKER_TO_RESET_OFFSET, queue | reset | {"group": group}),
        (Code.CLONE_GROUP_OFFSET, {"srcGroup": "billing", "destGroup": group, "topic": topic}),
        (Code.DELETE_SUBSCRIPTIONGROUP, {"groupName": group, "cleanOffset": "true"}),
    ):
        assert client.request(code, ext).code == Answer.NO_PERMISSION
    answer = client.answer(client.pull("billing", "orders", hold_ms=10_000), timeout_s=15)
    assert [record.body for record in records_of(answer.body)] == [b"later"]


def test_a_delayed_message_whose_properties_are_full_comes_as_others_do(serve: Serve, connect: Connect) -> None:
    """What is added at its delivery does not fit: it goes without, and nothing waits behind it."""
    client = connect(serve(delay_levels=" ".join(["1s"] * 18)))
    sizes = range(32_600, 32_000, -1)
    assert any(client.publish("a", b"full", TIMER_DELAY_MS="1000", x="y" * size).code == 0 for size in sizes)
    for level in ("1", "2"):
        assert client.publish("b", b"other", DELAY=level).code == Answer.SUCCESS
    for topic, queue_offset in (("a", 0), ("b", 0), ("b", 1)):
        answer = client.answer(client.pull("g", topic, queue_offset, hold_ms=9000))
        assert {record.topic for record in records_of(answer.body)} == {topic}


def test_a_delayed_message_that_cannot_be_read_holds_its_own_level_only(
    serve: Serve, connect: Connect, store: broker.LiveStore
) -> None:
    client = connect(serve(delay_levels=" ".join(["1s"] * 18)))
    for number, level in enumerate(("1", "1", "2")):
        assert client.publish("later", b"%d" % number * 8, DELAY=level).code == Answer.SUCCESS
    *_, second, _ = store.records()
    with (Path(store.path) / "commitlog" / f"{0:020}").open("r+b") as log:
        log.seek(second.commitlog_offset + second.total_size // 2)
        log.write(b"\xff\xff\xff")
    for queue_offset in range(2):
        answer = client.answer(client.pull("g", "later", queue_offset, hold_ms=9000))
        assert [record.body[:1] for record in records_of(answer.body)] in ([b"0"], [b"2"])


def test_members_hear_of_each_other_and_lock_queues(serve: Serve, connect: Connect) -> None:
    server = serve()
    first, second = connect(server, client_id="a"), connect(server, client_id="b")
    first.publish("orders", b"x")
    first.heartbeat(consumer="billing", topics={"orders": "*"})
    first.next_asked(Code.NOTIFY_CONSUMER_IDS_CHANGED)
    second.heartbeat(consumer="billing", topics={"orders": "*"})
    first.next_asked(Code.NOTIFY_CONSUMER_IDS_CHANGED)
    ids = first.request(Code.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "billing"})
    assert json_of(ids) == {"consumerIdList": ["a", "b"]}
    queue = '{"topic":"orders","brokerName":"broker-a","queueId":0}'
    locks = [
        client.request(
            Code.LOCK_BATCH_MQ,
            body=f'{{"consumerGroup":"billing","clientId":"{client.client_id}","mqSet":[{queue}]}}'.encode(),
        )
        for client in (first, second)
    ]
    assert [len(json_of(one)["lockOKMQSet"]) for one in locks] == [1, 0]
    second.socket.close()
    first.next_asked(Code.NOTIFY_CONSUMER_IDS_CHANGED)
    ids = first.request(Code.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "billing"})
    assert json_of(ids) == {"consumerIdList": ["a"]}


def test_routes_have_quoted_keys_for_those_who_read_them(serve: Serve, connect: Connect) -> None:
    client = connect(serve())
    client.publish("orders", b"x")
    route = json_of(client.request(Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"}))
    assert route["queueDatas"][0].items() >= {"perm": 6, "readQueueNums": 4, "writeQueueNums": 4}.items()
    assert b'"brokerAddrs":{0:"127.0.0.1' in client.request(Code.GET_BROKER_CLUSTER_INFO).body
