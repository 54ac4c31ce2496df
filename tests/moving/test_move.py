"""`checkback move` to a served store: each message once, whenever it is killed, and what groups had stays had."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine

import broker
from broker.cluster.network.settings import ClientSettings, parse_url
from broker.cluster.publishing.sending import Placed
from broker.database.ledger_binding import LEDGER_BINDING
from broker.errors import ClusterError, StoreError, StoreLocked
from broker.remoting.bodies import MessageQueue
from broker.transaction.events import BY, WHY
from recovery.answering.group_answering import answering, bind
from recovery.moving import sending
from recovery.moving.catalog import MoveCatalog, QueueProgress
from recovery.moving.conversion import ORIGIN, CarriedMessage
from recovery.moving.mover import move, plan_move
from recovery.moving.report import MoveReport
from recovery.moving.target import MoveTarget
from tests.cli.command import command
from tests.cluster.waiting import awaited
from tests.moving.shops import GROUP, TOPIC, Shop, filled


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "SETTLE_S", 0.05)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    made = create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    yield made
    made.dispose()


@pytest.fixture
def shop(tmp_path: Path, engine: Engine) -> Shop:
    return filled(tmp_path / "shop.store", engine)


@pytest.fixture
def there(tmp_path: Path) -> Iterator[tuple[broker.LiveStore, broker.Server]]:
    """The cluster: a served store. It checks transactions at once."""
    with ExitStack() as stack:
        store = stack.enter_context(broker.open(tmp_path / "there", sync="os", transactions="half-op"))
        soon = {"check_interval_s": 0.2, "transaction_timeout_s": 0.3}
        yield store, stack.enter_context(broker.serve(store, "127.0.0.1:0", **soon))


def settings(server: broker.Server) -> ClientSettings:
    return ClientSettings(parse_url(f"rocketmq://{server.address}"))


def bodies(store: broker.LiveStore, topic: str) -> list[bytes]:
    found = []
    for queue_id in store.queues(topic):
        for number in range(*store.queue_range(topic, queue_id)):
            message = store.message(topic, queue_id, number)
            assert message is not None
            assert ORIGIN in message.properties
            found.append(message.body)
    return found


def check_arrived(shop: Shop, there: tuple[broker.LiveStore, broker.Server], engine: Engine) -> None:
    """Everything once, in order; the group goes on behind what it had; the ledger answers for what was in doubt."""
    store, server = there
    for topic in (TOPIC, "%RETRY%billing", "%DLQ%billing"):
        assert bodies(store, topic) == shop.bodies[topic], topic
    with broker.connect(f"rocketmq://{server.address}") as cluster:
        left = set(shop.bodies[TOPIC]) - set(shop.consumed) - {shop.retried}
        with cluster.consumer(GROUP, TOPIC) as consumer:
            found = []
            while (message := consumer.receive(2.0)) is not None:
                found.append((message.body, message.reconsume_times))
                assert message.topic == TOPIC
                consumer.ack(message)
        assert sorted(found) == sorted([*((one, 0) for one in left), (shop.retried, 1)])
        with answering(cluster, "shop", [broker.Ledger(engine)]) as answerer:
            assert awaited(lambda: not list(store.transactions.in_doubt()), 20)
        assert answerer.report.committed >= 1
        assert answerer.report.rolled_back >= 1
        with cluster.consumer("later", ["reminders", TOPIC], start="first") as consumer:
            seen: list[bytes] = []
            assert awaited(lambda: _more(consumer, seen) or shop.waiting <= set(seen), 45)
    assert seen.count(shop.committed) == 1
    assert shop.lost not in seen
    assert all(seen.count(one) == 1 for one in shop.waiting)


def _more(consumer: broker.ClusterConsumer, seen: list[bytes]) -> None:
    while (message := consumer.receive(0.2)) is not None:
        seen.append(message.body)
        consumer.ack(message)


@pytest.mark.usefixtures("each_engine")
def test_everything_arrives_once_and_groups_go_on(
    shop: Shop, there: tuple[broker.LiveStore, broker.Server], engine: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"rocketmq://{there[1].address}"
    plan = command(capsys, "move", shop.path, url, "--ledger", engine.url)
    assert plan.code == 0, plan.err
    assert "orders: 31 messages in 3 queues; the topic is made" in plan.out
    assert "2 delayed messages" in plan.out
    assert "2 transactions in doubt of the producer group shop" in plan.out
    assert there[0].topic(TOPIC) is None  # nothing was sent or made
    ran = command(capsys, "move", shop.path, url, "--ledger", engine.url, "--apply", "--json")
    assert ran.code == 0, ran.err
    report = json.loads(ran.out)
    assert report["ok"]
    assert report["topics"][TOPIC]["messages"] == report["topics"][TOPIC]["read_back"] == 31
    assert report["topics"][TOPIC]["digest"] == report["topics"][TOPIC]["read_back_digest"]
    original = _first(shop.path)
    carried = there[0].message(TOPIC, 0, 0)
    assert carried is not None
    for name in ("body", "tag", "keys", "unique_key", "born_timestamp_ms", "flag"):
        assert getattr(carried, name) == getattr(original, name), name
    assert carried.properties["colour"] == "blue"
    kinds = {name: there[0].topic(name) for name in (TOPIC, "reminders")}
    assert [kind and (kind.write_queue_count, kind.message_type) for kind in kinds.values()] == [
        (3, "NORMAL"),  # it takes all: a broker has no other name for that
        (2, "DELAY"),
    ]
    again = command(capsys, "move", shop.path, url, "--apply")
    assert again.code == 0
    assert "was moved before" in again.out
    with pytest.raises(StoreError, match="was moved to rocketmq://"):
        broker.open(shop.path)
    check_arrived(shop, there, engine)


def test_queues_that_are_only_read_are_so_at_the_cluster(
    shop: Shop, there: tuple[broker.LiveStore, broker.Server], engine: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    """A topic that was being made smaller took messages in all of them again."""
    with broker.open(shop.path) as store:
        store.create_topic(TOPIC, queues=3, message_type="", write_queues=1)
    url = f"rocketmq://{there[1].address}"
    ran = command(capsys, "move", shop.path, url, "--ledger", engine.url, "--apply")
    assert ran.code == 0, ran.err
    made = there[0].topic(TOPIC)
    assert made is not None
    assert (made.read_queue_count, made.write_queue_count) == (3, 1)
    check_arrived(shop, there, engine)


def _first(path: Path) -> broker.ReceivedMessage:
    with broker.open(path, read_only=True) as store:
        message = store.message(TOPIC, 0, 0)
        assert message is not None
        return message


class Killed(BaseException):
    """As a SIGKILL: nothing that runs in the process sees to anything afterwards."""


def killed_at(monkeypatch: pytest.MonkeyPatch, step: int, *, before: bool) -> None:
    """The process dies at its nth send, before it or before its answer, and writes nothing after that."""
    calls, send, put_queue = [0], MoveTarget.send, MoveCatalog.put_queue
    is_dead: list[bool] = []

    async def dying(self: MoveTarget, queue: MessageQueue, message: CarriedMessage, extra: Any) -> Placed:
        calls[0] += 1
        if is_dead or (calls[0] >= step and before):
            is_dead.append(True)
            raise Killed
        placed = await send(self, queue, message, extra)
        if calls[0] >= step:
            is_dead.append(True)
            raise Killed
        return placed

    def unwritten(self: MoveCatalog, one: QueueProgress) -> None:
        if not is_dead:
            put_queue(self, one)

    monkeypatch.setattr(MoveTarget, "send", dying)
    monkeypatch.setattr(MoveCatalog, "put_queue", unwritten)


@pytest.mark.sample("state-table-before a send", "half-op-before its answer")
@pytest.mark.usefixtures("each_engine")
@pytest.mark.parametrize("before", [True, False], ids=["before a send", "before its answer"])
def test_killed_at_every_kind_of_step(
    shop: Shop, there: tuple[broker.LiveStore, broker.Server], engine: Engine, monkeypatch: pytest.MonkeyPatch,
    before: bool,
) -> None:  # fmt: skip
    """Run after run gets a little further, and none gets to note what it sent in the queue where it dies."""
    ledgers, runs = [broker.Ledger(engine)], 0
    report: MoveReport | None = None
    while report is None:
        runs += 1
        assert runs < 60
        with monkeypatch.context() as context:
            killed_at(context, 1 + runs % 4, before=before)
            with contextlib.suppress(Killed):
                report = move(shop.path, settings(there[1]), ledgers=ledgers)
    assert runs > 5
    assert report.ok, report.findings
    assert report.recognised or before
    check_arrived(shop, there, engine)


def test_a_killed_process(shop: Shop, there: tuple[broker.LiveStore, broker.Server], engine: Engine) -> None:
    """kill -9 of the command, some times, and the last one ends."""
    words = [sys.executable, "-m", "recovery.cli", "move", str(shop.path), f"rocketmq://{there[1].address}",
             "--ledger", str(engine.url), "--apply", "--json"]  # fmt: skip
    slow = {**os.environ, "PYTHONPATH": os.getcwd()}
    for turn in range(3):
        before = there[0].end_offset
        with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=slow) as process:
            assert awaited(lambda: process.poll() is not None or there[0].end_offset > before, 30)  # noqa: B023
            time.sleep(turn * 0.004)
            process.send_signal(signal.SIGKILL)
    ran = subprocess.run(words, capture_output=True, text=True, env=slow, check=False)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["ok"]
    check_arrived(shop, there, engine)


def test_a_full_disk_under_the_notes_of_a_move_is_a_sentence_and_the_next_run_goes_on(
    shop: Shop, there: tuple[broker.LiveStore, broker.Server], engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_page(self: MoveCatalog, *_: object) -> None:
        self._db.execute("PRAGMA max_page_count = 1")
        self._db.execute("CREATE TABLE more AS SELECT zeroblob(1 << 20)")

    ledgers = [broker.Ledger(engine)]
    with monkeypatch.context() as patch:
        patch.setattr(MoveCatalog, "put_queue", no_page)
        with pytest.raises(broker.StoreFull, match=r"move\.db does not fit .*run the same command again"):
            move(shop.path, settings(there[1]), ledgers=ledgers)
    assert move(shop.path, settings(there[1]), ledgers=ledgers).ok


def test_a_cluster_that_is_bound_already_keeps_its_binding(
    shop: Shop, there: tuple[broker.LiveStore, broker.Server], engine: Engine
) -> None:
    """The half messages name its binding then; and a row that a person's decision lacks accuses no ledger."""
    ledger = broker.Ledger(engine)
    with broker.connect(f"rocketmq://{there[1].address}") as cluster:
        bound = bind(cluster, ledger)
    with broker.open(shop.path) as store:
        half = next(one for one in store.transactions.in_doubt() if one.keys == ("none",))
        store.transactions.commit(half, extra_properties={BY: "ops", WHY: "the customer called"})
    assert move(shop.path, settings(there[1]), ledgers=[ledger]).ok
    (half,) = there[0].transactions.in_doubt()
    assert half.properties[LEDGER_BINDING] == bound.binding_id != shop.binding_id
    with (
        broker.connect(f"rocketmq://{there[1].address}") as cluster,
        answering(cluster, "shop", [ledger]) as answerer,
    ):
        assert awaited(lambda: not list(there[0].transactions.in_doubt()), 20)
    assert not answerer.report.refusals


def test_an_answer_that_is_lost_sends_nothing_twice(
    shop: Shop, there: tuple[broker.LiveStore, broker.Server], engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost, send = [0], MoveTarget.send

    async def losing(self: MoveTarget, queue: MessageQueue, message: CarriedMessage, extra: Any) -> Placed:
        placed = await send(self, queue, message, extra)
        lost[0] += 1
        if lost[0] % 3 == 0:
            raise ClusterError("the answer was lost", was_sent=True)
        return placed

    monkeypatch.setattr(MoveTarget, "send", losing)
    report = move(shop.path, settings(there[1]), ledgers=[broker.Ledger(engine)])
    assert report.ok
    assert report.recognised == lost[0] // 3
    check_arrived(shop, there, engine)


def test_what_is_there_twice_or_changed_or_missing_is_a_finding(
    shop: Shop, there: tuple[broker.LiveStore, broker.Server], engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that does so: the positions stay as they are, and the store is not marked as moved."""

    send = MoveTarget.send

    async def faulty(self: MoveTarget, queue: MessageQueue, message: CarriedMessage, extra: Any) -> Placed:
        if message.plain_body == b"3":
            await send(self, queue, message, extra)
        if message.plain_body == b"4":
            message = replace(message, body=b"another")
        if message.plain_body == b"5":
            message = replace(message, properties={**message.properties, ORIGIN: ""})
            message = replace(message, properties={k: v for k, v in message.properties.items() if v})
        return await send(self, queue, message, extra)

    monkeypatch.setattr(MoveTarget, "send", faulty)
    report = move(shop.path, settings(there[1]), ledgers=[broker.Ledger(engine)])
    assert (report.twice, report.different, report.missing, report.ok) == (1, 1, 1, False)
    assert report.positions == 0
    assert {one.split(":")[0] for one in report.findings} == {"twice", "different", "missing"}


def test_what_stands_in_the_way_is_said_first(
    shop: Shop, there: tuple[broker.LiveStore, broker.Server], engine: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    store, server = there
    url = f"rocketmq://{server.address}"
    ran = command(capsys, "move", shop.path, url, "--apply")
    assert ran.code == 2
    assert "2 transactions in doubt name a ledger: give it (--ledger URL)" in ran.err
    with broker.open(shop.path):
        ran = command(capsys, "move", shop.path, url, "--ledger", engine.url, "--apply")
        assert ran.code == 3
        assert f"is locked by process {os.getpid()}" in ran.err
        with pytest.raises(StoreLocked):
            plan_move(shop.path, settings(server))
    store.create_topic(TOPIC, queues=2)
    store.append(broker.Message("reminders", b"other"))
    with broker.connect(url) as cluster, cluster.consumer(GROUP, TOPIC):
        ran = command(capsys, "move", shop.path, url, "--ledger", engine.url)
    assert ran.code == 2
    for text in ("has 2 queues at", "the topic reminders has 1 message in", "1 consumer of the group billing is"):
        assert text in ran.err
    assert command(capsys, "move", shop.path, "rocketmq://127.0.0.1:1", "--apply").code == 2
    assert command(capsys, "move", shop.path.parent / "nothing", url).code == 2
    broker.open(shop.path).close()  # nothing was begun


@pytest.mark.parametrize("options", [{}, {"delay_level": 18}], ids=repr)
def test_a_message_that_cannot_be_carried_is_said_first(
    tmp_path: Path, there: tuple[broker.LiveStore, broker.Server], options: dict[str, Any]
) -> None:
    """The move stopped at it, half done: the store took no writes any more, and no run could go on."""
    path = tmp_path / "wide.store"
    with broker.open(path, sync="os") as store:
        store.producer("plain").send(broker.Message("orders", b"x" * 40_000), **options)
    assert plan_move(path, settings(there[1])).refusals == []
    with broker.open(path, sync="os") as store:
        wide = broker.Message("orders", b"x", properties={"wide": "x" * 32_300})
        placed = store.producer("plain").send(wide, **options)
    (reason,) = plan_move(path, settings(there[1])).refusals
    assert reason.startswith(f"the message at CommitLog offset {placed.commitlog_offset} has properties of 32,")
    with pytest.raises(StoreError, match="nothing was moved: the message at"):
        move(path, settings(there[1]))
    broker.open(path).close()  # nothing was begun
