"""What is in doubt and what is parked: the log, the state table and every list that people see agree."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import broker
from broker.store.maintain.removal import halves_in_doubt
from broker.store.read.layout import StoreLayout
from broker.store.read.store import open_store
from broker.transaction.service import Half
from recovery.checkback.manual import park_list
from recovery.jobs import tasks
from recovery.jobs.due import DueWatch
from recovery.page.facts import line_of, store_of
from recovery.transactions.in_doubt import Pending
from recovery.views.consumer_lag import positions
from recovery.views.info import look
from recovery.views.overview import overview, story

TINY = StoreLayout(4096, 400, 240, 200, 16, 24)


def prepare(store: broker.LiveStore, number: int) -> Half:
    return store.transactions.prepare(broker.Message("orders", b"%d" % number + bytes(300)), "shop")


@pytest.mark.usefixtures("each_engine")
def test_all_lists_agree_also_after_retention_removed_files_of_the_state_table(tmp_path: Path) -> None:
    """Those in doubt and those parked, by CommitLog offset; a half that was taken back is in doubt again."""
    path = str(tmp_path / "store")
    with broker.open(path, layout=TINY, sync="os") as store:
        for number in range(60):
            store.transactions.commit(prepare(store, number))
        halves = [prepare(store, number) for number in range(4)]
        for half in halves[:2]:
            store.transactions.park(half, "nobody knows")
        store.transactions.unpark(halves[0], "try again")
        store.sync_now()
        now_ms = time.time_ns() // 1_000_000 + 1000
        done = store.retain(broker.Retention(keep_s=0, even_unread=True), now_ms=now_ms)
        assert any("statetable" in name or "halfstates" in name for name in done.derived)
        all_of_them, parked = [half.commitlog_offset for half in halves], [halves[1].commitlog_offset]

        assert [half.commitlog_offset for half in store.transactions.in_doubt()] == all_of_them
        assert halves_in_doubt(store.writer.parts) == all_of_them
        assert list(store.transactions.parked()) == parked
        assert [(one.commitlog_offset, one.why) for one in park_list(store, now_ms)] == [(parked[0], "nobody knows")]
    seen = overview(path, now_ms)
    assert [one.commitlog_offset for one in seen.parked] == parked
    assert [one.commitlog_offset for one in seen.in_doubt] == [at for at in all_of_them if at not in parked]
    assert {one.topic for one in (*seen.parked, *seen.in_doubt)} == {"orders"}
    assert [step["what"] for step in story(path, all_of_them[0])] == ["prepared", "parked", "taken back"]
    assert [one["commitlog_offset"] for one in tasks.parked(path, now_ms=now_ms)] == parked
    assert [half.commitlog_offset for half in Pending(path, now_ms, parked=True)] == all_of_them


def test_the_lag_of_a_store_is_that_of_all_its_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It left out those that the page does not list."""
    monkeypatch.setattr("recovery.page.facts.LISTED", 1)
    path = str(tmp_path / "store")
    with broker.open(path, layout=TINY, sync="os") as store:
        store.append(broker.Message("orders", b"1"))
        for group in ("billing", "mails"):
            store.consumer(group, "orders").close()
    assert line_of("shop", path)["lag"] == 2
    assert len(store_of("shop", path)["consumers"]) == 1


def test_who_needs_numbers_reads_no_parked_half_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All were read and listed: a million for each look of a watcher, and in each answer to the page."""
    path = str(tmp_path / "store")
    with broker.open(path, layout=TINY, sync="os") as store:
        for number in range(5):
            store.transactions.park(prepare(store, number), "nobody knows")
    now_ms = time.time_ns() // 1_000_000
    assert len(overview(path, now_ms, parked_limit=2).parked) == 2
    monkeypatch.setattr("recovery.page.facts.LISTED", 3)
    assert len(store_of("shop", path)["parked"]) == 3
    monkeypatch.setattr("recovery.views.overview._read", lambda *_: pytest.fail("a half message was read"))
    assert DueWatch(path).look(now_ms, None).gauges["parked"] == 5
    assert tasks.check_back(path, now_ms=now_ms)["parked"] == 5
    assert line_of("shop", path)["counts"]["parked"] == 5


def test_info_counts_what_a_group_has_to_read_as_the_other_lists_do(tmp_path: Path) -> None:
    """What retention removed is behind nobody; beyond the end, as behind a topic made again, a group is behind none."""
    path = tmp_path / "store"
    with broker.open(path, layout=TINY, sync="os") as store:
        for number in range(90):
            store.append(broker.Message("orders", bytes(300)), queue_id=number % 3)
        store.sync_now()
        assert store.retain(broker.Retention(max_bytes=1, even_unread=True)).segments
        for queue_id in range(3):
            store.append(broker.Message("orders", b"x"), queue_id=queue_id)
    (path / "config").mkdir(exist_ok=True)
    (path / "config/consumerOffset.json").write_text('{"offsetTable": {"orders@billing": {0: 0, 1: 99}}}')
    with open_store(path) as read:
        others = {one.queue_id: one.lag for one in positions(read)}
        kept = [end - begin for begin, end in (read.queue_range("orders", one) for one in range(3))]
        assert read.queue_range("orders", 0)[0] > 0
    assert {one.queue_id: one.lag for one in look(path).groups} == others == {0: kept[0], 1: 0, 2: kept[2]}
