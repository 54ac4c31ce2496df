"""The five ways in which a business transaction can fail, at each place: saved and announced, or neither."""

from __future__ import annotations

import pytest
from sqlalchemy.orm import Session

from broker.enlisting.enlistment import Stage
from broker.errors import StoreFull, SyncFailed, TransactionError, UnknownOutcome
from broker.local_transaction import SessionTransaction
from broker.testing.fixtures import lose_the_commit
from tests.backends.shop import BackendShop, announce, raiser
from tests.checkback.shop import Shop


def test_it_goes_well(backend_shop: BackendShop) -> None:
    backend_shop.buy(1, in_between=lambda *_: _nobody_knows(backend_shop))
    assert what_is_there(backend_shop) == ([1], [1], 0)


def what_is_there(shop: BackendShop) -> tuple[list[int], list[int], int]:
    return shop.orders(), shop.announced(), shop.in_doubt()


def _nobody_knows(shop: BackendShop) -> None:
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


def test_the_local_transaction_fails_so_nothing_is_announced(backend_shop: BackendShop) -> None:
    """By the application, or since the database refuses a row."""
    with pytest.raises(ZeroDivisionError):
        backend_shop.buy(1, in_between=raiser(ZeroDivisionError()))
    assert what_is_there(backend_shop) == ([], [], 0)
    backend_shop.buy(1)
    with pytest.raises(Exception, match=r"(?i)unique|duplicate"):
        backend_shop.buy(1)
    assert what_is_there(backend_shop) == ([1], [1], 0)


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


def test_the_end_is_lost_so_check_back_finds_out(backend_shop: BackendShop) -> None:
    """That of a commit, of all messages to all topics, and that of a rollback."""
    with backend_shop.backend.lost_ends():
        backend_shop.buy(1, topics=("orders", "stock"))
        with pytest.raises(ZeroDivisionError):
            backend_shop.buy(2, in_between=raiser(ZeroDivisionError()))
        assert what_is_there(backend_shop) == ([1], [], 3)
    backend_shop.settle()
    assert what_is_there(backend_shop) == ([1], [1], 0)
    assert backend_shop.announced("stock") == [1]


@pytest.mark.parametrize("took_place", [True, False])
def test_commit_itself_raises_so_check_back_finds_out(backend_shop: BackendShop, took_place: bool) -> None:
    """The connection broke during COMMIT, which did or did not take place: nobody can tell from the error."""
    seen: list[SessionTransaction] = []
    producer = backend_shop.producer()  # binds the ledger: that COMMIT is not the one that is lost
    with backend_shop.backend.lost_ends():  # a broker may have asked already, and the row may have answered
        with (
            lose_the_commit(backend_shop.ledger.engine, committed=took_place),
            pytest.raises(UnknownOutcome, match="the connection was lost"),
        ):
            backend_shop.buy(1, in_between=lambda _, transaction: seen.append(transaction), producer=producer)
        assert seen[0].stage is Stage.LEFT
        assert (backend_shop.announced(), backend_shop.in_doubt()) == ([], 1)
    backend_shop.settle()
    saved = [1] if took_place else []
    assert what_is_there(backend_shop) == (saved, saved, 0)


def test_only_the_first_of_several_ends_is_written(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
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
