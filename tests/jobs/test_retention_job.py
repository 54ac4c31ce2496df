"""Retention as a job: what goes, what pins the rest, whose ledger rows stay, and the report of it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import broker
from recovery.jobs import tasks
from recovery.jobs.setup import LATEST_RETENTION, last_report
from recovery.page import facts
from tests.jobs.shops import LATE_MS, bind, killed_shop, shop


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def test_retention_takes_whole_segments_and_names_what_pins_one(tmp_path: Path) -> None:
    """A transaction in doubt keeps its segment; when it is settled the segment goes."""
    path, later = shop(tmp_path / "shop", orders=1), now_ms() + LATE_MS
    with broker.open(str(path)) as store:
        for _ in range(12):
            store.append(broker.Message("filler", bytes(100_000)))
    kept = tasks.retain(str(path), now_ms=later, keep="1s", even_unread=True)
    assert (kept["segments"], kept["due"]) == (0, 1)
    (pin,) = kept["pins"]
    half = pin["commitlog_offset"]
    tasks.resolve(str(path), commitlog_offset=half, decision="rollback", now_ms=later, why="old", by="ada")
    gone = tasks.retain(str(path), now_ms=later, keep="1s", even_unread=True)
    assert gone["segments"] >= 1
    assert gone["pins"] == []
    assert gone["unread_gone"] > 0
    assert tasks.verify(str(path), now_ms=1)["ok"]


def test_a_ledger_that_does_not_answer_keeps_its_rows_and_stops_no_retention(tmp_path: Path) -> None:
    """Segments were gone by then, no report said so, and the alert was SQLAlchemy's own text, of three lines."""
    path, later = shop(tmp_path / "shop", orders=0), now_ms() + LATE_MS
    bind(path, f"sqlite:///{tmp_path / 'shop.db'}")
    with broker.open(str(path)) as store:
        for _ in range(30):
            store.append(broker.Message("filler", bytes(100_000)))
    url = "postgresql+psycopg://shop:secret@127.0.0.1:1/shop"
    found = tasks.retain(str(path), now_ms=later, keep="1s", even_unread=True, ledger=url)
    (why,) = found["ledger_rows_stay"]
    assert "does not answer: connection failed" in why
    assert "secret" not in why
    assert "\n" not in why
    assert "sqlalche.me" not in why
    last = last_report(str(path), LATEST_RETENTION)
    assert last is not None
    assert len(last["segments"]) == found["segments"] > 0


def test_a_retention_is_green_while_no_producer_has_used_the_ledger_yet(tmp_path: Path) -> None:
    """A new deployment had an alert each day: its database "is not bound to this store"."""
    path, url = shop(tmp_path / "shop", orders=0), f"sqlite:///{tmp_path / 'shop.db'}"
    bind(shop(tmp_path / "other", orders=0), url)
    assert tasks.retain(str(path), now_ms=1, keep="1s", ledger=url)["ledger_rows_stay"] == []
    bind(path, f"sqlite:///{tmp_path / 'right.db'}")
    (why,) = tasks.retain(str(path), now_ms=1, keep="1s", ledger=url)["ledger_rows_stay"]
    assert "is not bound to this store" in why


def test_a_retention_is_green_while_one_of_two_groups_has_not_sent_yet(tmp_path: Path) -> None:
    """Its ledger has no rows of the store, as long as the store knows none but the other one."""
    path, urls = shop(tmp_path / "shop", orders=0), [f"sqlite:///{tmp_path / name}.db" for name in ("shop", "mail")]
    bind(path, urls[0])
    both = {"shop": {"ledger": urls[0]}, "mail": {"ledger": urls[1]}}
    assert tasks.retain(str(path), now_ms=1, keep="1s", resolvers=both)["ledger_rows_stay"] == []
    bind(path, urls[1])
    (tmp_path / "mail.db").rename(tmp_path / "away.db")
    (why,) = tasks.retain(str(path), now_ms=1, keep="1s", resolvers=both)["ledger_rows_stay"]
    assert "mail.db stay: there is no database" in why


def test_retention_waits_for_a_group_and_says_how_far_it_is(tmp_path: Path) -> None:
    """The report of the job has bytes, segments, what pins, and the unread of each group; the last one is kept."""
    path, later = shop(tmp_path / "shop", orders=0), now_ms() + LATE_MS
    with broker.open(str(path)) as store:
        for _ in range(30):
            store.append(broker.Message("filler", bytes(100_000)))
        with store.consumer("billing", "filler") as consumer:
            for _ in range(12):
                message = consumer.receive(5)
                assert message is not None
                consumer.ack(message)
    kept = tasks.retain(str(path), now_ms=later, keep="1s")
    assert (kept["segments"], kept["due"], kept["bytes"]) == (1, 2, 1 << 20)
    assert [(one["group"], one["waiting"], one["going"]) for one in kept["unread"]] == [("billing", 18, 0)]
    assert "group billing" in kept["pins"][0]["text"]
    last = last_report(str(path), LATEST_RETENTION)
    assert last is not None
    assert last["pins"] == kept["pins"]
    assert kept["used_bytes"] > 3 << 20


def test_retention_by_size_looks_at_the_store_alone(tmp_path: Path) -> None:
    """However full others make the disk, and nothing younger than `keep` goes unless the store is too large."""
    path = shop(tmp_path / "shop", orders=0)
    with broker.open(str(path)) as store:
        for _ in range(30):
            store.append(broker.Message("filler", bytes(100_000)))
    kept = tasks.retain(str(path), now_ms=now_ms(), keep="72h", max_bytes="1GiB", even_unread=True)
    assert (kept["segments"], kept["due"]) == (0, 0)
    gone = tasks.retain(str(path), now_ms=now_ms(), keep="72h", max_bytes="3 MiB", even_unread=True)
    assert gone["segments"] == gone["due"] > 0
    assert gone["used_bytes"] - gone["bytes"] <= 3 << 20 < gone["used_bytes"] - gone["bytes"] + (1 << 20)
    with pytest.raises(broker.BrokerError, match="a size is a number"):
        tasks.retain(str(path), now_ms=now_ms(), keep="72h", max_bytes="much")


def test_retention_takes_old_reports_and_leaves_the_latest(tmp_path: Path) -> None:
    """What the page shows is a copy under another name."""
    path = shop(tmp_path / "shop", orders=1)
    for at_ms in (1_000, 2_000, 3_000):
        assert tasks.verify(str(path), now_ms=at_ms)["report"]
    assert tasks.retain(str(path), now_ms=3_500, keep="1s")["reports"] == 2
    left = {file.name for file in (path / "checkback" / "reports").iterdir()}
    assert left == {"verify-3000.json", "verify-latest.json", "retain-3500.json", "retain-latest.json"}


def test_the_page_shows_what_an_application_removed(tmp_path: Path) -> None:
    """It said "It has not run yet. 1.0 MiB removed so far.": only a job keeps a report."""
    path, before = shop(tmp_path / "shop", orders=0), now_ms()
    assert facts.store_of("shop", str(path))["retention"]["removed_ms"] is None
    with broker.open(str(path)) as store:
        for _ in range(30):
            store.append(broker.Message("filler", bytes(100_000)))
        assert store.retain(broker.Retention(keep_s=0.001, even_unread=True)).segments
    shown = facts.store_of("shop", str(path))["retention"]
    assert (shown["now_ms"], shown["removed_ms"] >= before) == (None, True)


def test_the_page_shows_when_a_retention_was_done(tmp_path: Path) -> None:
    """Not when it was due; the reports of a recovery and of a rebuild say both, too."""
    path, before = str(killed_shop(tmp_path / "shop")), now_ms()
    tasks.recover(path, now_ms=5)
    tasks.rebuild_table(path, now_ms=5)
    tasks.retain(path, now_ms=5, keep="1s")
    assert facts.store_of("shop", path)["retention"]["done_ms"] >= before
    for latest in ("recover-latest.json", "rebuild-latest.json"):
        assert (last_report(path, latest) or {})["done_ms"] >= before
