"""A recovery may be cut off at any step, and again in the next one: the last one is right."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.store.writer import open_writer
from broker.testing.crash_disk import CrashDisk, Crashed
from recovery.verify.verifier import verify
from tests.store.crashed import abandoned, write_at
from tests.store.filled import TINY, assert_right, fill, reopened

# Killed in the middle


def crashed_image(tmp_path: Path) -> Path:
    """A store whose machine lost its power in mode `os`, with a checkpoint behind it, a torn tail and lost blocks."""
    disk = CrashDisk(tmp_path / "life")
    path = str(tmp_path / "life" / "store")
    store = open_writer(path, disk, TINY, sync="os")
    fill(store, 0, 9)
    store.close()
    store = open_writer(path, disk, sync="os")
    fill(store, 9, 9)
    return disk.survivors(5)


@pytest.mark.sample("0")
@pytest.mark.parametrize("part", range(6))
def test_a_power_cut_at_every_step_of_a_recovery_and_at_one_of_the_next(tmp_path: Path, part: int) -> None:
    first = crashed_image(tmp_path)
    dry = CrashDisk(shutil.copytree(first, tmp_path / "dry"))
    open_writer(str(dry.root / "store"), dry, sync="os")
    assert dry.steps > 20
    for step in range(1 + part, dry.steps + 1, 6):
        image = shutil.copytree(first, tmp_path / f"cut-{step}")
        for again in (step, dry.steps - step + 1):
            disk = CrashDisk(image, crash_at=again)
            with contextlib.suppress(Crashed):  # the second recovery may have fewer steps: then the power goes after it
                open_writer(str(disk.root / "store"), disk, sync="os")
            image = disk.survivors(step)
        reopened(image / "store")
        report = verify(image / "store")
        assert report.ok, (step, [str(finding) for finding in report.findings][:4])


_KILLED = """
import os, signal, sys
from broker.store.disk.files import Disk
from broker.store.writer import StoreWriter, open_writer

class Deadly(Disk):
    left = int(sys.argv[2])

    def _count(self):
        self.left -= 1
        if not self.left:
            os.kill(os.getpid(), signal.SIGKILL)

def deadly(name):
    def call(self, *arguments, **named):
        self._count()
        return getattr(Disk, name)(self, *arguments, **named)
    return call

for name in "make_directory create reserve write map force force_directory rename remove_file".split():
    name = "_" + name
    setattr(Deadly, name, deadly(name))
open_writer(sys.argv[1], Deadly(), sync="os")
"""


def killed_at(path: Path, call: int) -> bool:
    """Open a store in a process that is killed with SIGKILL at a call to the system; False when it had fewer."""
    ran = subprocess.run([sys.executable, "-c", _KILLED, str(path), str(call)], check=False, cwd=os.getcwd())
    assert ran.returncode in (0, -signal.SIGKILL)
    return ran.returncode != 0


@pytest.mark.parametrize("damage", ["nothing", "the checkpoint", "a torn tail"])
def test_a_recovery_that_is_killed_twice_is_done_by_the_third(
    tmp_path: Path, damage: str, record_property: Callable[[str, object], None]
) -> None:
    end = abandoned(tmp_path / "whole", 12, 12)
    if damage == "the checkpoint":
        (tmp_path / "whole" / "checkback" / "checkpoint").unlink()
    if damage == "a torn tail":
        write_at(tmp_path / "whole", end, bytes.fromhex("000000ffdaa320a7") + b"torn")
    kills = 0
    for call in (5, 14, 23, 32, 41):
        path = shutil.copytree(tmp_path / "whole", tmp_path / f"killed-{call}")
        kills += killed_at(path, call) + killed_at(path, call + 4)
        reopened(path)
        assert_right(path, 8, 8, 8)
        if damage == "a torn tail":
            kept = sorted(one.name for one in (path / "checkback" / "torn").iterdir())
            assert f"{end:020}" in kept
    record_property("kills", kills)
    assert kills >= 5
