"""Transactions over the wire: ends, contrary ends, and checks of producers that live."""

from __future__ import annotations

import contextlib
import shutil
import time
from pathlib import Path

import pytest

import broker
from broker.format.commitlog import decode
from broker.format.topics import HALF_TOPIC
from broker.remoting.codes import RequestCode as Code
from broker.remoting.codes import ResponseCode as Answer
from broker.remoting.command import RemotingCommand
from broker.server import connection
from recovery.verify.verifier import verify
from tests.server.conftest import Connect, Serve
from tests.server.wire_client import WireClient, sending
from tests.transaction.opened import damage

pytestmark = pytest.mark.usefixtures("each_engine")

COMMIT, ROLLBACK = 8, 12
SOON = {"check_interval_s": 0.2, "transaction_timeout_s": 0.001}


def prepare(
    client: WireClient, body: bytes = b"created", group: str = "shop", *, key: str = "", **properties: str
) -> dict[str, object]:
    """A half message; the fields of its END_TRANSACTION, as clients take them from the answer."""
    key = key or f"U-{body.decode()}"
    sent = client.publish("orders", body, sys_flag=4, TRAN_MSG="true", PGROUP=group, UNIQ_KEY=key, **properties)
    assert sent.code == Answer.SUCCESS
    at = int(sent.ext["msgId"][16:], 16)
    return {"producerGroup": group, "tranStateTableOffset": sent.ext["queueOffset"], "commitLogOffset": at}


def end(client: WireClient, half: dict[str, object], decision: int) -> RemotingCommand:
    return client.request(Code.END_TRANSACTION, half | {"commitOrRollback": decision})


def _copy(source: str, target: str) -> None:
    with contextlib.suppress(FileNotFoundError):  # the store lives: what was written beside a file has its name by now
        shutil.copy2(source, target)


def crash(store: broker.LiveStore, tmp_path: Path) -> Path:
    """A copy of the store, as a machine leaves it that stops: its recovery reads the log from the beginning."""
    store.sync_now()
    crashed = tmp_path / "crashed"
    shutil.copytree(store.path, crashed, copy_function=_copy)
    for name in ("checkpoint", "control", "durable"):
        (crashed / "checkback" / name).unlink(missing_ok=True)
    (crashed / "abort").touch()
    return crashed


def test_a_half_message_is_delivered_by_its_commit_alone(
    serve: Serve, connect: Connect, store: broker.LiveStore
) -> None:
    client = connect(serve())
    half, other = prepare(client, b"one"), prepare(client, b"two")
    assert (half["tranStateTableOffset"], other["tranStateTableOffset"]) == ("0", "1")
    assert client.pulled("g", "orders")[1] == []
    assert end(client, half, COMMIT).code == Answer.SUCCESS
    assert end(client, other, ROLLBACK).code == Answer.SUCCESS
    (record,) = client.pulled("g", "orders")[1]
    assert (record.body, record.sys_flag, record.prepared_transaction_offset) == (b"one", 8, 0)
    said = {"PGROUP": "shop", "TRAN_MSG": "true", "REAL_TOPIC": "orders", "__transactionId__": "U-one"}
    assert record.property_map.items() >= said.items()
    assert list(store.transactions.in_doubt()) == []


def test_the_first_decision_stands(serve: Serve, connect: Connect) -> None:
    client = connect(serve())
    half = prepare(client)
    assert end(client, half, ROLLBACK).code == Answer.SUCCESS
    assert end(client, half, ROLLBACK).code == Answer.SUCCESS
    refused = end(client, half, COMMIT)
    assert (refused.code, "first decision" in str(refused.remark)) == (Answer.SYSTEM_ERROR, True)
    assert client.pulled("g", "orders")[1] == []


@pytest.mark.parametrize("second", [COMMIT, ROLLBACK, None])
@pytest.mark.parametrize("first", [COMMIT, ROLLBACK, None])
def test_a_half_message_that_was_sent_twice_is_two(
    serve: Serve, connect: Connect, store: broker.LiveStore, tmp_path: Path, first: int | None, second: int | None
) -> None:
    """As Go's client sends one whose answer is late: each is ended by itself, and all that read the store agree."""
    client = connect(serve())
    decisions = (first, second)
    for half, decision in zip([prepare(client), prepare(client)], decisions, strict=True):
        if decision is not None:
            assert end(client, half, decision).code == Answer.SUCCESS
    assert [store.transactions.in_doubt_slots(), len(client.pulled("g", "orders")[1])] == [
        [slot for slot, decision in enumerate(decisions) if decision is None],
        decisions.count(COMMIT),
    ]
    crashed = crash(store, tmp_path)
    with broker.open(crashed) as recovered:
        assert recovered.transactions.in_doubt_slots() == store.transactions.in_doubt_slots()
    for path in (store.path, crashed):
        findings = [finding.kind for finding in verify(path).findings]
        assert findings == (["delivered-twice"] if decisions == (COMMIT, COMMIT) and _is_half_op(store) else [])


def _is_half_op(store: broker.LiveStore) -> bool:
    return bool(store.queues(HALF_TOPIC))


@pytest.mark.parametrize("wrong", [{"producerGroup": "x"}, {"tranStateTableOffset": 7}, {"commitLogOffset": 1 << 40}])
def test_an_end_must_name_its_half_message(serve: Serve, connect: Connect, wrong: dict[str, object]) -> None:
    client = connect(serve())
    half = prepare(client)
    assert end(client, half | wrong, COMMIT).code == Answer.SYSTEM_ERROR
    assert end(client, half, COMMIT).code == Answer.SUCCESS


def test_a_producer_that_does_not_know_gets_no_answer(serve: Serve, connect: Connect) -> None:
    client = connect(serve())
    client.send(Code.END_TRANSACTION, prepare(client) | {"commitOrRollback": 0})
    assert client.publish("orders", b"next").code == Answer.SUCCESS
    assert not client.is_closed(0.2)


def test_a_live_producer_of_the_group_is_asked_and_its_answer_counts(
    serve: Serve, connect: Connect, store: broker.LiveStore
) -> None:
    server = serve(**SOON)
    dead, living = connect(server, client_id="dead"), connect(server, client_id="living")
    half = prepare(dead)
    dead.socket.close()
    time.sleep(0.5)  # rounds without a producer ask nobody, and are not counted
    living.heartbeat(producer="shop")
    asked = living.next_asked(Code.CHECK_TRANSACTION_STATE)
    assert asked.is_oneway
    assert asked.ext["commitLogOffset"] == str(half["commitLogOffset"])
    assert asked.ext["tranStateTableOffset"] == half["tranStateTableOffset"]
    message = decode(asked.body)
    said = {"TRANSACTION_CHECK_TIMES": "1", "PGROUP": "shop", "REAL_TOPIC": "orders", "UNIQ_KEY": "U-created"}
    assert (message.topic, message.sys_flag, message.body) == ("orders", 0, b"created")
    assert message.property_map.items() >= said.items()
    echo = {name: asked.ext[name] for name in ("commitLogOffset", "tranStateTableOffset", "msgId")}
    fields = echo | {"producerGroup": "shop", "commitOrRollback": COMMIT, "fromTransactionCheck": "true"}
    living.oneway(Code.END_TRANSACTION, fields)
    answer = living.answer(living.pull("g", "orders", 0, hold_ms=5000))
    assert "TRANSACTION_CHECK_TIMES" in decode(answer.body).property_map
    assert list(store.transactions.in_doubt()) == []


@pytest.mark.parametrize(("topic", "times"), [("%RETRY%billing", 1), ("%RETRY%billing", 0), ("orders", 1)])
def test_a_copy_that_a_consumer_sends_is_no_half_message(
    serve: Serve, connect: Connect, store: broker.LiveStore, topic: str, times: int
) -> None:
    """Clients before 4.6.1 leave TRAN_MSG in what they send to their retry topic themselves."""
    client = connect(serve())
    client.heartbeat(consumer="billing", topics={"orders": "*"})
    fields = sending(topic, TRAN_MSG="true", PGROUP="shop", UNIQ_KEY="U-1") | {"j": times, "l": 16}
    assert client.request(Code.SEND_MESSAGE_V2, fields, b"again").code == Answer.SUCCESS
    assert store.transactions.in_doubt_slots() == []
    (record,) = client.pulled("g", topic)[1]
    assert "TRAN_MSG" not in record.property_map


def test_tran_msg_counts_in_any_case(serve: Serve, connect: Connect, store: broker.LiveStore) -> None:
    """As a broker of RocketMQ reads it."""
    client = connect(serve())
    assert client.publish("orders", b"x", sys_flag=4, TRAN_MSG="True", PGROUP="shop").code == Answer.SUCCESS
    assert client.pulled("g", "orders")[1] == []
    assert len(store.transactions.in_doubt_slots()) == 1


def test_what_nobody_knows_is_parked_and_can_still_be_ended(
    serve: Serve, connect: Connect, store: broker.LiveStore
) -> None:
    client = connect(serve(check_max=2, **SOON))
    half = prepare(client)
    client.heartbeat(producer="shop")
    for _ in range(2):
        client.next_asked(Code.CHECK_TRANSACTION_STATE)
    deadline = time.monotonic() + 10
    while not store.transactions.parked() and time.monotonic() < deadline:
        time.sleep(0.05)
    ((parked, note),) = store.transactions.parked().items()
    assert (parked, note.why[:12]) == (half["commitLogOffset"], "2 producers ")
    assert end(client, half, COMMIT).code == Answer.SUCCESS


def test_a_stop_waits_for_one_answer_of_the_resolver(serve: Serve, connect: Connect) -> None:
    asked: list[int] = []

    def resolver(half: broker.Half, message: broker.ReceivedMessage) -> broker.LocalTransactionState:
        asked.append(half.commitlog_offset)
        time.sleep(0.5)
        return broker.LocalTransactionState.UNKNOW

    server = serve(resolver=resolver, check_interval_s=0.3, transaction_timeout_s=0.01)
    client = connect(server)
    for number in range(6):
        prepare(client, b"%d" % number)
    while not asked:
        time.sleep(0.01)
    server.close()
    assert len(set(asked)) < 6


def test_a_resolver_answers_first(serve: Serve, connect: Connect, store: broker.LiveStore) -> None:
    def resolver(half: broker.Half, message: broker.ReceivedMessage) -> broker.LocalTransactionState:
        states = {b"paid": "commit", b"cancelled": "rollback"}
        return broker.LocalTransactionState(states.get(message.body, "unknown"))

    client = connect(serve(resolver=resolver, **SOON))
    client.heartbeat(producer="shop")
    for body in (b"paid", b"cancelled", b"else"):
        prepare(client, body)
    asked = client.next_asked(Code.CHECK_TRANSACTION_STATE)
    assert decode(asked.body).body == b"else"
    assert [half.unique_key for half in store.transactions.in_doubt()] == ["U-else"]
    assert [one.body for one in client.pulled("g", "orders")[1]] == [b"paid"]


def test_a_store_that_refuses_transactions_says_so(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("refusing") / "store"
    with (
        broker.open(path, reject_transactions=True, layout=broker.StoreLayout(segment_bytes=8 << 20)) as store,
        broker.serve(store, "127.0.0.1:0") as server,
        WireClient(server.address) as client,
    ):
        refused = client.publish("orders", b"x", sys_flag=4, TRAN_MSG="true", PGROUP="shop")
        assert refused.code == Answer.NO_PERMISSION
        assert client.publish("orders", b"x").code == Answer.SUCCESS


def test_an_end_keeps_the_checks_that_its_half_message_states(
    serve: Serve, connect: Connect, store: broker.LiveStore
) -> None:
    """A store that was taken over: its broker counted checks in the half message."""
    half = store.transactions.prepare(
        broker.Message("orders", b"created"), "shop", extra_properties={"TRANSACTION_CHECK_TIMES": "2"}
    )
    client = connect(serve(**SOON))
    client.heartbeat(producer="shop")
    client.next_asked(Code.CHECK_TRANSACTION_STATE)
    named = {"tranStateTableOffset": half.slot, "commitLogOffset": half.commitlog_offset}
    assert end(client, {"producerGroup": "shop", **named}, COMMIT).code == Answer.SUCCESS
    (record,) = client.pulled("g", "orders")[1]
    assert record.properties.count(b"TRANSACTION_CHECK_TIMES") == 1
    assert record.property_map["TRANSACTION_CHECK_TIMES"] == "2"


@pytest.mark.parametrize("level", ["\u00b2", "9" * 5000, "5"])
def test_a_client_states_no_delay_of_ours(
    serve: Serve, connect: Connect, store: broker.LiveStore, tmp_path: Path, level: str
) -> None:
    """What is no number would be an error at the next recovery; and a level would delay the commit."""
    client = connect(serve())
    half = prepare(client, CHECKBACK_DELAY=level, CHECKBACK_BY="somebody", TRANSACTION_CHECK_TIMES="7")
    with broker.open(crash(store, tmp_path)) as recovered:
        (found,) = recovered.transactions.in_doubt()
        assert {"CHECKBACK_DELAY", "CHECKBACK_BY", "TRANSACTION_CHECK_TIMES"}.isdisjoint(found.properties)
    assert end(client, half, COMMIT).code == Answer.SUCCESS
    assert [one.body for one in client.pulled("g", "orders")[1]] == [b"created"]


def test_a_recovery_takes_no_text_of_a_client_for_a_check(
    serve: Serve, connect: Connect, store: broker.LiveStore, tmp_path: Path
) -> None:
    """A half message that its broker stored again takes over from the one before it, which was ended here."""
    client = connect(serve())
    half = prepare(client, key="U-1")
    prepare(
        client, b"TRANSACTION_CHECK_TIMES\x01", key="U-1", TRANSACTION_CHECK_TIMES="1", note="TRANSACTION_CHECK_TIMES"
    )
    assert end(client, half, ROLLBACK).code == Answer.SUCCESS
    with (
        broker.open(crash(store, tmp_path)) as recovered,
        broker.serve(recovered, "127.0.0.1:0") as server,
        WireClient(server.address) as again,
    ):
        assert end(again, half, COMMIT).code == Answer.SYSTEM_ERROR
        assert end(again, half, ROLLBACK).code == Answer.SUCCESS


def longest_half(client: WireClient) -> dict[str, object]:
    """A half message whose properties take all the room that there is."""
    for size in range(32_600, 32_000, -1):
        fields = {"TRAN_MSG": "true", "PGROUP": "shop", "UNIQ_KEY": "U-long", "x": "y" * size}
        sent = client.publish("orders", b"long", sys_flag=4, **fields)
        if sent.code == Answer.SUCCESS:
            at = int(sent.ext["msgId"][16:], 16)
            return {"producerGroup": "shop", "tranStateTableOffset": sent.ext["queueOffset"], "commitLogOffset": at}
    raise AssertionError


def asked_keys(client: WireClient, wanted: set[str]) -> set[str]:
    """The keys of the half messages that a client is asked about, once all of these are among them."""
    found: set[str] = set()
    while not wanted <= found:
        found.add(client.next_asked(Code.CHECK_TRANSACTION_STATE).ext["msgId"])
    return found


@pytest.mark.parametrize("immunity", ["9" * 5000, "9" * 18, "\u0665"])
def test_no_immunity_of_one_half_message_keeps_others_from_being_checked(
    serve: Serve, connect: Connect, immunity: str
) -> None:
    client = connect(serve(**SOON))
    client.heartbeat(producer="shop")
    prepare(client, b"first", CHECK_IMMUNITY_TIME_IN_SECONDS=immunity)
    prepare(client, b"second")
    is_number = immunity == "9" * 18
    assert ("U-first" in asked_keys(client, {"U-second"} if is_number else {"U-first", "U-second"})) is not is_number


def test_a_half_message_whose_properties_are_full_is_checked_ended_and_parked_as_others(
    serve: Serve, connect: Connect, store: broker.LiveStore
) -> None:
    client = connect(serve(check_max=2, **SOON))
    client.heartbeat(producer="shop")
    half, other = longest_half(client), longest_half(client)
    prepare(client, b"next")
    asked_keys(client, {"U-long", "U-next"})
    assert end(client, half, COMMIT).code == Answer.SUCCESS
    deadline = time.monotonic() + 10
    while len(store.transactions.parked()) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert other["commitLogOffset"] in store.transactions.parked()
    assert end(client, other, ROLLBACK).code == Answer.SUCCESS


def test_a_half_message_that_cannot_be_parked_is_said_once_and_the_others_are_checked(
    serve: Serve, connect: Connect, store: broker.LiveStore, caplog: pytest.LogCaptureFixture
) -> None:
    """The name of its group takes all the room that there is, so that no record can say that it is parked."""
    client = connect(serve(check_max=1, **SOON))
    size = next(size for size in range(32_700, 32_000, -1) if _is_taken(client, "g" * size))
    client.heartbeat(producer="g" * size)
    client.heartbeat(producer="shop")
    asked_keys(client, {"U-long"})
    for number in range(3):
        prepare(client, b"%d" % number)
        asked_keys(client, {f"U-{number}"})
        time.sleep(0.5)
    said = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert ["cannot be checked" in text for text in said] == [True]


def test_a_half_message_that_cannot_be_read_is_said_once_and_the_others_are_checked(
    serve: Serve, connect: Connect, store: broker.LiveStore, caplog: pytest.LogCaptureFixture
) -> None:
    client = connect(serve(**SOON))
    prepare(client, b"lost")
    (half,) = store.transactions.in_doubt()
    damage(store, half)
    client.heartbeat(producer="shop")
    for number in range(3):
        prepare(client, b"%d" % number)
        asked_keys(client, {f"U-{number}"})
    assert ["cannot be read" in one.getMessage() for one in caplog.records if one.levelname == "ERROR"] == [True]


def _is_taken(client: WireClient, group: str) -> bool:
    sent = client.publish("orders", b"x", sys_flag=4, TRAN_MSG="true", PGROUP=group, UNIQ_KEY="U-long")
    return sent.code == Answer.SUCCESS


def test_a_half_message_that_is_born_in_the_future_is_checked(serve: Serve, connect: Connect) -> None:
    """A producer's clock may be wrong: then its time-out counts from when the message was stored."""
    client = connect(serve(**SOON))
    client.heartbeat(producer="shop")
    fields = sending("orders", sys_flag=4, TRAN_MSG="true", PGROUP="shop", UNIQ_KEY="U-1") | {"g": 1 << 62}
    assert client.request(Code.SEND_MESSAGE_V2, fields, b"x").code == Answer.SUCCESS
    asked_keys(client, {"U-1"})


def test_checks_go_at_the_pace_of_their_producer(
    serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that does not read for a while keeps its connection, and no check that it did not get is counted."""
    monkeypatch.setattr(connection, "UNSENT_BYTES_MAX", 4 << 20)
    monkeypatch.setattr(connection, "_WRITE_HIGH", 1 << 20)
    client = connect(serve(check_max=1, **SOON))
    for number in range(30):
        prepare(client, b"%d" % number * 400_000, key=f"U-{number}")
    client.heartbeat(producer="shop")
    time.sleep(1)
    assert len(asked_keys(client, {f"U-{number}" for number in range(30)})) == 30
