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

from broker.errors import SyncFailed
from broker.format.sysflag import TransactionType
from broker.format.topics import OP_TOPIC
from broker.store.disk.files import Disk
from broker.store.disk.paths import Paths
from broker.store.engines.half_op import HALF_OP
from broker.store.engines.replay_watch import ReplayWatch
from broker.store.recover import steps
from broker.store.recover.load import plan
from broker.store.recover.survey import survey
from broker.store.recover.truncate import keep_aside
from broker.store.writer import open_writer
from broker.testing.crash_disk import CrashDisk, Crashed
from recovery.verify.verifier import verify
from tests.store.crashed import abandoned, left, offsets, write_at
from tests.store.filled import SMALL, TINY, assert_right, fill, half, reopened

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


def test_what_a_recovery_cut_off_the_log_does_not_come_back(tmp_path: Path) -> None:
    """Whole records behind a hole would be published as soon as new ones reach up to them."""
    path = tmp_path / "disk" / "store"
    abandoned(path, 9, 9, TINY)
    behind = [one for one in offsets(path) if one[0] % TINY.segment_bytes > 512][-4:]
    write_at(path, behind[0][0], bytes(behind[0][1]), TINY.segment_bytes)
    disk = CrashDisk(tmp_path / "disk")
    assert plan(survey(str(path), disk)).survey.tail.rest_end > behind[1][0]
    open_writer(str(path), disk, sync="os")
    for seed in range(3):
        tail = survey(str(disk.survivors(seed) / "store"), Disk()).tail
        assert (tail.end, tail.rest_end) == (behind[0][0], behind[0][0])
    disk.close()


def test_a_segment_that_is_written_again_is_on_disk_before_it_takes_the_old_ones_place(tmp_path: Path) -> None:
    disk = CrashDisk(tmp_path / "disk")
    path = str(tmp_path / "disk" / "store")
    store = open_writer(path, disk, TINY, sync="each")
    fill(store, 0, 3)
    disk.fail_next_sync("store/commitlog/*")
    with pytest.raises(SyncFailed):
        store.append([half(3)])
    store.close()
    promised = len(offsets(Path(path))) - 1
    image = disk.survivors(1)
    dry = CrashDisk(shutil.copytree(image, tmp_path / "dry"))
    open_writer(str(dry.root / "store"), dry, sync="each")
    renamed = [step for step, line in enumerate(dry.trace, 1) if "rename" in line and "segment-" in line]
    assert renamed
    for step in (renamed[0] + 1, renamed[0] + 2):
        cut = CrashDisk(shutil.copytree(image, tmp_path / f"cut-{step}"), crash_at=step)
        with pytest.raises(Crashed):
            open_writer(str(cut.root / "store"), cut, sync="each")
        for seed in (0, 1):
            found = cut.survivors(seed) / "store"
            reopened(found)
            assert len(offsets(found)) >= promised
            assert verify(found).ok


def test_slots_that_a_recovery_took_back_are_not_there_after_a_later_power_cut(tmp_path: Path) -> None:
    """The store was closed meanwhile: who opens it next believes the checkpoint, and looks at no file behind it."""
    path = tmp_path / "disk" / "store"
    end = abandoned(path, 3, 24, TINY)
    lost = offsets(path)[8][0]
    for begin in range(lost, end, 64):
        write_at(path, begin, bytes(min(64, end - begin, -begin % TINY.segment_bytes or 64)), TINY.segment_bytes)
    disk = CrashDisk(tmp_path / "disk")
    open_writer(str(path), disk, sync="os").close()
    for seed in range(3):
        image = disk.survivors(seed) / "store"
        reopened(image)
        report = verify(image)
        assert report.ok, [str(finding) for finding in report.findings][:4]
    disk.close()


def test_a_commit_without_its_op_message_is_known_to_the_recovery_after_one_that_was_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint behind it would let the next one begin there: RocketMQ would check the transaction again."""

    class CutOff(ReplayWatch):
        def finish(self) -> None:
            raise InterruptedError

    store = open_writer(str(tmp_path), Disk(), SMALL, sync="os", transactions=HALF_OP.name)
    properties = {"PGROUP": "shop", "UNIQ_KEY": "U1", "TRAN_MSG": "true"}
    one = HALF_OP.half("orders", b"x", properties, queue_id=0, born_timestamp_ms=1)
    (placed,) = store.append([one])
    commit, _ = HALF_OP.ends(one, placed.commitlog_offset, placed.queue_offset, TransactionType.COMMIT, 2)
    store.append([commit])
    left(store, tmp_path)
    monkeypatch.setattr(steps, "_CHECKPOINT_EVERY_BYTES", 1)
    with monkeypatch.context() as patch:
        patch.setattr(steps, "ReplayWatch", CutOff)
        with pytest.raises(InterruptedError):
            open_writer(str(tmp_path), Disk(), sync="os")
    store = open_writer(str(tmp_path), Disk(), sync="os")
    assert store.queue_end(OP_TOPIC, 0) == 1
    store.close()


def test_what_was_kept_aside_is_never_written_over(tmp_path: Path) -> None:
    """A recovery that is killed may have cleared a part of the log already: its next one keeps what is left."""
    end = abandoned(tmp_path, 3, 3)
    write_at(tmp_path, end, b"\x01" * 600)
    disk, paths = Disk(), Paths(str(tmp_path))
    tail = plan(survey(str(tmp_path), disk)).survey.tail
    (first,) = keep_aside(disk, paths, tail, SMALL.segment_bytes)
    write_at(tmp_path, end, bytes(300))
    (second,) = keep_aside(disk, paths, tail, SMALL.segment_bytes)
    assert Path(first).read_bytes() == b"\x01" * 600
    assert Path(second).read_bytes() == bytes(300) + b"\x01" * 300
