"""`checkback answer`: checks are answered from the ledger, for producers that are gone and in any language."""

from __future__ import annotations

import itertools
import json
import shutil
import sqlite3
import time
import tracemalloc
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from sqlalchemy import Engine, create_engine

import broker
from broker.cluster.publishing.cluster_destination import answers_of
from broker.database.ledger_binding import LEDGER_BINDING
from broker.enlisting.ledger_key import LEDGER_KEY, new_key
from broker.errors import BrokerError
from broker.remoting.codes import RequestCode
from broker.transaction.events import TransactionState
from broker.transaction.service import LocalTransactionState
from recovery.answering import cluster_evidence
from recovery.answering.group_answering import answering, bind, for_producers, rebind
from recovery.checkback.ledgers.proof import WrongLedger
from recovery.checkback.protocol import Outcome, meaning
from recovery.jobs.answering import answer
from tests.backends.clusters import Connected
from tests.cli.command import process
from tests.cluster.conftest import ONE_ENGINE, Buy
from tests.cluster.waiting import awaited, comes_to
from tests.server.wire_client import WireClient, sending

ROW = "INSERT INTO checkback_ledger (ledger_key, state, producer_group, store_id) VALUES (?, 8, 'shop', ?)"


class Foreign:
    """A producer that is not ours: it sends a half message and writes a row by SQL, and is killed then."""

    def __init__(self, address: str, path: Path, store_id: str, binding_id: str) -> None:
        self._address, self._path, self._store_id, self._binding = address, path, store_id, binding_id

    def buys(self, body: bytes, *, commits: bool, names_binding: bool = True) -> str:
        born_ms = time.time_ns() // 1_000_000  # a broker parks without a check what is older than its messages may be
        key = new_key(born_ms)
        said = {LEDGER_KEY: key, **({LEDGER_BINDING: self._binding} if names_binding else {})}
        with WireClient(self._address) as client:
            named = {"TRAN_MSG": "true", "PGROUP": "shop", "UNIQ_KEY": f"U{key}", **said}
            fields = sending("orders", sys_flag=4, **named) | {"g": born_ms}
            assert client.request(RequestCode.SEND_MESSAGE_V2, fields, body).code == 0
        if commits:
            self.writes(key)
        return key

    def writes(self, key: str) -> None:
        with closing(sqlite3.connect(self._path)) as database, database:
            database.execute(ROW, (key, self._store_id))


@pytest.fixture
def path(engine: Engine) -> Path:
    return Path(str(engine.url.database))


@pytest.fixture
def foreign(backend: Connected, cluster: broker.LiveCluster, ledger: broker.Ledger, path: Path) -> Foreign:
    cluster.create_topic("orders")
    bound = bind(cluster, ledger)
    assert bind(cluster, ledger).binding_id == bound.binding_id
    return Foreign(backend.proxy.target, path, bound.store_id, bound.binding_id)


def test_a_row_means_commit_and_its_absence_a_tombstone(
    backend: Connected, cluster: broker.LiveCluster, ledger: broker.Ledger, foreign: Foreign
) -> None:
    foreign.buys(b"paid", commits=True)
    late = foreign.buys(b"gone", commits=False)
    assert backend.in_doubt() == 2
    with answering(cluster, "shop", [ledger]) as answerer:
        assert comes_to(backend, [b"paid"])
    assert answerer.report.committed >= 1  # a broker may check again before it has the answer
    assert answerer.report.rolled_back >= 1
    with pytest.raises(sqlite3.IntegrityError):  # a late commit cannot contradict it
        foreign.writes(late)


def test_a_transaction_that_runs_is_left_alone(
    backend: Connected, cluster: broker.LiveCluster, ledger: broker.Ledger, foreign: Foreign, path: Path
) -> None:
    key = foreign.buys(b"slow", commits=False)
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("BEGIN IMMEDIATE")
        database.execute(ROW, (key, cluster.store_id))
        with answering(cluster, "shop", [ledger]) as answerer:
            assert awaited(lambda: answerer.report.running, backend.soon_s)
            assert backend.in_doubt() == 1
            database.execute("COMMIT")
            assert comes_to(backend, [b"slow"])


def test_a_half_message_without_a_binding_is_committed_by_its_row_and_never_rolled_back(
    backend: Connected, cluster: broker.LiveCluster, ledger: broker.Ledger, foreign: Foreign
) -> None:
    foreign.buys(b"paid", commits=True, names_binding=False)
    foreign.buys(b"gone", commits=False, names_binding=False)
    with answering(cluster, "shop", [ledger]) as answerer:
        assert awaited(lambda: answerer.report.committed and answerer.report.unknown, backend.soon_s)
        assert comes_to(backend, [b"paid"], 1)


@pytest.mark.parametrize(
    "said",
    [
        *LocalTransactionState, *TransactionState, *Outcome, "commit", "committed", "commit_message", "rollback",
        "rolled back", "rollback_message", "unknow", "running", " Commit ", "ROLLBACK_MESSAGE", "perhaps", None, 8, [],
    ],
)  # fmt: skip
def test_a_resolver_is_understood_as_check_back_of_a_store_understands_it(said: object) -> None:
    """The same program runs over both: what its resolver says must not mean "unknown" in one of them."""
    states = {
        Outcome.COMMITTED: LocalTransactionState.COMMIT_MESSAGE,
        Outcome.ROLLED_BACK: LocalTransactionState.ROLLBACK_MESSAGE,
    }
    check = answers_of(None, lambda _: said)
    expected = states.get(meaning(said) or Outcome.UNKNOWN, LocalTransactionState.UNKNOW)
    assert check(Mock(spec=broker.Half), Mock()) is expected


def test_a_resolver_that_exits_does_not_know_and_is_asked_again(
    backend: Connected, cluster: broker.LiveCluster
) -> None:
    """As by a command that it calls: the exit ended the thread in which the client reads and sends."""
    said = iter([SystemExit(0), KeyboardInterrupt()])

    def resolver(_message: broker.ReceivedMessage) -> str:
        if (error := next(said, None)) is not None:
            raise error
        return "commit"

    cluster.create_topic("orders")
    producer = cluster.producer("exits", topics=["orders"], resolver=resolver)
    transaction = producer.begin_transaction()
    producer.send(broker.Message("orders", b"left"), transaction)
    transaction.leave()
    assert comes_to(backend, [b"left"])


def test_another_database_decides_nothing(
    backend: Connected, cluster: broker.LiveCluster, ledger: broker.Ledger, foreign: Foreign, path: Path, tmp_path: Path
) -> None:
    """One that was never bound, a copy, and one whose newest rows are lost."""
    empty = broker.Ledger(create_engine(f"sqlite:///{tmp_path / 'empty.db'}"))
    empty.create_all()
    with pytest.raises(WrongLedger, match="is not bound"), answering(cluster, "shop", [empty]):
        pass
    copied = tmp_path / "elsewhere" / "shop.db"
    copied.parent.mkdir()
    shutil.copy(path, copied)
    copy = broker.Ledger(create_engine(f"sqlite:///{copied}"))
    with pytest.raises(WrongLedger, match="it is a copy, or was moved"), answering(cluster, "shop", [copy]):
        pass
    with pytest.raises(BrokerError, match="--bind"):
        rebind(cluster, empty)
    backup = path.read_bytes()
    foreign.buys(b"paid", commits=True)
    with answering(cluster, "shop", [ledger]):
        assert awaited(lambda: backend.in_doubt() == 0, backend.soon_s)
    path.write_bytes(backup)  # put back: the row of what was delivered is gone
    foreign.buys(b"gone?", commits=False)
    with answering(cluster, "shop", [ledger]) as answerer:
        assert awaited(lambda: answerer.report.refused, backend.soon_s)
    assert "lacks 1 of the last 1 committed" in next(iter(answerer.report.refusals))
    assert "--accept-lost-rows" in next(iter(answerer.report.refusals))
    assert backend.in_doubt() == 1
    with answering(cluster, "shop", [ledger], accept_lost_rows=True):
        assert comes_to(backend, [b"paid"])


def test_a_backup_is_noticed_where_messages_are_large(
    backend: Connected, cluster: broker.LiveCluster, ledger: broker.Ledger, foreign: Foreign, path: Path
) -> None:
    """A broker sends two of them at a time: the newest were not looked at, and a lost row was rolled back."""
    padding = bytes(100_000)
    with answering(cluster, "shop", [ledger]):
        for number in range(9):
            if number == 8:
                assert awaited(lambda: backend.in_doubt() == 0, backend.soon_s)
                backup = path.read_bytes()
            foreign.buys(b"%d" % number + padding, commits=True)
        assert awaited(lambda: backend.in_doubt() == 0, backend.soon_s)
    assert awaited(lambda: cluster.newest("orders", 8)[-1].body[:1] == b"8")
    assert len(cluster.newest("orders", 8)) == 8
    path.write_bytes(backup)
    foreign.buys(b"lost", commits=True)
    path.write_bytes(backup)
    with answering(cluster, "shop", [ledger]) as answerer:
        assert awaited(lambda: answerer.report.refused, backend.soon_s)
    assert answerer.report.rolled_back == 0


def test_a_backup_is_noticed_behind_the_messages_of_others(
    backend: Connected, cluster: broker.LiveCluster, ledger: broker.Ledger, foreign: Foreign, path: Path
) -> None:
    """A topic may have many more of them: then the newest 32 of each queue said nothing of this ledger."""
    backup = path.read_bytes()
    foreign.buys(b"paid", commits=True)
    with answering(cluster, "shop", [ledger]):
        assert awaited(lambda: backend.in_doubt() == 0, backend.soon_s)
    plain = cluster.producer("plain")
    cluster.create_topic("orders", queues=1)
    for _ in range(2):
        plain.send_batch([broker.Message("orders", b"x")] * 40)
    path.write_bytes(backup)
    foreign.buys(b"lost", commits=True)
    path.write_bytes(backup)
    with answering(cluster, "shop", [ledger]) as answerer:
        assert awaited(lambda: answerer.report.refused, backend.soon_s)
    assert answerer.report.rolled_back == 0


def test_several_answer_and_none_is_needed(
    backend: Connected, cluster: broker.LiveCluster, ledger: broker.Ledger, foreign: Foreign
) -> None:
    with (
        backend.another() as other,
        answering(cluster, "shop", [ledger]),
        answering(other, "shop", [ledger]),
    ):
        for number in range(20):
            foreign.buys(b"%d" % number, commits=number % 2 == 0)
        other.close()
        assert comes_to(backend, [b"%d" % one for one in range(0, 20, 2)])


def test_beside_the_producers_of_an_application_everything_is_decided(
    backend: Connected, cluster: broker.LiveCluster, ledger: broker.Ledger, foreign: Foreign, buy: Buy
) -> None:
    """Without it, what a killed producer left without a row stays in doubt until the broker gives up."""
    producer = cluster.producer("shop", topics=["orders"], ledger=ledger)
    foreign.buys(b"1", commits=False)
    time.sleep(0.8)
    assert backend.in_doubt() == 1
    with for_producers(cluster, [producer]):
        buy(producer, 2)
        assert comes_to(backend, [b"2"])


@ONE_ENGINE
def test_the_verb(backend: Connected, cluster: broker.LiveCluster, path: Path, tmp_path: Path) -> None:
    url, names = f"sqlite:///{path}", cluster.path.removeprefix("rocketmq://")
    idle = "1s" if backend.name == "served" else "5s"  # longer than the broker's interval
    cluster.create_topic("orders")
    refused = process("answer", names, "--group", "shop", "--ledger", url)
    assert (refused.code, "has no table" in refused.err) == (2, True)
    bound = process("answer", names, "--ledger", url, "--bind", "--json")
    (one,) = json.loads(bound.out)
    Foreign(backend.proxy.target, path, one["store_id"], one["binding_id"]).buys(b"paid", commits=True)
    answered = process("answer", names, "--group", "shop", "--ledger", url, "--once", "--idle", idle, "--json")
    assert (answered.code, backend.in_doubt()) == (0, 0)
    assert json.loads(answered.out)["committed"] >= 1  # a broker may check again before it has the answer
    gone = process("answer", "127.0.0.1:1", "--group", "shop", "--ledger", url)
    assert (gone.code, "takes no connection" in gone.err) == (2, True)
    away = process("answer", names, "--group", "shop", "--ledger", f"sqlite:///{tmp_path / 'no.db'}")
    assert (away.code, "there is no database" in away.err) == (2, True)


@ONE_ENGINE
@pytest.mark.parametrize("word", ["--bind", "--rebind"])
def test_a_database_that_cannot_be_bound_is_a_sentence(cluster: broker.LiveCluster, tmp_path: Path, word: str) -> None:
    """It was told as a defect of checkback, with exit code 70; --rebind made the SQLite file that it did not find."""
    (tmp_path / "notes.db").write_text("hello")
    for name in ("nowhere/shop.db", "notes.db", *(["gone.db"] if word == "--rebind" else [])):
        done = process("answer", cluster.path, "--ledger", f"sqlite:///{tmp_path}/{name}", word)
        assert done.code == 2
        assert name in done.err, done.err
        assert len(done.err.splitlines()) == 1
    assert [path.name for path in tmp_path.glob("*.db")] == ["notes.db"]


@pytest.mark.parametrize(
    ("named", "sentence"),
    [
        ({"ledgers": []}, "ledgers is empty"),
        ({"ledgers": "postgresql://shop:secret@db/shop"}, "ledgers is a list of texts, .* not str"),
        ({"schemas": "tenant1"}, "schemas is a list of texts"),
        ({"for_s": "60"}, "for_s is a number of seconds"),
        ({"idle_s": None, "once": True}, "idle_s is a number of seconds"),
        ({"namesrv": None}, "namesrv is text"),
    ],
)
def test_what_the_job_cannot_take_is_a_sentence(named: dict[str, Any], sentence: str) -> None:
    """Without a ledger it joined the group, and answered "unknown" to checks that others could have answered."""
    given: dict[str, Any] = {"namesrv": "127.0.0.1:1", "group": "shop", "ledgers": ["sqlite:///shop.db"]}
    with pytest.raises(BrokerError, match=sentence) as raised:
        answer(**given | named)
    assert "secret" not in str(raised.value)


def test_nobody_joins_without_a_ledger(cluster: broker.LiveCluster) -> None:
    with pytest.raises(BrokerError, match="nothing could answer for the group shop"), answering(cluster, "shop", []):
        pass


def test_what_was_delivered_long_ago_takes_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that answers for months looks at the newest messages again and again."""
    numbers, clock = itertools.count(), itertools.count(step=60)
    monkeypatch.setattr(cluster_evidence, "time", SimpleNamespace(monotonic=lambda: float(next(clock))))

    def newest(_topic: str, count: int, **_: bool) -> list[SimpleNamespace]:
        bound = {LEDGER_BINDING: "b" * 32, "PGROUP": "shop"}
        return [
            SimpleNamespace(properties={LEDGER_KEY: f"{next(numbers):032}", **bound}, commitlog_offset=0, body=b"")
            for _ in range(count)
        ]

    evidence = cluster_evidence.ClusterEvidence(Mock(newest=newest, store_id="5" * 32), "shop")
    evidence.saw("orders")
    tracemalloc.start()
    assert len(evidence.committed("b" * 32)) == 32
    before, _ = tracemalloc.get_traced_memory()
    for _ in range(100):
        evidence.committed("b" * 32)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert after - before < 50_000
