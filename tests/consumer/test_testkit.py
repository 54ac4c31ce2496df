"""The kit that users get for their tests: each piece does what it says."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

import broker
from broker.live import LiveStore
from broker.testing.crash_disk import FakeClock, Killed, temporary_store
from broker.testing.fixtures import crash_between_commit_and_end
from recovery.checkback.policy import Policy, Rule
from recovery.checkback.service import for_producers
from tests.app.shop import until

Losing = Callable[..., AbstractContextManager[None]]


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    engine = create_engine(f"sqlite:///{tmp_path}/shop.db")
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (id INTEGER)"))
    return engine


def count(engine: Engine) -> int:
    with engine.connect() as connection:
        return int(connection.execute(text("SELECT count(*) FROM orders")).scalar_one())


def test_a_temporary_store_is_gone_afterwards() -> None:
    with temporary_store() as store:
        store.append(broker.Message("orders", b"a"))
        path = Path(store.path)
        assert path.is_dir()
    assert not path.exists()


def test_the_clock_jumps_and_comes_back() -> None:
    before = time.time()
    with FakeClock() as clock:
        clock.advance(3600)
        assert time.time() - before >= 3600
        assert time.time_ns() - before * 1e9 >= 3600e9
        assert clock.now_ms - before * 1000 > 3_599_000
    assert time.time() - before < 60


@pytest.mark.parametrize("seconds", [-1e9, 1e9])
def test_the_clock_goes_to_no_time_that_a_store_cannot_hold(seconds: float) -> None:
    with FakeClock() as clock:
        clock.advance(seconds)
        with pytest.raises(broker.BrokerError, match="from 1970 to 2262"):
            clock.advance(8 * seconds)
        assert 0 <= time.time_ns() < 1 << 63


@pytest.mark.parametrize("committed", [True, False])
def test_a_lost_commit_took_effect_or_not(engine: Engine, lose_the_commit: Losing, committed: bool) -> None:
    with lose_the_commit(engine, committed=committed), Session(engine) as session:
        session.execute(text("INSERT INTO orders VALUES (1)"))
        with pytest.raises(DBAPIError, match="lost"):
            session.commit()
    assert count(engine) == committed
    with Session(engine) as session:
        session.execute(text("INSERT INTO orders VALUES (2)"))
        session.commit()
    assert count(engine) == committed + 1


@pytest.mark.parametrize("name", ["checkback-check", "checkback-cluster-check_0"])
def test_a_commit_of_check_back_is_not_the_one_that_is_lost(engine: Engine, lose_the_commit: Losing, name: str) -> None:
    def check() -> None:
        with engine.begin() as connection:
            connection.execute(text("SELECT 1"))

    with lose_the_commit(engine, committed=True), Session(engine) as session:
        thread = threading.Thread(target=check, name=name)
        thread.start()
        thread.join()
        session.execute(text("INSERT INTO orders VALUES (1)"))
        with pytest.raises(DBAPIError, match="lost"):
            session.commit()
    assert count(engine) == 1


def test_the_check_back_of_a_store_keeps_its_own_commit(tmp_path: Path, lose_the_commit: Losing) -> None:
    """It asks a ledger in a thread that may be given up: the test's COMMIT took place, and check-back lost its own."""
    engine = create_engine(f"sqlite:///{tmp_path}/ledger.db")
    ledger = broker.Ledger(engine)
    ledger.create_all()
    with temporary_store() as store:
        producer = store.producer("shop", topics=["orders"], ledger=ledger)
        with crash_between_commit_and_end(store), Session(engine) as session:
            producer.send(broker.Message("orders", b"a"), session)
            session.commit()
        service = for_producers(store, [producer], policy=Policy(Rule(first_check_after_ms=0)), interval_s=0.05)
        with lose_the_commit(engine, committed=True), service:
            until(lambda: not store.transactions.in_doubt_slots())
            with Session(engine) as session:
                producer.send(broker.Message("orders", b"b"), session)
                with pytest.raises(DBAPIError, match="lost"):
                    session.commit()


def test_a_block_without_a_commit_is_no_test(engine: Engine, lose_the_commit: Losing) -> None:
    with pytest.raises(AssertionError, match="no COMMIT"), lose_the_commit(engine, committed=True):
        pass


def test_a_crash_between_commit_and_end_leaves_the_message_in_doubt(
    engine: Engine, checkback_store: LiveStore, crash_between_commit_and_end: Losing
) -> None:
    """The order is saved, nobody hears of it yet: what check-back is for."""
    ledger = broker.Ledger(engine)
    ledger.create_all()
    producer = checkback_store.producer("shop", topics=["orders"], ledger=ledger)
    with (
        crash_between_commit_and_end(checkback_store),
        Session(engine) as session,
        producer.begin_transaction(session) as transaction,
    ):
        session.execute(text("INSERT INTO orders VALUES (1)"))
        producer.send(broker.Message("orders", b"1"), transaction)
    assert count(engine) == 1
    assert [half.topic for half in checkback_store.transactions.in_doubt()] == ["orders"]


def test_a_crash_in_a_thread_is_one(
    engine: Engine, checkback_store: LiveStore, crash_between_commit_and_end: Losing
) -> None:
    """As a test client of a web framework runs the application, which answers whatever it raised."""
    ledger = broker.Ledger(engine)
    ledger.create_all()
    producer = checkback_store.producer("shop", topics=["orders"], ledger=ledger)
    died: list[BaseException] = []

    def buy() -> None:
        try:
            with Session(engine) as session, session.begin():
                producer.send(broker.Message("orders", b"1"), session)
        except BaseException as error:  # noqa: BLE001
            died.append(error)

    with crash_between_commit_and_end(checkback_store):
        thread = threading.Thread(target=buy)
        thread.start()
        thread.join()
    assert [type(error) for error in died] == [Killed]
    assert len(list(checkback_store.transactions.in_doubt())) == 1


@pytest.mark.parametrize("group", [BaseExceptionGroup("tasks", [Killed(), ValueError()]), asyncio.CancelledError()])
def test_a_crash_in_a_task_is_one(
    checkback_store: LiveStore, crash_between_commit_and_end: Losing, group: BaseException
) -> None:
    """A task group raises it in a group; the client of an async application learns that its request was cancelled."""
    producer = checkback_store.producer("web", topics=["orders"], resolver=lambda _: None)
    with crash_between_commit_and_end(checkback_store):
        try:
            with producer.begin_transaction() as transaction:
                producer.send(broker.Message("orders", b"1"), transaction)
        except Killed:
            raise group from None
    with pytest.raises(asyncio.CancelledError), crash_between_commit_and_end(checkback_store):
        raise asyncio.CancelledError


def test_a_block_without_an_end_is_no_test(checkback_store: LiveStore, crash_between_commit_and_end: Losing) -> None:
    with pytest.raises(AssertionError, match="no transaction"), crash_between_commit_and_end(checkback_store):
        pass


def test_nothing_lives_on_after_a_kill() -> None:
    assert not issubclass(Killed, Exception)


PROBE = """
import broker

def test_it(checkback_store, checkback_clock, lose_the_commit, crash_between_commit_and_end):
    checkback_store.append(broker.Message("orders", b"a"))
    checkback_clock.advance(1)
"""


def test_pytest_finds_the_fixtures(tmp_path: Path) -> None:
    """In a project that only names the plugin, and without a warning."""
    (tmp_path / "test_probe.py").write_text(PROBE)
    plugin = [] if _is_installed() else ["-p", "broker.testing.pytest_plugin"]
    run = [sys.executable, "-W", "error", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path)]
    done = subprocess.run([*run, *plugin, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def _is_installed() -> bool:
    from importlib.metadata import entry_points

    return any(point.value == "broker.testing.pytest_plugin" for point in entry_points(group="pytest11"))
