"""The five ways in which a business transaction can fail, on both databases: saved and announced, or neither."""

from __future__ import annotations

import pytest
from sqlalchemy.orm import Session

from broker.enlisting.enlistment import Stage
from broker.errors import StoreFull, SyncFailed, TransactionError, UnknownOutcome
from broker.local_transaction import SessionTransaction
from broker.testing.fixtures import lose_the_commit
from tests.checkback.shop import Shop, announce, raiser


def test_it_goes_well(shop: Shop) -> None:
    shop.buy(1, in_between=lambda *_: _nobody_knows(shop))
    assert (shop.orders(), shop.announced(), shop.in_doubt()) == ([1], [1], 0)


def _nobody_knows(shop: Shop) -> None:
    assert shop.announced() == []  # before COMMIT


def test_the_half_message_is_not_stored_so_nothing_is_saved(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shop.store.transactions, "prepare", raiser(StoreFull("no room")))
    with pytest.raises(StoreFull):
        shop.buy(1)
    assert (shop.orders(), shop.announced(), shop.in_doubt()) == ([], [], 0)


def test_a_half_message_cannot_be_forced_to_disk_so_nothing_is_saved(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The forced write comes before COMMIT. What the disk holds is found out when the store is opened again."""
    with monkeypatch.context() as patch:
        patch.setattr(shop.store.writer.syncer.log, "sync", raiser(SyncFailed("the disk says no")))
        with pytest.raises(SyncFailed, match=r"the disk says no|an fsync failed before"):  # in a thread that was first
            shop.buy(1)
    assert shop.orders() == []
    shop.reopen()
    shop.check_back()
    assert (shop.orders(), shop.announced(), shop.in_doubt()) == ([], [], 0)


def test_who_swallows_that_a_half_message_was_not_stored_cannot_commit(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = shop.producer()

    def swallow(_session: Session, transaction: SessionTransaction) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(shop.store.transactions, "prepare", raiser(SyncFailed("flush time-out")))
            with pytest.raises(SyncFailed):
                announce(producer, transaction, 1, "stock")

    with pytest.raises(TransactionError, match="flush time-out"):
        shop.buy(1, in_between=swallow)
    assert (shop.orders(), shop.announced(), shop.in_doubt()) == ([], [], 0)


def test_the_local_transaction_fails_so_nothing_is_announced(shop: Shop) -> None:
    with pytest.raises(ZeroDivisionError):
        shop.buy(1, in_between=raiser(ZeroDivisionError()))
    assert (shop.orders(), shop.announced(), shop.in_doubt()) == ([], [], 0)


def test_the_database_refuses_a_row_so_nothing_is_announced(shop: Shop) -> None:
    shop.buy(1)
    with pytest.raises(Exception, match=r"(?i)unique|duplicate"):
        shop.buy(1)
    assert (shop.orders(), shop.announced(), shop.in_doubt()) == ([1], [1], 0)


def test_the_half_message_is_stored_but_its_answer_is_lost_so_check_back_discards_it(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The producer could not go on, so nothing was saved; doing it again is another transaction."""
    prepare = shop.store.transactions.prepare

    def lost(*arguments: object, **named: object) -> None:
        prepare(*arguments, **named)  # type: ignore[arg-type]
        raise SyncFailed("the answer was lost")

    with monkeypatch.context() as patch:
        patch.setattr(shop.store.transactions, "prepare", lost)
        with pytest.raises(SyncFailed):
            shop.buy(1)
    assert (shop.orders(), shop.in_doubt()) == ([], 1)
    shop.buy(1)
    assert shop.check_back().rolled_back == 1
    assert (shop.orders(), shop.announced(), shop.in_doubt()) == ([1], [1], 0)


def test_the_end_is_lost_so_check_back_delivers(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(shop.store.transactions, "commit", raiser(StoreFull("no room for an end")))
        shop.buy(1)
    assert (shop.orders(), shop.announced(), shop.in_doubt()) == ([1], [], 1)
    assert shop.check_back().committed == 1
    assert (shop.orders(), shop.announced(), shop.in_doubt()) == ([1], [1], 0)


def test_the_end_of_a_rollback_is_lost_so_check_back_discards(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(shop.store.transactions, "rollback", raiser(StoreFull("no room for an end")))
        with pytest.raises(ZeroDivisionError):
            shop.buy(1, in_between=raiser(ZeroDivisionError()))
    assert shop.check_back().rolled_back == 1
    assert (shop.orders(), shop.announced(), shop.in_doubt()) == ([], [], 0)


@pytest.mark.parametrize("took_place", [True, False])
def test_commit_itself_raises_so_check_back_finds_out(shop: Shop, took_place: bool) -> None:
    """The connection broke during COMMIT, which did or did not take place: nobody can tell from the error."""
    found: list[SessionTransaction] = []
    shop.producer()  # binds the ledger: that COMMIT is not the one that is lost
    with (
        lose_the_commit(shop.ledger.engine, committed=took_place),
        pytest.raises(UnknownOutcome, match="the connection was lost"),
    ):
        shop.buy(1, in_between=lambda _, transaction: found.append(transaction))
    assert found[0].stage is Stage.LEFT
    assert (shop.announced(), shop.in_doubt()) == ([], 1)
    report = shop.check_back()
    assert (report.committed, report.rolled_back) == ((1, 0) if took_place else (0, 1))
    assert shop.orders() == shop.announced() == ([1] if took_place else [])
    assert shop.in_doubt() == 0


def test_several_messages_to_several_topics_stand_or_fall_together(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the first of three ends is written: check-back does the same with the other two."""
    commit, ended = shop.store.transactions.commit, []

    def once(half: object, **named: object) -> object:
        if ended:
            raise StoreFull("no room for an end")
        ended.append(half)
        return commit(half, **named)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(shop.store.transactions, "commit", once)
        shop.buy(1, topics=("orders", "stock", "stock"))
    assert shop.in_doubt() == 2
    assert shop.check_back().committed == 2
    assert (shop.announced("orders"), shop.announced("stock")) == ([1], [1, 1])
