"""How large the files are that a rebuild makes, as the live ones, else as RocketMQ makes them, and how many."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from broker.format.index import HEADER_SIZE
from broker.store.disk.files import Disk
from broker.store.write import mapped
from broker.store.writer import open_writer
from recovery.rebuild.rebuilder import rebuild
from tests.cli.command import command
from tests.store.filled import SMALL, TINY, assert_right, few_open_files, fill, fill_queues


def test_sizes_that_no_file_shows_are_named(
    kind_store: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """A real broker that was set to 6,000 bytes did not start with queues of 6,000,000, and nothing had said so."""
    path = kind_store("rocketmq-5.3.3-plain")
    assert rebuild(path).guessed_sizes == ()
    shutil.rmtree(path / "consumequeue")
    ran = command(capsys, "rebuild", path)
    assert "so each has RocketMQ's 6,000,000 bytes. A broker does not start with others than its mapped" in ran.out
    assert "FileSizeConsumeQueue says: set it to 6000000" in ran.out
    assert len(rebuild(path).as_json()["guessed_sizes"]) == 1


@pytest.mark.parametrize("is_there", [True, False])
def test_counts_that_no_index_file_shows_are_named(kind_store: Callable[[str], Path], is_there: bool) -> None:
    """A real broker that was set to 50 slots and 300 items found no key in files of 5,000,000 and 20,000,000."""
    path = kind_store("rocketmq-5.5.0-clean")
    assert rebuild(path).guessed_sizes == ()
    for file in (path / "index").iterdir():
        size = file.stat().st_size
        os.truncate(file, HEADER_SIZE)
        os.truncate(file, size)
        if not is_there:
            file.unlink()
    (said,) = rebuild(path).guessed_sizes
    assert "set its maxHashSlotNum to 5000000 and its maxIndexNum to 20000000" in said


def test_segments_may_have_any_size(tmp_path: Path) -> None:
    """A real broker that was set to 200,003 bytes works; its segments were said to be cut."""
    store = open_writer(str(tmp_path), Disk(), replace(TINY, segment_bytes=8195), sync="os")
    fill(store, 0, 90)
    store.close()
    assert_right(tmp_path, 30, 30, 30)
    shutil.rmtree(tmp_path / "checkback")  # the store is another program's, and no file states its sizes
    assert rebuild(tmp_path).ok
    shutil.rmtree(tmp_path / "index")
    assert rebuild(tmp_path, apply=True, broker_is_stopped=True).applied


def test_more_queues_than_a_process_may_have_open_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped, "maps_of_queues_max", lambda: 4)
    store = open_writer(str(tmp_path), Disk(), SMALL, sync="os")
    fill_queues(store, 70)
    store.close()
    with few_open_files(190):  # 140 of them to compare
        assert rebuild(tmp_path).as_json()["counts"] == {}


def test_to_compare_thousands_of_queues_nothing_waits_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what is put in place is flushed; that a power cut loses nothing of it is tested with the exchange."""
    store = open_writer(str(tmp_path), Disk(), SMALL, sync="os")
    fill_queues(store, 3)
    store.close()
    flushed, force = list[str](), os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda number: (flushed.append(name_of(number)), force(number)))
    monkeypatch.setattr(os, "fsync", lambda number: flushed.append(name_of(number)))  # of directories
    assert rebuild(tmp_path).ok
    assert flushed == []
    with next((tmp_path / "consumequeue" / "Many" / "0").iterdir()).open("r+b") as queue:
        queue.write(b"\x01")  # another place in the log
    rebuild(tmp_path, apply=True)
    assert len([one for one in flushed if "/Many/" in one]) >= 3


def name_of(descriptor: int) -> str:
    return os.readlink(f"/proc/self/fd/{descriptor}")
