"""`in_doubt_max`: half messages are refused while too many transactions are in doubt, and taken again after."""

from __future__ import annotations

from pathlib import Path

import pytest

import broker
from broker.errors import BrokerError, NotPermitted
from broker.testing.fixtures import SMALL
from broker.transaction.service import Half

LIMIT = 5


def prepare(store: broker.LiveStore) -> Half:
    return store.transactions.prepare(broker.Message("orders", b"1"), "shop")


def test_what_is_beyond_the_limit_is_refused_until_check_back_went_on(tmp_path: Path, each_engine: str) -> None:
    with broker.open(tmp_path / "s", layout=SMALL, sync="os", in_doubt_max=LIMIT) as store:
        for _ in range(40):  # what is ended does not count, however much of it there is
            store.transactions.commit(prepare(store))
        halves = [prepare(store) for _ in range(LIMIT)]
        with pytest.raises(NotPermitted, match=r"5 transactions are in doubt in .*not stored; check-back") as refused:
            _soon(store)
        with pytest.raises(NotPermitted):
            prepare(store)  # without another count
        with pytest.raises(NotPermitted):
            store.transactions.prepare_async(broker.Message("orders", b"1"), "shop")
        assert refused.value.code == "SYSTEM_BUSY"
        store.append(broker.Message("orders", b"plain messages go on"))
        store.transactions.rollback(halves.pop())
        halves.append(_soon(store))
        with pytest.raises(NotPermitted):
            _soon(store)
        for half in halves[:2]:
            store.transactions.park(half, "a test")  # these wait for a person
        assert [_soon(store), _soon(store)]
        assert len(store.transactions.in_doubt_slots()) == LIMIT + 2


def _soon(store: broker.LiveStore) -> Half:
    """What is in doubt is counted again after 20 ms."""
    store.transactions._admission.limit._counted_s = float("-inf")  # type: ignore[attr-defined]
    return prepare(store)


@pytest.mark.parametrize("wrong", [0, -1, True, "many", 1.5])
def test_what_is_not_a_limit_is_refused(wrong: object, tmp_path: Path) -> None:
    with pytest.raises(BrokerError, match="in_doubt_max is a whole number"):
        broker.open(tmp_path / "s", layout=SMALL, in_doubt_max=wrong)  # type: ignore[call-overload]
