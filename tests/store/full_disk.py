"""A small file system of its own, and a file that fills it."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

KIB, MIB = 1 << 10, 1 << 20


@pytest.fixture(params=["tmpfs", "ext4"])
def small(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A file system of some 24 MiB."""
    point = mount_small(request.param, tmp_path, 24 * MIB)
    yield point
    subprocess.run(["umount", "--lazy", str(point)], check=True)


def mount_small(kind: str, directory: Path, size: int) -> Path:
    """Where a file system of this size was mounted; ext4 may be where loop devices are."""
    point = directory / "small"
    point.mkdir()
    if kind == "tmpfs":
        mount(["mount", "-t", "tmpfs", "-o", f"size={size},nr_inodes=1000", "tmpfs", str(point)])
    else:
        image = directory / "image"
        with image.open("wb") as file:
            file.truncate(size)
        mount(["mkfs.ext4", "-q", "-O", "^has_journal", "-m", "0", str(image)])
        mount(["mount", "-o", "loop", str(image), str(point)])
    return point


def mount(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, check=False, text=True)
    if done.returncode:
        pytest.skip(f"cannot mount here: {done.stderr.strip()}")


def fill_disk(directory: Path) -> Path:
    """A file that takes all that is left, and what ext4 gives back of its reserves when that is forced."""
    filler = directory / "filler"
    with filler.open("wb", buffering=0) as file:
        before = -1
        while before < file.tell():
            before = file.tell()
            for size in (64 * KIB, 4 * KIB, KIB, 1):
                with contextlib.suppress(OSError):
                    while file.write(b"x" * size):
                        pass
            with contextlib.suppress(OSError):
                os.fsync(file.fileno())
    return filler
