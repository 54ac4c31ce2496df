"""The pages that the next records come to are written with a flush of few, so that no fsync waits for the journal."""

from __future__ import annotations

import fcntl
import struct
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import broker
from broker.store.disk import maps
from broker.store.disk.files import Disk
from broker.store.disk.maps import Map
from broker.store.read.layout import StoreLayout
from broker.store.shared.control import Word

_FIEMAP, _UNWRITTEN = 0xC020660B, 0x800  # linux/fiemap.h
LAYOUT = StoreLayout(1 << 20, 6000, 2400, 2000, 100, 400)


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Which bytes of a file were to be written ahead, each time."""
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(Map, "write_pages", lambda _map, start, stop: asked.append((start, stop)))
    return asked


@pytest.fixture
def store(tmp_path: Path) -> Iterator[broker.LiveStore]:
    with broker.open(tmp_path / "store", layout=LAYOUT, sync="each") as store:
        yield store


def send(store: broker.LiveStore, size: int = 1000) -> None:
    store.append(broker.Message("orders", bytes(size)))


def test_once_for_some_hundred_messages(written: list[tuple[int, int]], store: broker.LiveStore) -> None:
    for _ in range(150):
        send(store)
    assert len(written) == 1
    assert written[0][0] < 5000
    assert written[0][1] - written[0][0] >= 150_000
    for _ in range(100):
        send(store)
    assert len(written) == 2
    assert written[1][0] < written[0][1] < written[1][1]


def test_not_for_much_at_once(written: list[tuple[int, int]], store: broker.LiveStore) -> None:
    send(store, 200_000)
    send(store, 200_000)
    assert written == []


def test_another_process_need_not_do_the_same(written: list[tuple[int, int]], store: broker.LiveStore) -> None:
    send(store)
    send(store)
    with broker.open(store.path, sync="each") as other:
        send(other)
        send(other)
    assert len(written) == 1


def test_nothing_where_nobody_waits_for_the_disk(written: list[tuple[int, int]], tmp_path: Path) -> None:
    with broker.open(tmp_path / "store", layout=LAYOUT, sync="os") as store:
        send(store)
        assert written == []


def test_it_ends_with_its_segment(written: list[tuple[int, int]], store: broker.LiveStore) -> None:
    for _ in range(1000):
        send(store)
    assert all(0 <= start < stop <= LAYOUT.segment_bytes for start, stop in written)
    assert len(written) <= 10


@pytest.mark.skipif(sys.platform != "linux", reason="a call of Linux")
def test_the_file_system_knows_the_pages_as_written(tmp_path: Path) -> None:
    path = tmp_path / "allocated"
    path.touch()
    Disk().allocate(str(path), LAYOUT.segment_bytes)
    if written_bytes(path) != 0:
        pytest.skip("this file system does not tell allocated pages from written ones")
    with broker.open(tmp_path / "store", layout=LAYOUT, sync="each") as store:
        for _ in range(3):
            send(store)
        ahead = written_bytes(next((tmp_path / "store/commitlog").iterdir()))
    assert 250_000 < ahead < 300_000


@pytest.mark.skipif(sys.platform != "linux", reason="a call of Linux")
def test_other_threads_run_while_the_system_writes_pages(tmp_path: Path) -> None:
    """While it waited for its journal, or for a disk that did not keep up, no thread of the process ran."""
    path, size, part = tmp_path / "allocated", 64 << 20, 4 << 20
    path.touch()
    Disk().allocate(str(path), size)
    mapped, counts, is_over = Disk().open_map(str(path), size), [0], threading.Event()

    def count() -> None:
        while not is_over.is_set():
            counts[0] += 1
            time.sleep(0)

    def counted_while_it_writes(start: int) -> int:
        before = counts[0]
        mapped.write_pages(start, start + part)
        return counts[0] - before

    counted_while_it_writes(0)  # an import lets others run, too
    thread = threading.Thread(target=count)
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(60)  # a thread runs when another one lets it, and only then
    try:
        thread.start()
        assert any(counted_while_it_writes(start) for start in range(part, size, part))
    finally:
        is_over.set()
        sys.setswitchinterval(interval_s)
        thread.join()


def written_bytes(path: Path) -> int:
    """How many bytes at the front of a file are in blocks that were written; -1 where the system does not say."""
    head = struct.pack("=QQIIII", 0, 1 << 62, 1, 0, 15, 0)  # struct fiemap: synced first, room for 15 extents
    with path.open("rb") as file:
        try:
            found = fcntl.ioctl(file, _FIEMAP, head + bytes(56 * 15))
        except OSError:
            return -1
    end = 0
    for number in range(struct.unpack_from("=I", found, 20)[0]):
        start, _, size, _, _, flags = struct.unpack_from("=QQQQQI", found, 32 + 56 * number)
        if start != end or flags & _UNWRITTEN:
            break
        end = start + size
    return end


def test_an_older_system_sends_as_before(store: broker.LiveStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maps, "_POPULATE_WRITE", 9999)  # EINVAL
    send(store)
    assert store.writer.control[Word.DURABLE] == store.writer.control[Word.TAIL]
    assert store.message("orders", 0, 0).body == bytes(1000)  # type: ignore[union-attr]
