"""The windows of a scan: the next one is walked, and its columns made, while the last one is worked on."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from recovery.scan.records import Records
from recovery.scan.scanner import Scan
from recovery.scan.store_files import StoreFiles
from tests.scan.logs import Chunk, Log, Wanted


def a_log(directory: Path) -> StoreFiles:
    """120 records in two segments."""
    log = Log(8192)
    for number in range(120):
        log.append(Wanted(properties=b"KEYS\x01%d\x02" % number, chunks=(Chunk("bytes", b"x" * 10),)))
    assert len(log.segments) == 2
    return StoreFiles.open(log.write(directory / "store"))


def test_what_comes_next_is_prepared_in_another_thread(tmp_path: Path) -> None:
    """Each batch once, in order, before it comes; the first of a segment in this thread, before the next is begun."""
    prepared: dict[int, threading.Thread] = {}

    def prepare(records: Records) -> None:
        assert int(records.offsets[0]) not in prepared
        records.values("KEYS")
        prepared[int(records.offsets[0])] = threading.current_thread()

    keys: list[bytes] = []
    firsts = []
    for records in Scan(a_log(tmp_path).commitlog, window_bytes=1000, prepare=prepare):
        firsts.append(int(records.offsets[0]))
        assert (prepared[firsts[-1]] is threading.current_thread()) == (firsts[-1] % 8192 == 0)
        keys += records.values("KEYS").array().to_pylist()
    assert keys == [b"%d" % number for number in range(120)]
    assert list(prepared) == firsts
    others = set(prepared.values()) - {threading.current_thread()}
    assert len(others) == 1
    assert not any(thread.is_alive() for thread in others)


def test_a_batch_stands_while_the_next_is_prepared(tmp_path: Path) -> None:
    """What is read from the window late is still right: there are two buffers."""
    ready = threading.Semaphore(0)
    keys: list[bytes] = []

    def prepare(_: Records) -> None:
        if threading.current_thread() is not threading.main_thread():
            ready.release()

    for records in Scan(a_log(tmp_path).commitlog, window_bytes=1000, prepare=prepare):
        ready.acquire(timeout=0.05)  # the next window is in its buffer by now, where there is one
        keys += records.property("KEYS").to_pylist()
    assert keys == [b"%d" % number for number in range(120)]


def test_what_fails_in_the_other_thread_is_raised_in_this_one(tmp_path: Path) -> None:
    def prepare(_: Records) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        list(Scan(a_log(tmp_path).commitlog, window_bytes=1000, prepare=prepare))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("checkback-scan")]
