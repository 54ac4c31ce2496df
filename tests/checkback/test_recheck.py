"""What a person has checked again begins anew, also where the verb came only half way."""

from __future__ import annotations

from pathlib import Path

import pytest

import broker
from broker.errors import StoreFull
from recovery.checkback.catalog import Attempt, Catalog
from recovery.checkback.manual import recheck
from recovery.checkback.resolvers import CallableResolver
from recovery.checkback.round import CheckBack
from tests.checkback.shop import open_store


def test_a_recheck_that_fails_half_way_leaves_no_old_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was taken back with it was parked again by the next round, and nobody was asked."""
    with open_store(tmp_path / "store") as store:
        halves = [store.transactions.prepare(broker.Message("orders", b"%d" % number), "shop") for number in range(2)]
        catalog = Catalog.open(store.path, store.store_id)
        for half in halves:
            place = (half.commitlog_offset, half.message_id, half.topic, "shop", half.store_timestamp_ms)
            catalog.remember([Attempt(*place, 15, 1, 1, "unknown", "")])
        assert all(store.transactions.park(half, "nobody knew") for half in halves)
        unpark = store.transactions.unpark

        def fails_at_the_second(half: broker.Half, why: str) -> bool:
            if half == halves[1]:
                raise StoreFull("no room")
            return unpark(half, why)

        with monkeypatch.context() as full:
            full.setattr(store.transactions, "unpark", fails_at_the_second)
            with pytest.raises(StoreFull):
                recheck(store, halves, why="again", catalog=catalog)
        catalog.close()
        check = CheckBack(store, CallableResolver(lambda _: None))
        report = check.round(check.now_ms() + 60_000)
        assert (report.parked, report.unknown, report.newly_parked) == (1, 1, 0)
        check.catalog.close()
        again = recheck(store, [halves[1], halves[1]], why="again")
        assert [one.result for one in again] == ["unparked", "unchanged"], "the second time it was not parked"
