"""A copy that follows a master: the same bytes, the same judgement, and what becomes of both after failures."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest

import broker
from broker.errors import BrokerError, CorruptStore, StoreError, StoreLocked
from broker.store.recover.load import plan
from recovery.following import decisions
from recovery.following.copied_log import SegmentSizeWrong
from recovery.following.decisions import NOT_A_SLAVE
from recovery.following.follower import Follower, FollowOptions
from recovery.following.metrics_page import StatusPage
from recovery.following.status import FollowerStatus
from recovery.repair import crash
from recovery.repair.copying import copy_store
from recovery.verify.verifier import verify
from tests.cli.command import command
from tests.following.masters import (
    OF_LOG,
    SEGMENT,
    BusyMaster,
    ScriptedMaster,
    SlowMaster,
    follow_once,
    log_bytes,
    other_records,
    record_starts,
    served,
    store_end,
    traffic,
    verified,
)

pytestmark = pytest.mark.usefixtures("short_silence")


@pytest.mark.parametrize("engine", ["state-table", "half-op"])
def test_it_has_every_byte_and_says_what_a_verification_says(tmp_path: Path, engine: str) -> None:
    """Over five segments and three runs, with decisions about what an earlier run saw."""
    with served(tmp_path / "master", engine) as (store, address):
        for run in range(3):
            traffic(store, 500)
            if run:
                for half in list(store.transactions.in_doubt())[:60]:
                    store.transactions.commit(half)
            status = follow_once(address, tmp_path / "copy", start="first", segment_bytes=SEGMENT if not run else None)
            oldest = next(iter(store.transactions.in_doubt()))
            assert [status.in_doubt[0].half_offset, status.in_doubt[0].group] == [oldest.commitlog_offset, "shop"]
            assert status.in_doubt[0].since_ms == oldest.store_timestamp_ms
    log = log_bytes(tmp_path / "master")
    assert log_bytes(tmp_path / "copy") == log
    assert len(log) >= 3 * SEGMENT
    offline = verified(tmp_path / "master")
    assert {name: status.as_json()[name] for name in (*OF_LOG, "counts")} == offline
    assert verified(tmp_path / "copy") == offline
    assert offline["transactions"]["in_doubt"] > 100


def test_a_new_copy_begins_with_the_last_segment(tmp_path: Path) -> None:
    with served(tmp_path / "master") as (store, address):
        traffic(store, 700)
        for half in list(store.transactions.in_doubt())[:5]:
            store.transactions.commit(half)
        status = follow_once(address, tmp_path / "copy", segment_bytes=SEGMENT)
        assert half.commitlog_offset < status.begin_offset
        assert status.begin_offset == store.end_offset - store.end_offset % SEGMENT > 0
        assert status.end_offset == store.end_offset
        assert status.ok  # ends of half messages before the beginning are not findings


@pytest.mark.parametrize("first", [0, 3])
def test_the_first_segment_that_the_master_has_is_found(tmp_path: Path, first: int) -> None:
    """0 cannot be asked for, so 1 is; and the first byte of a record is always 0."""
    with served(tmp_path / "master") as (store, _):
        traffic(store, 2000)
    log = log_bytes(tmp_path / "master")[: store_end(tmp_path / "master")]
    master = ScriptedMaster(log[first * SEGMENT :], begin=first * SEGMENT)
    status = follow_once(master.address, tmp_path / "copy", start="first", segment_bytes=SEGMENT)
    assert (status.begin_offset, status.end_offset) == (first * SEGMENT, len(log))
    assert log_bytes(tmp_path / "copy")[: len(log) - first * SEGMENT] == log[first * SEGMENT :]


def test_half_messages_that_a_rocksdb_knows(golden: Callable[[str], Path], tmp_path: Path) -> None:
    """Of 5.5 with transRocksDBEnable: all were called ends without a half message, and nothing was in doubt."""
    path = golden("kinds/rocketmq-5.5.0-rocksdb-halves")
    master = ScriptedMaster(log_bytes(path)[: verified(path)["end_offset"]], segment_bytes=256 << 10)
    status = follow_once(master.address, tmp_path / "copy", start="first", segment_bytes=256 << 10).as_json()
    assert {name: status[name] for name in OF_LOG if name in status} == {
        name: value for name, value in verified(path).items() if name in status and name in OF_LOG
    }
    assert (status["transactions"]["in_doubt"], status["counts"]) == (4, {})


@pytest.mark.parametrize("segment", [0, 1, 4, 50])
@pytest.mark.parametrize("is_ours", [False, True])
def test_a_beginning_that_the_master_does_not_have_is_refused(tmp_path: Path, segment: int, is_ours: bool) -> None:
    """RocketMQ sends nothing from there on, which looks as if it had nothing more; a store of ours closes."""
    with served(tmp_path / "master") as (store, address):
        traffic(store, 1600)
        if is_ours and segment < 2:
            for base in (0, SEGMENT):
                os.remove(tmp_path / "master" / "commitlog" / f"{base:020}")
        end = store.end_offset
        assert end // SEGMENT == 3
        if not is_ours:
            log = log_bytes(tmp_path / "master")[:end]
            address = ScriptedMaster(log[2 * SEGMENT :], begin=2 * SEGMENT).address
        copy = tmp_path / "copy"
        with pytest.raises(
            StoreError, match=f"has nothing at {segment * SEGMENT}: its last segment begins at {3 * SEGMENT}"
        ):
            follow_once(address, copy, start=segment * SEGMENT, segment_bytes=SEGMENT)
        status = follow_once(address, copy, start=2 * SEGMENT)
        assert (status.begin_offset, status.end_offset) == (2 * SEGMENT, end)


def test_without_its_book_a_copy_is_verified_again(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    with served(tmp_path / "master") as (store, address):
        traffic(store, 200)
        before = follow_once(address, copy, start="first", segment_bytes=SEGMENT)
        for name in os.listdir(copy / "checkback"):
            if name.startswith("followed.db"):
                os.remove(copy / "checkback" / name)
        after = follow_once(address, copy)
    assert (after.digest, after.records, after.end_offset) == (before.digest, before.records, before.end_offset)


def test_a_copy_whose_last_segment_was_removed_says_how_it_goes_on(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    with served(tmp_path / "master") as (store, address):
        traffic(store, 600)
        before = follow_once(address, copy, start="first", segment_bytes=SEGMENT)
        (copy / "commitlog" / f"{SEGMENT:020}").unlink()
        with pytest.raises(CorruptStore, match=rf"lacks its last segment, up to {before.end_offset}\. Remove .*\.db: "):
            Follower(address, copy)
        os.remove(copy / "checkback" / "followed.db")
        after = follow_once(address, copy)
    assert (after.digest, after.records, after.end_offset) == (before.digest, before.records, before.end_offset)


@pytest.mark.parametrize("back", [1, 40, 700])
@pytest.mark.parametrize("went_on", [False, True])
def test_what_the_master_lost_is_kept_aside_and_named(tmp_path: Path, back: int, went_on: bool) -> None:
    """A master comes back without its last records, and may have written others by the time it is seen."""
    with served(tmp_path / "master") as (store, _):
        traffic(store, 600)
    end, starts = store_end(tmp_path / "master"), record_starts(tmp_path / "master")
    log = log_bytes(tmp_path / "master")[:end]
    master, copy = ScriptedMaster(log), tmp_path / "copy"
    follow_once(master.address, copy, start="first", segment_bytes=SEGMENT)

    with served(tmp_path / "other") as (store, _):  # the same records up to somewhere, in other segments' bytes
        traffic(store, 1500)
    cut = starts[-back]
    master.log = log[:cut] + (other_records(tmp_path / "other", cut, end + 50_000) if went_on else b"")
    status = follow_once(master.address, copy)
    assert status.end_offset == len(master.log)
    assert log_bytes(copy)[: len(master.log)] == master.log
    (lost,) = status.lost
    assert not status.ok
    assert (lost["begin_offset"], lost["end_offset"]) == (cut, end)
    assert lost["records"] == back
    assert Path(lost["kept"]).read_bytes() == log[cut:]
    report = verify(copy)
    assert (status.digest, status.records) == (report.digest, report.records)
    assert not report.findings.counts


def test_another_master_is_refused_and_nothing_is_changed(tmp_path: Path) -> None:
    for name in ("master", "other"):
        with served(tmp_path / name) as (store, _):
            traffic(store, 100)
    copy = tmp_path / "copy"
    first, second = (
        ScriptedMaster(log_bytes(tmp_path / name)[: store_end(tmp_path / name)]) for name in ("master", "other")
    )
    follow_once(first.address, copy, start="first", segment_bytes=SEGMENT)
    before = log_bytes(copy)
    with pytest.raises(CorruptStore, match="it is another broker"):
        follow_once(second.address, copy)
    first.log = b""
    with pytest.raises(CorruptStore, match="it is another broker"):
        follow_once(first.address, copy)
    assert log_bytes(copy) == before
    assert not (copy / "checkback" / "lost").exists()


def test_a_copy_that_was_away_for_too_long_is_not_continued(tmp_path: Path) -> None:
    with served(tmp_path / "master") as (store, _):
        traffic(store, 2000)
    log = log_bytes(tmp_path / "master")[: store_end(tmp_path / "master")]
    master, copy = ScriptedMaster(log[: SEGMENT // 2]), tmp_path / "copy"
    follow_once(master.address, copy, start="first", segment_bytes=SEGMENT)
    later = ScriptedMaster(log[2 * SEGMENT :], begin=2 * SEGMENT)
    with pytest.raises(StoreError, match="not followed for too long"):
        follow_once(later.address, copy)


@pytest.mark.parametrize("size", [SEGMENT // 2, 2 * SEGMENT])
def test_segments_of_another_size_are_refused(tmp_path: Path, size: int) -> None:
    with served(tmp_path / "master") as (store, address):
        traffic(store, 1200)
        with pytest.raises(SegmentSizeWrong, match="--segment-bytes"):
            follow_once(address, tmp_path / "copy", start="first", segment_bytes=size)


def test_a_copy_without_a_byte_takes_the_right_size_after_a_wrong_one(tmp_path: Path) -> None:
    """The step that the sentence names is not refused in its turn."""
    copy = tmp_path / "copy"
    with served(tmp_path / "master") as (store, address):
        traffic(store, 800)
        with pytest.raises(SegmentSizeWrong, match="give --segment-bytes"):
            follow_once(address, copy)
        assert follow_once(address, copy, segment_bytes=SEGMENT).begin_offset == SEGMENT
        with pytest.raises(StoreError, match="leave out --segment-bytes"):
            follow_once(address, copy, segment_bytes=2 * SEGMENT)


def test_nobody_else_writes_to_a_copy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with served(tmp_path / "master") as (store, address):
        traffic(store, 10)
        copy = tmp_path / "copy"
        follow_once(address, copy, start="first", segment_bytes=SEGMENT)
        with pytest.raises(BrokerError, match="a copy that follows a master"):
            broker.open(copy)
        with pytest.raises(BrokerError, match="a copy that follows a master"):
            crash.apply(plan(crash.survey(copy)), broker_is_stopped=True)
        with Follower(address, copy), pytest.raises(StoreLocked):
            Follower(address, copy)
        with Follower(address, copy), pytest.raises(StoreLocked, match=f"checkback salvage {copy} NEW"):
            copy_store(str(copy), str(tmp_path / "other"))
        copy_store(str(copy), str(tmp_path / "other"))
        ran = command(capsys, "rebuild", copy)
        assert (ran.code, "--apply would refuse" in ran.out, "Stop the broker" in ran.out) == (1, True, False)
        with pytest.raises(StoreError, match="not a copy that follows"):
            Follower(address, tmp_path / "master")
        with pytest.raises(StoreError, match=f"there is no directory {tmp_path / 'volume'}"):  # that is not mounted
            Follower(address, tmp_path / "volume" / "copy")
        assert not (tmp_path / "volume").exists()
    with broker.open(copy, read_only=True) as read:
        assert sum(1 for _ in read.records()) == sum(1 for _ in record_starts(tmp_path / "master"))


@pytest.mark.parametrize("acknowledges", [False, True])
def test_a_master_counts_it_as_a_slave_only_when_told_to(tmp_path: Path, acknowledges: bool) -> None:
    """A SYNC_MASTER does not take a copy for a slave that would serve: its reports are of no use to it."""
    with served(tmp_path / "master") as (store, _):
        traffic(store, 100)
    log = log_bytes(tmp_path / "master")[: store_end(tmp_path / "master")]
    master = ScriptedMaster(log)
    options = FollowOptions(segment_bytes=SEGMENT, acknowledges=acknowledges)
    with Follower(master.address, tmp_path / "copy", options) as follower:
        stopped = threading.Event()
        threading.Timer(6.5 if not acknowledges else 2.0, stopped.set).start()
        follower.run(stopped)
    assert set(master.reports) <= {NOT_A_SLAVE} if not acknowledges else master.reports[-1] == len(log)
    assert master.reports


def grown(master: ScriptedMaster, whole: bytes, ends: Sequence[int], stopped: threading.Event) -> None:
    """Give the master one record more every 10 ms: it is never silent."""
    for end in ends:
        if stopped.wait(0.01):
            return
        master.log = whole[:end]


def test_beside_a_master_that_is_never_silent_it_is_caught_up_and_once_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every transfer is one small record, with 10 ms between them: no heartbeat, and no half second of silence."""
    monkeypatch.setattr(decisions, "HEARTBEAT_S", 1.5)
    with served(tmp_path / "master") as (store, _):
        traffic(store, 1200)
    starts = record_starts(tmp_path / "master")
    log = log_bytes(tmp_path / "master")
    master, stopped = BusyMaster(log[: starts[100]]), threading.Event()
    writing = threading.Thread(target=grown, args=(master, log, starts[101:], stopped))
    writing.start()
    seen: list[FollowerStatus] = []
    bound = threading.Timer(30, stopped.set)
    bound.start()
    try:
        options = FollowOptions(start="first", segment_bytes=SEGMENT)
        with Follower(master.address, tmp_path / "copy", options) as follower:
            last = follower.run(stopped, seen.append, until_caught_up=True, every_s=0.1)
        assert not stopped.is_set()
        assert writing.is_alive()  # the master was written to until the end
    finally:
        bound.cancel()
        stopped.set()
        writing.join()
    assert all(status.is_caught_up for status in seen[2:])
    assert len(seen) > 4
    assert last.is_caught_up
    assert last.verified_offset == last.end_offset > starts[150]
    assert log_bytes(tmp_path / "copy")[: last.end_offset] == log[: last.end_offset]


def watch(seen: list[FollowerStatus], stopped: threading.Event, status: FollowerStatus) -> None:
    """Until a fifth of a segment is there."""
    seen.append(status)
    if status.end_offset > SEGMENT // 5:
        stopped.set()


def test_a_part_of_the_log_is_not_all_of_it_whatever_the_size_of_a_transfer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The master has more all the time: transfers as long as they can be, or cut by a smaller limit."""
    monkeypatch.setattr(decisions, "SILENT_S", 4.0)
    with served(tmp_path / "master") as (store, _):
        traffic(store, 600)
    log, starts = log_bytes(tmp_path / "master")[: store_end(tmp_path / "master")], record_starts(tmp_path / "master")
    odd = next(size for size in range(1009, 2000) if not any(start % size in (0, 1) for start in starts[1:]))
    for limit in (odd, 32768):
        master, seen, stopped = SlowMaster(log, limit=limit), list[FollowerStatus](), threading.Event()
        options = FollowOptions(start="first", segment_bytes=SEGMENT)
        bound = threading.Timer(30, stopped.set)
        bound.start()
        with Follower(master.address, tmp_path / f"copy-{limit}", options) as follower:
            follower.run(stopped, partial(watch, seen, stopped), every_s=0.1)
        bound.cancel()
        assert SEGMENT // 5 < seen[-1].end_offset < len(log)
        assert not any(status.is_caught_up for status in seen)
        assert "copying" in seen[-1].line()


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="where Linux lists what is open")
def test_old_segments_that_went_give_their_space_back(tmp_path: Path) -> None:
    """Each was kept open until the follower ended, up to 128 of them: the disk got no room."""
    with served(tmp_path / "master") as (store, address):
        for _ in range(12):
            store.append(broker.Message("orders", bytes(SEGMENT // 3)))
        options = FollowOptions(start="first", segment_bytes=SEGMENT, keep_s=0.0)
        with Follower(address, tmp_path / "copy", options) as follower:
            status = follower.run(threading.Event(), until_caught_up=True)
            assert status.begin_offset >= 3 * SEGMENT
            held = []
            for descriptor in os.listdir("/proc/self/fd"):
                with contextlib.suppress(FileNotFoundError):
                    held.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        of_copy = [path for path in held if path.startswith(str(tmp_path / "copy"))]
        assert len(of_copy) > 1
        assert not [path for path in of_copy if path.endswith("(deleted)")]


def test_old_segments_go_but_none_with_a_transaction_in_doubt(tmp_path: Path) -> None:
    with served(tmp_path / "master") as (store, address):
        traffic(store, 900)
        copy = tmp_path / "copy"
        status = follow_once(address, copy, start="first", segment_bytes=SEGMENT, keep_s=0.0)
        assert status.begin_offset == 0
        for half in list(store.transactions.in_doubt())[:280]:
            store.transactions.rollback(half)
        store.append(broker.Message("orders", b"x"))
        status = follow_once(address, copy, keep_s=0.0)
        oldest = next(iter(store.transactions.in_doubt())).commitlog_offset
        assert status.begin_offset == oldest - oldest % SEGMENT > 0
    report = verify(copy)
    assert (report.begin_offset, report.digest) == (status.begin_offset, status.digest)
    assert report.ok


def test_the_command_line_and_its_page(tmp_path: Path) -> None:
    with served(tmp_path / "master") as (store, address):
        traffic(store, 30)
        words = [sys.executable, "-m", "recovery.cli", "follow", address, str(tmp_path / "copy"), "--from", "first",
                 "--segment-bytes", "1MiB", "--once", "--json"]  # fmt: skip
        done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        status = json.loads(done.stdout.splitlines()[-1])
        assert status["transactions"]["in_doubt"] == 10
        done = subprocess.run([*words[:-2], "--from", "soon"], capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 2
        with Follower(address, tmp_path / "copy") as follower, StatusPage(0) as page:
            page.show(follower.status())
            with urllib.request.urlopen(f"http://{page.address}/metrics", timeout=10) as answer:
                text = answer.read().decode()
            assert 'state="in_doubt"} 10' in text
