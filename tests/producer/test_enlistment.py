"""The state machine of a transaction's messages, without a database: what keeps it from COMMIT, and how it ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from broker.enlisting.enlistment import Branch, Doom, Enlistment, Stage
from broker.errors import TransactionError
from broker.transaction.service import Half, HalfMessageService


class Rows:
    """A ledger's table, as the keys that are in it."""

    holds_a_lock = True

    def __init__(self) -> None:
        self.keys: list[str] = []

    def insert(self, _connection: Any, key: str, _group: str, _store_id: str) -> None:
        self.keys.append(key)

    def present(self, _connection: Any, keys: Sequence[str]) -> set[str]:
        return set(keys) & set(self.keys)


class Service:
    """Notes what is done with half messages."""

    def __init__(self) -> None:
        self.done: list[tuple[str, str | None]] = []

    def wait_durable(self, half: Half) -> None:
        self.done.append(("flush", half.unique_key))

    def commit(self, half: Half) -> None:
        self.done.append(("commit", half.unique_key))

    def rollback(self, half: Half) -> None:
        self.done.append(("rollback", half.unique_key))


@pytest.fixture
def rows() -> Rows:
    return Rows()


@pytest.fixture
def service() -> Service:
    return Service()


def sent(enlistment: Enlistment, rows: Rows, service: Service, half: str, savepoint: int | None = None) -> Branch:
    branch = enlistment.branch(None, rows, "shop", cast(HalfMessageService, service), store_id="S", savepoint=savepoint)
    branch.halves.append(Half(0, 0, "shop", "orders", 0, half, (), 1, 1, 100, {}))
    return branch


def test_what_failed_in_it_keeps_it_from_commit_until_its_savepoint_is_rolled_back(
    rows: Rows, service: Service
) -> None:
    enlistment = Enlistment()
    sent(enlistment, rows, service, "one")
    enlistment.doom(Doom("no room"), savepoints=[7])
    with pytest.raises(TransactionError, match=r"could not be sent in it: no room\. Nothing was saved"):
        enlistment.seal(None)
    assert enlistment.stage is Stage.ACTIVE
    enlistment.savepoint_rolled_back(7)
    enlistment.seal(None)
    enlistment.committed()
    assert service.done == [("flush", "one"), ("commit", "one")]


def test_a_failure_outside_a_savepoint_is_not_taken_back_with_one_inside(rows: Rows, service: Service) -> None:
    enlistment = Enlistment()
    sent(enlistment, rows, service, "one")
    enlistment.doom(Doom("no room"))
    enlistment.doom(Doom("too large"), savepoints=[7])
    enlistment.savepoint_rolled_back(7)
    with pytest.raises(TransactionError, match="no room"):
        enlistment.seal(None)


@pytest.mark.parametrize("holds_a_lock", [True, False])
def test_messages_of_one_group_have_one_row_and_one_flush(rows: Rows, service: Service, holds_a_lock: bool) -> None:
    """It is inserted at the first send where it holds a lock, else just before COMMIT."""
    rows.holds_a_lock = holds_a_lock
    enlistment = Enlistment()
    branch = sent(enlistment, rows, service, "one")
    assert rows.keys == [branch.key] * holds_a_lock
    assert sent(enlistment, rows, service, "two") is branch
    enlistment.wait_durable()
    enlistment.seal(None)
    assert rows.keys == [branch.key]
    enlistment.committed()
    assert service.done == [("flush", "two"), ("commit", "one"), ("commit", "two")]


def test_a_row_that_is_gone_from_its_own_transaction_keeps_it_from_commit(rows: Rows, service: Service) -> None:
    """Somebody rolled back past the session: what was done before is lost, and what came since must not be saved."""
    enlistment = Enlistment()
    sent(enlistment, rows, service, "one")
    rows.keys.clear()
    with pytest.raises(TransactionError, match="is gone from its own transaction"):
        enlistment.seal(None)
    assert enlistment.stage is Stage.ACTIVE
    assert ("rollback", "one") not in service.done


@pytest.mark.parametrize("holds_a_lock", [True, False])
def test_the_messages_of_a_savepoint_go_with_its_row(rows: Rows, service: Service, holds_a_lock: bool) -> None:
    """Its row is inserted in it, also where others are inserted just before COMMIT: the database undoes it."""
    rows.holds_a_lock = holds_a_lock
    enlistment = Enlistment()
    sent(enlistment, rows, service, "outside")
    inside = sent(enlistment, rows, service, "inside", savepoint=7)
    rows.keys.remove(inside.key)
    enlistment.seal(None)
    enlistment.committed()
    assert service.done[-2:] == [("rollback", "inside"), ("commit", "outside")]


def test_the_first_end_counts(rows: Rows, service: Service) -> None:
    enlistment = Enlistment()
    sent(enlistment, rows, service, "one")
    enlistment.seal(None)
    enlistment.leave("COMMIT failed without an answer")
    enlistment.committed()
    enlistment.rolled_back()
    enlistment.rolled_back_by(None)
    enlistment.ended_by_application(None)
    enlistment.park("nobody knows")
    assert (enlistment.stage, service.done) == (Stage.LEFT, [("flush", "one")])


@pytest.mark.parametrize("holds_a_lock", [True, False])
@pytest.mark.parametrize("end", ["rolled_back_by", "ended_by_application"])
def test_a_rollback_delivers_nothing(rows: Rows, service: Service, end: str, holds_a_lock: bool) -> None:
    """Whether its row was inserted, and is gone, or was yet to come."""
    rows.holds_a_lock = holds_a_lock or end == "ended_by_application"  # which is for rows that are always there
    enlistment = Enlistment()
    sent(enlistment, rows, service, "one")
    rows.keys.clear()
    getattr(enlistment, end)(None)
    assert (enlistment.stage, service.done) == (Stage.ROLLED_BACK, [("rollback", "one")])


def test_a_transaction_that_the_application_committed_is_delivered(rows: Rows, service: Service) -> None:
    enlistment = Enlistment()
    sent(enlistment, rows, service, "one")
    enlistment.ended_by_application(None)
    assert (enlistment.stage, service.done) == (Stage.COMMITTED, [("commit", "one")])


def test_a_rollback_that_was_none_delivers_what_has_a_row(rows: Rows, service: Service) -> None:
    enlistment = Enlistment()
    sent(enlistment, rows, service, "saved")
    gone = sent(enlistment, rows, service, "gone", savepoint=7)
    rows.keys.remove(gone.key)
    enlistment.rolled_back_by(None)
    assert (enlistment.stage, service.done) == (Stage.COMMITTED, [("commit", "saved"), ("rollback", "gone")])


def test_messages_to_two_stores_are_ended_each_in_its_own(rows: Rows) -> None:
    """By producers of one group with one ledger: each store has a row of its own, which check-back asks for."""
    enlistment, services = Enlistment(), (Service(), Service())
    for number, service in enumerate(services):
        branch = enlistment.branch(
            None, rows, "shop", cast(HalfMessageService, service), store_id=f"S{number}", savepoint=None
        )
        branch.halves.append(Half(0, 0, "shop", "orders", 0, f"to {number}", (), 1, 1, 100, {}))
    assert len(set(rows.keys)) == 2
    enlistment.seal(None)
    enlistment.committed()
    assert [service.done[-1] for service in services] == [("commit", "to 0"), ("commit", "to 1")]


@pytest.mark.parametrize("end", ["rolled_back_by", "ended_by_application", "seal"])
def test_no_branch_is_compared_with_all_others(
    rows: Rows, service: Service, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """On a plain connection and with Django each message has a branch: 100,000 would be compared for minutes."""
    enlistment, compared = Enlistment(), []
    for number in range(200):
        sent(enlistment, rows, service, str(number), savepoint=number)
    rows.keys = rows.keys[:1]

    def is_same(one: Branch, other: object) -> bool:
        compared.append(other)
        return one is other

    monkeypatch.setattr(Branch, "__eq__", is_same)
    getattr(enlistment, end)(None)
    enlistment.committed()
    assert len(compared) < 200
    assert min(service.done) == ("commit", "0")
    assert [name for what, name in service.done if what == "rollback"] == [str(number) for number in range(1, 200)]
