"""Each race that a transaction in doubt can be in, on SQLite and on PostgreSQL: one decision, the same everywhere."""

from __future__ import annotations

import threading

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from broker.errors import AlreadyEnded
from broker.local_transaction import SessionTransaction
from broker.transaction.events import TransactionState
from recovery.checkback.protocol import Question
from tests.checkback.shop import Shop, announce, leave_in_doubt, save

pytestmark = pytest.mark.usefixtures("each_engine")


def test_check_back_against_a_running_local_transaction(shop: Shop) -> None:
    """It asks while the transaction holds its row (PostgreSQL) or the database (SQLite): still running, no check."""

    def ask(session: Session, _transaction: SessionTransaction) -> None:
        session.flush()
        report = shop.check_back()
        assert (report.asked, report.running, report.committed, report.rolled_back) == (1, 1, 0, 0)
        (attempt,) = shop.check().catalog.attempts().values()
        assert (attempt.checks, attempt.outcome) == (0, "running")

    shop.buy(1, in_between=ask)
    assert (shop.orders(), shop.announced(), shop.in_doubt()) == ([1], [1], 0)


def test_many_rounds_during_one_local_transaction_never_wear_it_out(shop: Shop) -> None:
    """More rounds than most_checks: it is neither parked nor decided."""

    def ask(_session: Session, _transaction: SessionTransaction) -> None:
        for number in range(20):
            report = shop.check_back(100_000_000 * (number + 1))
            assert (report.running, report.newly_parked) == (1, 0)

    shop.buy(1, in_between=ask)
    assert (shop.orders(), shop.announced()) == ([1], [1])


def test_two_check_backs_at_once(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every transaction is ended once, whoever is faster; committed and rolled-back ones alike."""
    saved, lost = range(1, 9), range(11, 19)
    leave_in_doubt(shop, monkeypatch, *saved)
    leave_in_doubt(shop, monkeypatch, *lost, saved=False)
    checks, gate, reports = [shop.check(), shop.check()], threading.Barrier(2), []

    def work(number: int) -> None:
        gate.wait()
        reports.append(checks[number].round(shop.now_ms() + 60_000))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    shop.check_back(10_000_000)  # who found the database busy asks again
    assert sum(report.committed for report in reports) <= len(saved)
    assert shop.orders() == shop.announced() == [*saved]
    assert shop.in_doubt() == 0


_CONNECTION = {  # how a connection is called, and how the server ends it
    "postgresql": ("SELECT pg_backend_pid()", "SELECT pg_terminate_backend(:number, 5000)"),
    "mariadb": ("SELECT CONNECTION_ID()", "KILL HARD CONNECTION :number"),
}


def test_a_late_commit_after_the_tombstone(shop: Shop) -> None:
    """Check-back decided first, so COMMIT comes too late: the application is told, and nothing is saved.

    SQLite: only age protects a transaction that has not written yet. Elsewhere its row protects it as long as its
    connection lives; here the server ends that, and the application does not know.
    """
    producer = shop.producer()
    with shop.session() as session:
        transaction = producer.begin_transaction(session)
        announce(producer, transaction, 1)
        if shop.ledger.holds_a_lock:
            assert shop.check_back().running == 1
            own, end = _CONNECTION[shop.ledger.dialect]
            number = session.execute(text(own)).scalar()
            with shop.resolvers_ledger.engine.connect() as connection:
                connection.execute(text(end), {"number": number})
        assert shop.check_back(10_000_000).rolled_back == 1
        with pytest.raises((AlreadyEnded, OperationalError)):
            _late(session, transaction)
    assert (shop.orders(), shop.announced(), shop.in_doubt()) == ([], [], 0)


def _late(session: Session, transaction: SessionTransaction) -> None:
    with transaction:
        save(session, 1)


def test_the_tombstone_against_a_commit_that_was_under_way(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """COMMIT took place and only the producer does not know: the row is there, no tombstone goes in."""
    leave_in_doubt(shop, monkeypatch, 1)
    first = shop.check_back()
    second = shop.check_back()
    assert (first.committed, second.in_doubt) == (1, 0)
    assert shop.announced() == [1]


def test_a_duplicate_end_changes_nothing(shop: Shop) -> None:
    transaction = shop.buy(1)
    (half,) = transaction.halves
    again = shop.store.transactions.commit(half)
    assert (again.state, again.again) == (TransactionState.COMMITTED, True)
    with pytest.raises(AlreadyEnded) as caught:
        shop.store.transactions.rollback(half)
    assert caught.value.state == TransactionState.COMMITTED
    assert shop.announced() == [1]


def test_the_producer_ends_it_between_the_look_and_the_answer(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check-back is slower than the producer: it finds the transaction ended, and says so."""
    leave_in_doubt(shop, monkeypatch, 1)
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


@pytest.mark.parametrize("saved", [True, False])
def test_the_store_is_reopened_in_between(shop: Shop, monkeypatch: pytest.MonkeyPatch, saved: bool) -> None:
    leave_in_doubt(shop, monkeypatch, 1, 2, saved=saved)
    shop.reopen()
    assert shop.in_doubt() == 2
    report = shop.check_back()
    assert (report.committed, report.rolled_back) == ((2, 0) if saved else (0, 2))
    assert shop.orders() == shop.announced() == ([1, 2] if saved else [])


def test_an_end_that_was_lost_with_a_power_cut_is_made_again(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledger's row outlives the store's unforced end record, so the second answer is the first one."""
    leave_in_doubt(shop, monkeypatch, 1)
    halves = list(shop.store.transactions.in_doubt())
    check = shop.check()
    first = check._resolver.ask([_question(shop, halves[0])], 0)
    second = check._resolver.ask([_question(shop, halves[0])], 0)
    assert first == second


def _question(shop: Shop, half):  # type: ignore[no-untyped-def]
    return Question(half, lambda: shop.store.transactions.message(half))
