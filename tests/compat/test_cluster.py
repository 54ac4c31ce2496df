"""`broker.connect` and `checkback answer` against real brokers: one broker of each version, one at a time.

`CHECKBACK_CLUSTER_VERSIONS` names other versions than the default, with blanks between; `CHECKBACK_CLUSTER_KILLS` is
how often producers are killed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.orm import Session

import broker
from broker.database.ledger_binding import LEDGER_BINDING
from broker.enlisting.ledger_key import LEDGER_KEY, new_key
from recovery.answering.group_answering import answering, bind
from recovery.transactions.in_doubt import Pending
from tests.cluster.waiting import awaited
from tests.compat import rocketmq
from tests.server.wire_client import WireClient

VERSIONS = os.environ.get("CHECKBACK_CLUSTER_VERSIONS", "5.3.3").split()
KILLS = int(os.environ.get("CHECKBACK_CLUSTER_KILLS", "5"))
CHECK_S = 120.0  # a broker checks after some seconds, and its op messages are late
ROW = "INSERT INTO checkback_ledger (ledger_key, state, producer_group, store_id) VALUES (?, 8, ?, ?)"

pytestmark = pytest.mark.timeout(900 + 20 * KILLS)


@pytest.fixture(scope="module", params=VERSIONS)
def real(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[rocketmq.Cluster]:
    try:
        installation = rocketmq.install(request.param)
    except rocketmq.NotToBeHad as missing:
        pytest.skip(str(missing))
    # A broker counts a check although nobody of the group is connected, and parks the message at the limit: three
    # checks are over in 15 s, in which a busy machine has not started the producer that is to answer.
    options = {"messageDelayLevel": " ".join(["1s"] * 18), "transactionCheckMax": 60}
    with rocketmq.running(installation, tmp_path_factory.mktemp("real") / "store", **options) as running:
        assert awaited(lambda: _is_registered(running), 60)
        yield running


def _is_registered(running: rocketmq.Cluster) -> bool:
    try:
        broker.connect(f"rocketmq://{running.namesrv}").close()
    except broker.ClusterError:
        return False
    return True


@pytest.fixture
def cluster(real: rocketmq.Cluster) -> Iterator[broker.LiveCluster]:
    with broker.connect(f"rocketmq://{real.namesrv}") as connected:
        yield connected


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shop.db"


@pytest.fixture
def engine(path: Path) -> Iterator[Engine]:
    made = create_engine(f"sqlite:///{path}", connect_args={"timeout": 30})
    with made.begin() as connection:
        connection.execute(text("CREATE TABLE orders (id INTEGER PRIMARY KEY)"))
    yield made
    made.dispose()


@pytest.fixture
def ledger(engine: Engine) -> broker.Ledger:
    made = broker.Ledger(engine)
    made.create_all()
    return made


def drained(consumer: broker.ClusterConsumer, seconds: float = 3.0) -> list[bytes]:
    found = []
    while message := consumer.receive(seconds):
        found.append(message.body)
        consumer.ack(message)
    return found


def test_orders_and_their_messages(
    real: rocketmq.Cluster, cluster: broker.LiveCluster, ledger: broker.Ledger, engine: Engine
) -> None:
    """Committed, rolled back, and left in doubt by a process that is gone: its group answers by the ledger."""
    group, topic = f"shop{time.time_ns()}", f"orders{time.time_ns()}"
    with broker.connect(f"rocketmq://{real.namesrv}") as gone:
        producer = gone.producer(group, topics=[topic], ledger=ledger)
        for number in range(6):
            with Session(engine) as session:
                session.execute(text("INSERT INTO orders VALUES (:id)"), {"id": number})
                producer.send(broker.Message(topic, b"%d" % number, keys=f"k{number}"), session)
                if number == 4:
                    gone.half_messages._client.routes._brokers.clear()  # the end cannot be sent
                session.commit() if number % 2 == 0 else session.rollback()
                if number == 4:
                    break
    with cluster.consumer(f"billing{group}", topic) as consumer:
        assert sorted(drained(consumer)) == [b"0", b"2"]
        cluster.producer(group, topics=[topic], ledger=ledger)
        later: list[bytes] = []
        assert awaited(lambda: later.extend(drained(consumer, 1.0)) or b"4" in later, CHECK_S), later


def test_a_group_shares_retries_and_gives_up(real: rocketmq.Cluster, cluster: broker.LiveCluster) -> None:
    group, topic = f"g{time.time_ns()}", f"carts{time.time_ns()}"
    producer = cluster.producer(f"p{group}")
    for number in range(40):
        producer.send(broker.Message(topic, b"%d" % number, tag="A"))
    first = cluster.consumer(group, topic, tags="A || B", max_retries=1, retry_delay_level=1)
    with broker.connect(f"rocketmq://{real.namesrv}") as other:
        second = other.consumer(group, topic, tags="A || B", max_retries=1, retry_delay_level=1)
        assert awaited(lambda: len(_of(first, topic)) == len(_of(second, topic)) == 2, 60)
        seen: dict[bytes, int] = {}
        deadline = time.monotonic() + 90
        while len(seen) < 40 or seen.get(b"7", -1) < 1:
            assert time.monotonic() < deadline, seen
            for consumer in (first, second):
                message = consumer.receive(0.5)
                if message is not None:
                    seen[message.body] = max(seen.get(message.body, -1), message.reconsume_times)
                    assert message.topic == topic
                    consumer.retry(message) if message.body == b"7" else consumer.ack(message)
        second.close()
        assert awaited(lambda: len(_of(first, topic)) == 4, 60)
        first.close()
    if real.installation.version != "3.1.4":  # whose brokers count to 16 themselves
        with cluster.consumer(f"d{group}", f"%DLQ%{group}") as consumer:
            assert awaited(lambda: b"7" in drained(consumer, 1.0), 60)
    with cluster.consumer(group, topic) as consumer:
        left = drained(consumer)  # the positions are the broker's
        assert left == [] or (real.installation.version == "3.1.4" and set(left) == {b"7"}), left  # its third retry


def _of(consumer: broker.ClusterConsumer, topic: str) -> list[tuple[str, int, str]]:
    return [one for one in consumer.queues if one[0] == topic]


def test_order(cluster: broker.LiveCluster) -> None:
    topic = f"ordered{time.time_ns()}"
    producer = cluster.producer("plain")
    for number in range(30):
        producer.send(broker.Message(topic, b"%d-%d" % (number % 3, number)), sharding_key=str(number % 3))
    with cluster.consumer(f"g{topic}", topic, ordered=True) as consumer:
        found: list[bytes] = []
        while message := consumer.receive(5.0):
            if len(found) == 10 and not message.reconsume_times:
                consumer.retry(message)
            else:
                found.append(message.body)
                consumer.ack(message)
    for key in (b"0", b"1", b"2"):
        numbers = [int(one.split(b"-")[1]) for one in found if one.startswith(key)]
        assert numbers == sorted(numbers)
        assert len(numbers) == 10


def test_a_batch_and_a_delay(real: rocketmq.Cluster, cluster: broker.LiveCluster) -> None:
    topic = f"many{time.time_ns()}"
    producer = cluster.producer("plain")
    producer.send(broker.Message(topic, b"late"), delay_level=1)
    bodies = [b"a", b"b", b"c"]
    if real.installation.version == "3.1.4":
        with pytest.raises(broker.ClusterError, match="did not answer"):  # nor does it answer a Java client
            producer.send_batch([broker.Message(topic, one) for one in bodies])
        bodies = []
    else:
        batch = producer.send_batch([broker.Message(topic, one) for one in bodies])
        assert [one.queue_offset - batch[0].queue_offset for one in batch] == [0, 1, 2]
    with cluster.consumer(f"g{topic}", topic) as consumer:
        assert sorted(drained(consumer, 5.0)) == sorted([b"late", *bodies])


def test_answer_settles_what_foreign_producers_left(
    real: rocketmq.Cluster, cluster: broker.LiveCluster, ledger: broker.Ledger, path: Path
) -> None:
    """Half messages of a producer that is gone, by SQL: a row commits, a tombstone keeps the rest away."""
    group, topic = f"shop{time.time_ns()}", f"orders{time.time_ns()}"
    bound = bind(cluster, ledger)
    cluster.create_topic(topic)
    committed = []
    with WireClient(f"127.0.0.1:{real.broker_port}") as client:
        for number in range(30):
            key = new_key(time.time_ns() // 1_000_000)
            said = {"TRAN_MSG": "true", "PGROUP": group, "UNIQ_KEY": f"U{key}", LEDGER_KEY: key}
            fields = {
                "producerGroup": group, "topic": topic, "defaultTopic": "TBW102", "defaultTopicQueueNums": 4,
                "queueId": number % 4, "sysFlag": 4, "bornTimestamp": time.time_ns() // 1_000_000, "flag": 0,
                "properties": "".join(f"{k}\x01{v}\x02" for k, v in {**said, LEDGER_BINDING: bound.binding_id}.items()),
            }  # fmt: skip
            assert client.request(10, fields, b"%d" % number).code == 0
            if number % 3:
                committed.append(b"%d" % number)
                with closing(sqlite3.connect(path, timeout=30)) as database, database:
                    database.execute(ROW, (key, group, bound.store_id))
    with broker.connect(f"rocketmq://{real.namesrv}") as reading, reading.consumer(f"g{topic}", topic) as consumer:
        with answering(cluster, group, [ledger]) as answerer:
            found: list[bytes] = []
            deadline = time.monotonic() + CHECK_S
            while len(found) < len(committed) and time.monotonic() < deadline:
                found += drained(consumer, 1.0)
            assert awaited(lambda: answerer.report.rolled_back >= 10, CHECK_S)
        assert sorted(set(found)) == sorted(committed)
        assert drained(consumer, 5.0) == []


def test_a_java_producer_is_killed_for_good_and_its_transactions_are_settled(
    real: rocketmq.Cluster, cluster: broker.LiveCluster, ledger: broker.Ledger, engine: Engine, path: Path
) -> None:
    """It writes orders and ledger rows and answers no check. Two processes answer; one of them is killed as well."""
    if real.installation.version == "3.1.4":
        pytest.skip("the program is for clients of 4.x and 5.x")
    driver, truth, chance = rocketmq.jdbc_driver(), path.parent / "truth.jsonl", random.Random(KILLS)
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE orders"))
        connection.execute(text("CREATE TABLE orders (id TEXT PRIMARY KEY)"))
        connection.execute(text("PRAGMA journal_mode=WAL"))
    group, topic = f"shop{time.time_ns()}", f"orders{time.time_ns()}"
    bound = bind(cluster, ledger)
    cluster.create_topic(topic)
    seen: list[str] = []
    with ExitStack() as stack:
        consumer = stack.enter_context(cluster.consumer(f"g{topic}", topic))
        answers = [stack.enter_context(_answering(real.namesrv, group, path)) for _ in range(2)]
        for turn in range(KILLS):
            program = real.start(
                "OrderProducer", truth, more_jars=driver, group=group, topic=topic, turn=turn,
                database=f"jdbc:sqlite:{path}", binding=bound.binding_id, store=bound.store_id,
            )  # fmt: skip
            assert awaited(lambda: _has_sent(truth, turn), 90)  # noqa: B023
            time.sleep(chance.uniform(0, 0.3))
            program.kill()
            seen += (one.decode() for one in drained(consumer, 0.2))
            if turn == KILLS // 2:
                answers[0].kill()
        left = awaited(lambda: seen.extend(one.decode() for one in drained(consumer, 1.0))
                       or (set(seen) == _saved(engine) and not _in_doubt(real, group)), CHECK_S + 60)  # fmt: skip
        time.sleep(12)  # and nothing comes that was not bought
        seen += (one.decode() for one in drained(consumer, 1.0))
        answers[1].terminate()
        report = json.loads(answers[1].communicate(timeout=60)[0])
    saved, counts = _saved(engine), {name: report[name] for name in ("checks", "committed", "rolled_back", "refused")}
    print(KILLS, "kills,", len(saved), "orders,", len(seen) - len(set(seen)), "delivered again; the other one:", counts)
    assert set(seen) == saved
    assert left, _in_doubt(real, group)
    assert len(saved) >= KILLS // 2  # each time there was one at least, and of ten orders two are rolled back
    assert counts["committed"] > 0
    assert counts["rolled_back"] > 0
    assert counts["refused"] == 0


def _has_sent(truth: Path, turn: int) -> bool:
    """Whether a producer had an answer: on a busy machine its first sends may fail."""
    return any(one["event"] == "sent" and one["order"].startswith(f"{turn}-") for one in rocketmq.read_truth(truth))


@contextmanager
def _answering(namesrv: str, group: str, database: Path) -> Iterator[subprocess.Popen[str]]:
    """`checkback answer` as a process of its own."""
    words = ["answer", namesrv, "--group", group, "--ledger", f"sqlite:///{database}", "--json"]
    with subprocess.Popen([sys.executable, "-m", "recovery.cli", *words], stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def _in_doubt(real: rocketmq.Cluster, group: str) -> list[int]:
    """The half messages of a group without an end, as the broker's log says."""
    halves = Pending(str(real.store), time.time_ns() // 1_000_000, parked=True)
    return [half.commitlog_offset for half in halves if half.producer_group == group]


def _saved(engine: Engine) -> set[str]:
    with engine.connect() as connection:
        return {str(one) for (one,) in connection.execute(text("SELECT id FROM orders"))}


def test_killed_producers_leave_nothing_behind(
    real: rocketmq.Cluster, cluster: broker.LiveCluster, ledger: broker.Ledger, engine: Engine, path: Path
) -> None:
    """A program that buys without end is killed some times, and another process answers for it."""
    group, topic = f"shop{time.time_ns()}", f"orders{time.time_ns()}"
    cluster.create_topic(topic)
    with broker.connect(f"rocketmq://{real.namesrv}") as answers:
        bind(answers, ledger)
        with answering(answers, group, [ledger]):
            for turn in range(KILLS):
                words = [
                    sys.executable,
                    "-m",
                    "tests.compat.buyer",
                    f"rocketmq://{real.namesrv}",
                    str(path),
                    group,
                    topic,
                ]
                with subprocess.Popen([*words, str(turn)], stdout=subprocess.PIPE) as buyer:
                    assert buyer.stdout is not None
                    for _ in range(3 + turn % 7):
                        buyer.stdout.readline()
                    time.sleep((turn % 5) * 0.003)
                    buyer.send_signal(signal.SIGKILL)

            seen: list[str] = []
            with cluster.consumer(f"g{topic}", topic) as consumer:
                deadline = time.monotonic() + CHECK_S
                while set(seen) != _saved(engine) and time.monotonic() < deadline:
                    seen += (one.decode() for one in drained(consumer, 1.0))
                time.sleep(10)  # and nothing comes that was not bought
                seen += (one.decode() for one in drained(consumer, 1.0))
    assert _saved(engine)
    assert set(seen) == _saved(engine)
