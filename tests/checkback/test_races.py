"""Each race that a transaction in doubt can be in, on SQLite and on PostgreSQL: one decision, the same everywhere."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from broker.errors import AlreadyEnded
from broker.ledger import Ledger
from broker.local_transaction import SessionTransaction
from broker.transaction.events import TransactionState
from recovery.checkback.catalog import attempts_of
from recovery.checkback.protocol import Question
from tests.backends.shop import BackendShop, announce, save
from tests.checkback.shop import Shop


def test_check_back_against_a_running_local_transaction(backend_shop: BackendShop) -> None:
    """It asks while the transaction holds its row (PostgreSQL) or the database (SQLite): still running."""

    def ask(session: Session, _transaction: SessionTransaction) -> None:
        session.flush()
        assert backend_shop.backend.is_running([backend_shop.resolvers_ledger])
        assert (backend_shop.announced(), backend_shop.in_doubt()) == ([], 1)

    backend_shop.buy(1, in_between=ask)
    backend_shop.settle()
    assert (backend_shop.orders(), backend_shop.announced(), backend_shop.in_doubt()) == ([1], [1], 0)


@pytest.mark.usefixtures("each_engine")
def test_a_check_of_a_running_transaction_is_not_counted(shop: Shop) -> None:
    def ask(session: Session, _transaction: SessionTransaction) -> None:
        session.flush()
        report = shop.check_back()
        assert (report.asked, report.running, report.committed, report.rolled_back) == (1, 1, 0, 0)
        (attempt,) = attempts_of(str(shop.path)).values()
        assert (attempt.checks, attempt.outcome) == (0, "running")

    shop.buy(1, in_between=ask)


@pytest.mark.sample("state-table-sqlite", "half-op-postgres", "state-table-mariadb")
@pytest.mark.usefixtures("each_engine")
def test_many_rounds_during_one_local_transaction_never_wear_it_out(shop: Shop) -> None:
    """More rounds than most_checks: it is neither parked nor decided."""

    def ask(_session: Session, _transaction: SessionTransaction) -> None:
        for number in range(20):
            report = shop.check_back(100_000_000 * (number + 1))
            assert (report.running, report.newly_parked) == (1, 0)

    shop.buy(1, in_between=ask)
    assert (shop.orders(), shop.announced()) == ([1], [1])


def test_two_check_backs_at_once(backend_shop: BackendShop) -> None:
    """Every transaction is ended once, whichever is faster; committed and rolled-back ones alike."""
    saved, backend = range(1, 4), backend_shop.backend
    backend_shop.buy_and_vanish(*saved)
    backend_shop.buy_and_vanish(*range(11, 14), saved=False)
    ledger = Ledger(create_engine(backend_shop.resolvers_ledger.engine.url))  # of another process
    with backend.another() as second, ThreadPoolExecutor(2) as threads:
        works = [
            threads.submit(backend.check_back, [backend_shop.resolvers_ledger]),
            threads.submit(backend.check_back, [ledger], client=second),
        ]
        for work in works:
            work.result()
    ledger.engine.dispose()
    backend_shop.settle()  # the one that finds the database busy asks again
    assert backend_shop.orders() == backend_shop.announced() == [*saved]
    assert backend_shop.in_doubt() == 0


_CONNECTION = {  # how a connection is called, and how the server ends it
    "postgresql": ("SELECT pg_backend_pid()", "SELECT pg_terminate_backend(:number, 5000)"),
    "mariadb": ("SELECT CONNECTION_ID()", "KILL HARD CONNECTION :number"),
}


def test_a_late_commit_after_the_tombstone(backend_shop: BackendShop) -> None:
    """Check-back decided first, so COMMIT comes too late: the application is told, and nothing is saved.

    SQLite: only age protects a transaction that has not written yet. Elsewhere its row protects it as long as its
    connection lives; here the server ends that, and the application does not know.
    """
    producer = backend_shop.producer()
    with backend_shop.session() as session:
        transaction = producer.begin_transaction(session)
        announce(producer, transaction, 1)
        if backend_shop.ledger.holds_a_lock:
            assert backend_shop.backend.is_running([backend_shop.resolvers_ledger])
            own, end = _CONNECTION[backend_shop.ledger.dialect]
            number = session.execute(text(own)).scalar()
            with backend_shop.resolvers_ledger.engine.connect() as connection:
                connection.execute(text(end), {"number": number})
        backend_shop.settle()
        assert backend_shop.in_doubt() == 0
        with pytest.raises((AlreadyEnded, OperationalError)):
            _late(session, transaction)
    assert (backend_shop.orders(), backend_shop.announced(), backend_shop.in_doubt()) == ([], [], 0)


def _late(session: Session, transaction: SessionTransaction) -> None:
    with transaction:
        save(session, 1)


@pytest.mark.usefixtures("each_engine")
def test_the_tombstone_against_a_commit_that_was_under_way(shop: Shop) -> None:
    """COMMIT took place and only the producer does not know: the row is there, no tombstone goes in."""
    shop.buy_and_vanish(1)
    first = shop.check_back()
    second = shop.check_back()
    assert (first.committed, second.in_doubt) == (1, 0)
    assert shop.announced() == [1]


@pytest.mark.usefixtures("each_engine")
def test_a_duplicate_end_changes_nothing(shop: Shop) -> None:
    transaction = shop.buy(1)
    (half,) = transaction.halves
    again = shop.store.transactions.commit(half)
    assert (again.state, again.again) == (TransactionState.COMMITTED, True)
    with pytest.raises(AlreadyEnded) as caught:
        shop.store.transactions.rollback(half)
    assert caught.value.state == TransactionState.COMMITTED
    assert shop.announced() == [1]


@pytest.mark.usefixtures("each_engine")
def test_the_producer_ends_it_between_the_look_and_the_answer(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check-back is slower than the producer: it finds the transaction ended, and says so."""
    shop.buy_and_vanish(1)
    service, check = shop.store.transactions, shop.check()
    ask = check._resolver.ask

    def slowly(questions, now_ms):  # type: ignore[no-untyped-def]
        answers = ask(questions, now_ms)
        service.commit(questions[0].half)
        return answers

    monkeypatch.setattr(check._resolver, "ask", slowly)
    report = check.round(shop.now_ms() + 60_000)
    assert (report.committed, report.decided_elsewhere) == (0, 1)
    assert shop.announced() == [1]


@pytest.mark.usefixtures("each_engine")
@pytest.mark.parametrize("saved", [True, False])
def test_the_store_is_reopened_in_between(shop: Shop, saved: bool) -> None:
    shop.buy_and_vanish(1, 2, saved=saved)
    shop.reopen()
    assert shop.in_doubt() == 2
    report = shop.check_back()
    assert (report.committed, report.rolled_back) == ((2, 0) if saved else (0, 2))
    assert shop.orders() == shop.announced() == ([1, 2] if saved else [])


@pytest.mark.usefixtures("each_engine")
def test_an_end_that_was_lost_with_a_power_cut_is_made_again(shop: Shop) -> None:
    """The ledger's row outlives the store's unforced end record, so the second answer is the first one."""
    shop.buy_and_vanish(1)
    halves = list(shop.store.transactions.in_doubt())
    check = shop.check()
    first = check._resolver.ask([_question(shop, halves[0])], 0)
    second = check._resolver.ask([_question(shop, halves[0])], 0)
    assert first == second


def _question(shop: Shop, half):  # type: ignore[no-untyped-def]
    return Question(half, lambda: shop.store.transactions.message(half))
