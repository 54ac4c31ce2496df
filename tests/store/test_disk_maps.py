"""Maps: what is stored is seen by all, survives fork, and a closed map never crashes the process."""

from __future__ import annotations

import errno
import mmap
import multiprocessing
import os
import sys
import threading
from pathlib import Path

import pytest

from broker.errors import StoreError, SyncFailed
from broker.store.disk.files import Disk, Map

# From 3.12 on Python warns of a fork while other threads run, which is just what is tried here.
pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")


@pytest.fixture
def page(tmp_path: Path) -> Map:
    disk = Disk()
    path = str(tmp_path / "page")
    disk.allocate(path, 8192)
    return disk.open_map(path, 8192)


def test_stores_reach_the_file_and_other_maps(page: Map) -> None:
    other = Disk().open_map(page.path, page.size)
    page.view[5:8] = b"abc"
    page.words[2] = 0x0102030405060708
    page.sync(0, 24)
    page.sync()
    assert other.words[2] == 0x0102030405060708
    assert Path(page.path).read_bytes() == bytes(other.view)
    assert len(page.words) * 8 == page.size
    page.close()
    other.close()


def test_words_of_an_odd_size(tmp_path: Path) -> None:
    """A redo log of 20-byte units need not be a multiple of 8."""
    path = str(tmp_path / "odd")
    Disk().allocate(path, 20 * 3)
    odd = Disk().open_map(path, 60)
    assert (len(odd.view), len(odd.words)) == (60, 7)


def test_a_process_without_memory_does_not_look_for_a_disk(page: Map, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its sentence was to see that the disk is well and mounted."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(mmap, "mmap", refuse)
    with pytest.raises(StoreError, match=r"cannot be mapped: this process gets no more memory .*ulimit -v"):
        Disk().open_map(page.path, page.size)


def test_a_map_survives_fork(page: Map) -> None:
    pid = os.fork()
    if pid == 0:
        page.words[0] = 42
        page.close()
        os._exit(0)
    os.waitpid(pid, 0)
    assert page.words[0] == 42
    page.sync(0, 8)


def _store(path: str) -> None:
    Disk().open_map(path, 8192).words[1] = 43


def test_a_spawned_process_maps_the_same(page: Map) -> None:
    child = multiprocessing.get_context("spawn").Process(target=_store, args=(page.path,))
    child.start()
    child.join()
    assert page.words[1] == 43


def test_a_closed_map_says_so(page: Map) -> None:
    piece = page.view[10:20]
    exported = memoryview(bytearray(1))
    page.close()
    page.close()
    piece[0] = 7  # still mapped: whoever holds a slice may finish
    assert Path(page.path).read_bytes()[10] == 7
    for use in (lambda: page.view[0], lambda: page.words[0], page.sync):
        with pytest.raises(ValueError):
            use()
    del piece, exported


def test_closing_under_a_reader_that_exports(page: Map) -> None:
    held = (bytearray(), memoryview(page.view))  # a buffer of the view itself
    import ctypes

    array = (ctypes.c_char * 8).from_buffer(page.view)
    page.close()
    array[0] = b"z"
    assert Path(page.path).read_bytes()[:1] == b"z"
    del array, held


def test_no_descriptor_is_left(tmp_path: Path) -> None:
    path = str(tmp_path / "page")
    Disk().allocate(path, 4096)
    before = len(os.listdir("/dev/fd"))
    for _ in range(5):
        Disk().open_map(path, 4096).close()
        Disk().open_map(path, 4096)
        with pytest.raises(StoreError, match="has 4096 bytes where 8192"):
            Disk().open_map(path, 8192)
    assert len(os.listdir("/dev/fd")) == before


def test_an_empty_file_cannot_be_mapped(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    before = len(os.listdir("/dev/fd"))
    with pytest.raises((StoreError, ValueError)):
        Disk().open_map(str(tmp_path / "empty"), 0)
    assert len(os.listdir("/dev/fd")) == before


def test_a_failed_sync(page: Map, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", fail)
    with pytest.raises(SyncFailed, match="page"):
        page.sync(0, 8)


def _sync_for_ever(page: Map, seen: list[type]) -> None:
    try:
        while True:
            page.sync(0, 8)
    except (ValueError, StoreError) as error:
        seen.append(type(error))


def test_syncing_while_another_thread_closes(tmp_path: Path) -> None:
    """Either it syncs this file, or it says that the map is closed; never another file that got the number."""
    path = str(tmp_path / "page")
    Disk().allocate(path, 4096)
    seen: list[type] = []
    for _ in range(50):
        page = Disk().open_map(path, 4096)
        thread = threading.Thread(target=_sync_for_ever, args=(page, seen))
        thread.start()
        page.close()
        thread.join()
    assert seen == [ValueError] * 50


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the pages stay")
def test_pages_leave_the_map_and_keep_their_content(tmp_path: Path) -> None:
    """But for the last, which is not full; what was stored and never flushed is there, for others, too."""
    page = mmap.PAGESIZE
    path = str(tmp_path / "log")
    Disk().allocate(path, 64 * page)
    mapped = Disk().open_map(path, 64 * page)
    mapped.view[:] = content = os.urandom(64 * page)
    assert resident_pages(mapped.path) == 64
    mapped.unmap_pages(page - 1, 3 * page + 1)
    assert resident_pages(mapped.path) == 61
    mapped.unmap_pages(9 * page, 10 * page - 1)
    assert resident_pages(mapped.path) == 61
    mapped.unmap_pages(0, 64 * page)
    assert resident_pages(mapped.path) == 0
    assert Path(mapped.path).read_bytes() == content
    mapped.sync()
    assert bytes(mapped.view) == content
    mapped.close()
    mapped.unmap_pages(0, page)


def resident_pages(path: str) -> int:
    """How many pages of a file this process has in its maps."""
    found = Path("/proc/self/smaps").read_text().partition(f" {path}\n")[2]
    kilobytes = next(line.split()[1] for line in found.splitlines() if line.startswith("Rss:"))
    return int(kilobytes) * 1024 // mmap.PAGESIZE
