"""A follower that is killed, or has no room: the next run goes on, and the copy is the master's all the same."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from broker.errors import StoreError, StoreFull
from recovery.following.book import FollowedBook
from recovery.following.copied_log import CopiedLog
from recovery.following.follower import Follower
from recovery.following.link import TRIES
from recovery.following.log_verifier import LogVerifier
from recovery.verify.verifier import verify
from tests.following.masters import (
    OF_LOG,
    SEGMENT,
    DroppingMaster,
    ScriptedMaster,
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


def test_a_killed_follower_goes_on_behind_what_is_on_disk(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    with served(tmp_path / "master") as (store, address):
        words = [sys.executable, "-m", "recovery.cli", "follow", address, str(copy), "--from", "first",
                 "--segment-bytes", str(SEGMENT), "--every", "0.1"]  # fmt: skip
        for _ in range(3):
            with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
                assert process.stdout is not None
                process.stdout.readline()
                traffic(store, 150)
                process.stdout.readline()
                process.kill()
        status = follow_once(address, copy)
    assert log_bytes(copy) == log_bytes(tmp_path / "master")
    assert {name: status.as_json()[name] for name in OF_LOG} == {
        name: value for name, value in verified(tmp_path / "master").items() if name != "counts"
    }


def test_a_follower_killed_before_it_wrote_whose_copy_it_is_begins_again(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    for name in ("commitlog", "checkback"):
        (copy / name).mkdir(parents=True)
    (copy / "lock").touch()
    (copy / "checkback" / "followed.json.4711.tmp").touch()
    (copy / "commitlog" / ("0" * 20)).touch()
    with pytest.raises(StoreError, match="is not empty"):
        Follower("127.0.0.1:1", copy)
    (copy / "commitlog" / ("0" * 20)).unlink()
    Follower("127.0.0.1:1", copy).close()


@pytest.mark.parametrize("went_on", [False, True])
@pytest.mark.parametrize(
    "step", [(CopiedLog, "set_aside"), (FollowedBook, "forget_from"), (FollowedBook, "note_lost"), (CopiedLog, "cut")]
)
def test_a_follower_killed_while_it_cuts_goes_on_with_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: tuple[type, str], went_on: bool
) -> None:
    """The log may end behind, or before, what the book knew: nothing is noted twice, and no zeros are kept aside."""
    with served(tmp_path / "master") as (store, _):
        traffic(store, 500)
    end, starts = store_end(tmp_path / "master"), record_starts(tmp_path / "master")
    log = log_bytes(tmp_path / "master")[:end]
    master, copy = ScriptedMaster(log), tmp_path / "copy"
    follow_once(master.address, copy, start="first", segment_bytes=SEGMENT)
    cut = next(at for at in starts if at > end - SEGMENT)
    master.log = log[:cut]

    def killed(self: Any, *args: Any) -> None:
        undone(self, *args)
        for name in ("add", "mark"):  # the other thread is dead, too
            patch.setattr(FollowedBook, name, lambda *_: None)
        raise RuntimeError("killed")

    undone = getattr(*step)
    with monkeypatch.context() as patch:
        patch.setattr(*step, killed)
        with pytest.raises(StoreError, match="killed"):
            follow_once(master.address, copy)
    if went_on:
        with served(tmp_path / "other") as (store, _):
            traffic(store, 700, size=3000)
        master.log += other_records(tmp_path / "other", cut, end + 50_000)
    status = follow_once(master.address, copy)
    assert log_bytes(copy)[: len(master.log)] == master.log
    assert (status.end_offset, status.counts) == (len(master.log), {})
    (lost,) = status.lost
    assert Path(lost["kept"]).read_bytes() == log[cut:]
    report = verify(copy)
    assert (status.digest, status.records) == (report.digest, report.records)


def test_a_follower_killed_while_the_log_grows_compares_its_end_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it noted as its last record is on disk, whatever came during the flush; and the master lost that one."""
    for name, count in (("master", 100), ("other", 250)):
        with served(tmp_path / name) as (store, _):
            traffic(store, count)
    starts, log = record_starts(tmp_path / "master"), log_bytes(tmp_path / "master")[: store_end(tmp_path / "master")]
    noted, cut = starts[150], starts[148]
    master, copy = ScriptedMaster(log[:noted]), tmp_path / "copy"

    def sync(self: CopiedLog) -> int:
        end = undisturbed(self)
        master.log = log if end == noted else master.log
        bound = time.monotonic() + 10
        while end == noted == self.framed_end and time.monotonic() < bound:
            time.sleep(0.001)  # another thread receives
        return end

    def killed(self: LogVerifier, begin: int, end: int) -> bool:
        if end == noted:
            raise RuntimeError("killed")
        return undone(self, begin, end)

    undisturbed, undone = CopiedLog.sync, LogVerifier.advance
    with monkeypatch.context() as patch:
        patch.setattr(CopiedLog, "sync", sync)
        patch.setattr(LogVerifier, "advance", killed)
        with pytest.raises(RuntimeError, match="killed"):
            follow_once(master.address, copy, start="first", segment_bytes=SEGMENT)
    master.log = log[:cut] + other_records(tmp_path / "other", cut, len(log))
    status = follow_once(master.address, copy)
    assert log_bytes(copy)[: len(master.log)] == master.log
    assert [(one["begin_offset"], one["end_offset"]) for one in status.lost] == [(cut, noted)]


@pytest.mark.parametrize("full", ["log", "flush", "book", "lost"])
def test_a_full_disk_is_a_sentence_and_the_next_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: str
) -> None:
    """What is full may be the log, the book, which is a database, or what it lost; a close releases the copy."""
    with served(tmp_path / "master") as (store, _):
        traffic(store, 300)
    starts, log = record_starts(tmp_path / "master"), log_bytes(tmp_path / "master")[: store_end(tmp_path / "master")]
    master, copy = ScriptedMaster(log[: starts[500]]), tmp_path / "copy"
    follow_once(master.address, copy, start="first", segment_bytes=SEGMENT)
    master.log = log[: starts[300]] if full == "lost" else log

    def no_room(descriptor: int, *_: object) -> None:
        directory = os.path.dirname(os.readlink(f"/proc/self/fd/{descriptor}"))
        if directory.endswith("lost" if full == "lost" else "commitlog"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def no_page(self: FollowedBook, *_: object) -> None:
        self._db.execute("PRAGMA max_page_count = 1")
        self._db.execute("CREATE TABLE more AS SELECT zeroblob(1 << 20)")

    with monkeypatch.context() as patch:
        if full == "book":
            patch.setattr(FollowedBook, "add", no_page)
        else:
            patch.setattr(os, "pwrite" if full == "log" else "fsync", no_room)
        with pytest.raises(StoreFull, match=r"does not fit \(No space left.*run the same command again"):
            follow_once(master.address, copy)
    status = follow_once(master.address, copy)
    assert status.end_offset == len(master.log)
    assert len(os.listdir(copy / "checkback" / "lost")) == 2 if full == "lost" else status.ok


def test_a_connection_that_brought_something_is_no_failure_in_a_row(tmp_path: Path) -> None:
    """`--once` gave up behind a bad network after five connections, however much each of them had brought."""
    with served(tmp_path / "master") as (store, _):
        traffic(store, 20)
    log = log_bytes(tmp_path / "master")[: store_end(tmp_path / "master")]
    master = DroppingMaster(log, limit=len(log) // 8)
    status = follow_once(master.address, tmp_path / "copy", start="first", segment_bytes=SEGMENT)
    assert status.end_offset == len(log)
    assert len(master.asked) > TRIES
