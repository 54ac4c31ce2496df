"""A disk that is really full: a small tmpfs, and a small ext4 on a loop device, where this user may mount them."""

from __future__ import annotations

import contextlib
import itertools
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.errors import StoreFull
from broker.store.disk import syscalls as calls
from broker.store.disk.files import Disk
from tests.store.full_disk import MIB, mount, mount_small

DISK = Disk()


@pytest.fixture(params=["tmpfs", "ext4"])
def small(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A file system of some 4 MiB."""
    point = mount_small(request.param, tmp_path, 4 * MIB)
    yield point
    subprocess.run(["umount", str(point)], check=True)


def test_allocation_refuses_and_leaves_nothing(small: Path) -> None:
    DISK.allocate(str(small / "first"), MIB)
    names, free = sorted(small.iterdir()), DISK.free_bytes(str(small))
    with pytest.raises(StoreFull, match="bytes free") as caught:
        DISK.allocate(str(small / "second"), 8 * MIB)
    assert caught.value.needed_bytes == 8 * MIB
    assert 0 < caught.value.free_bytes < 4 * MIB
    assert sorted(small.iterdir()) == names
    assert DISK.free_bytes(str(small)) == free
    DISK.allocate(str(small / "second"), MIB)


def test_a_disk_without_inodes_says_so(tmp_path: Path) -> None:
    """It said how many bytes are free, which were enough."""
    mount(["mount", "-t", "tmpfs", "-o", "size=4m,nr_inodes=3", "tmpfs", str(tmp_path)])
    try:
        DISK.allocate(str(tmp_path / "first"), MIB)
        DISK.create_directory(str(tmp_path / "second"))
        for make in (DISK.create_directory, lambda path: DISK.write_file(path, b"1")):
            with pytest.raises(StoreFull, match=r"needs room, and the disk has 3145728 bytes free but no inode, so"):
                make(str(tmp_path / "third"))
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_growing_refuses_and_takes_back(small: Path) -> None:
    """What a killed process began, on a disk that is full by now."""
    (small / "begun").write_bytes(b"abc")
    with pytest.raises(StoreFull):
        DISK.allocate(str(small / "begun"), 8 * MIB)
    assert (small / "begun").read_bytes() == b"abc"


def test_a_map_of_an_allocated_file_works_on_a_full_disk(small: Path) -> None:
    """No SIGBUS: each byte has its block."""
    DISK.allocate(str(small / "segment"), MIB)
    with (small / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(b"x" * 4096):
            pass
    assert DISK.free_bytes(str(small)) < 4096
    segment = DISK.open_map(str(small / "segment"), MIB)
    for at in range(0, MIB, 4096):
        segment.view[at : at + 4] = b"full"
    segment.sync()
    segment.close()


def test_a_refusal_by_the_system_itself(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program may take the space between the question and the attempt."""
    monkeypatch.setattr(calls, "free_bytes", lambda path: 1 << 40)
    test_allocation_refuses_and_leaves_nothing(small)
    test_growing_refuses_and_takes_back(small)


def test_write_file_keeps_the_old_one(small: Path) -> None:
    DISK.write_file(str(small / "small"), b"old")
    with pytest.raises(StoreFull):
        DISK.write_file(str(small / "small"), bytes(8 * MIB))
    assert (small / "small").read_bytes() == b"old"
    assert [item.name for item in small.iterdir() if item.name != "lost+found"] == ["small"]
    DISK.write_file(str(small / "small"), b"new")


def test_no_room_for_a_directory(small: Path) -> None:
    """Inodes or blocks: a directory needs one too."""
    numbers = itertools.count()
    with pytest.raises(StoreFull):  # noqa: PT012 - at which one depends on the file system
        while next(numbers) < 100_000:
            DISK.create_directory(str(small / f"{next(numbers):0200}"), durable=False)
