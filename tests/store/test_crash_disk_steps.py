"""A disk that crashes at each of its steps: the step is reached, and nothing happens after it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from broker.store.disk.files import Disk
from broker.testing.crash_disk import CrashDisk, Crashed


def work(disk: Disk, root: str) -> None:
    """A bit of everything."""
    disk.create_directory(f"{root}/store/log")
    disk.allocate(f"{root}/store/log/0", 2048)
    page = disk.open_map(f"{root}/store/log/0", 2048)
    page.view[0:600] = b"f" * 600
    page.sync(0, 600)
    page.view[600:1200] = b"g" * 600
    disk.write_file(f"{root}/store/small", b"1")
    disk.rename(f"{root}/store/small", f"{root}/store/other")
    disk.truncate(f"{root}/store/other", 0)
    disk.create_directory(f"{root}/store/beside")
    disk.exchange(f"{root}/store/log", f"{root}/store/beside")
    disk.remove(f"{root}/store/other")
    disk.remove_tree(f"{root}/store/beside")


def test_every_step_is_reached_and_after_it_nothing_happens(tmp_path: Path) -> None:
    dry = CrashDisk(tmp_path / "dry")
    work(dry, str(dry.root))
    kinds = {line.split()[0] for line in dry.trace}
    assert kinds == {"make", "create", "reserve", "write", "force", "rename", "exchange", "cut", "remove"}
    for step in range(1, dry.steps + 1):
        disk = CrashDisk(tmp_path / f"at{step}", crash_at=step)
        with pytest.raises(Crashed):
            work(disk, str(disk.root))
        assert disk.steps == step
        assert disk.trace == dry.trace[:step]
        before = sorted(disk.root.rglob("*"))
        calls: list[Callable[[], Any]] = [
            lambda disk=disk: disk.entry(str(disk.root)),  # type: ignore[misc]
            lambda disk=disk: disk.entries(str(disk.root)),  # type: ignore[misc]
            lambda disk=disk: disk.read(str(disk.root / "x")),  # type: ignore[misc]
            lambda disk=disk: work(disk, str(disk.root)),  # type: ignore[misc]
            lambda disk=disk: disk.open_lock(str(disk.root / "lock")),  # type: ignore[misc]
        ]
        for call in calls:
            with pytest.raises(Crashed):
                call()
        assert sorted(disk.root.rglob("*")) == before
        assert disk.survivors(3).is_dir()
