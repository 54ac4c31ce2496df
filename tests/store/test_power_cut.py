"""A power cut at every step: what was acknowledged is there afterwards, and nothing half-written is.

`CrashDisk` stands in for the disk. Any subset of the blocks that were not forced survives, torn at 512 bytes.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import broker
from broker.format.sysflag import TransactionType
from broker.store.read.layout import StoreLayout
from broker.store.write.pending_record import end_draft
from broker.store.write.sync import Syncer
from broker.store.writer import open_writer
from broker.testing.crash_disk import CrashDisk, Crashed
from recovery.verify.verifier import verify
from tests.store.filled import half

TINY = StoreLayout(4096, 400, 240, 200, 16, 24)
KINDS = (TransactionType.COMMIT, TransactionType.ROLLBACK, None)


def live(disk: CrashDisk, path: str, acknowledged: dict[str, int], count: int = 8) -> None:
    """A short life of a store; notes what was acknowledged: by unique key, the last type that was."""
    store = open_writer(path, disk, TINY, sync="each")
    for number in range(count):
        one = half(number)
        (placed,) = store.append([one])
        acknowledged[f"U{number}"] = int(TransactionType.PREPARED)
        kind = KINDS[number % 3]
        if kind is not None:
            store.append([end_draft(one, placed.commitlog_offset, placed.queue_offset, kind)])
            acknowledged[f"U{number}"] = int(kind)
        if number % 3 == 1:  # what a thread does in the background
            store.checkpoint()
            store.upkeep.make_segment_ahead()
            store.upkeep.persist_bound()
    store.close()


def judge(path: Path, acknowledged: dict[str, int]) -> None:
    """Open what survived, and compare it with what was promised."""
    again = CrashDisk(path)
    store = open_writer(str(path / "store"), again, TINY, sync="os")
    report = verify(path / "store")
    assert report.ok, [str(finding) for finding in report.findings][:4]
    store.append([half(99)])
    store.close()
    seen: dict[str, int] = {}
    with broker.open(path / "store", read_only=True) as reader:
        for record in reader.records():
            seen[record.property_map["UNIQ_KEY"]] = int(record.transaction_type)
    for key, kind in acknowledged.items():
        assert seen.get(key) == kind or (kind == TransactionType.PREPARED and key in seen), key


def steps_of_a_life(tmp_path: Path) -> int:
    disk = CrashDisk(tmp_path / "dry")
    live(disk, str(tmp_path / "dry" / "store"), {})
    return disk.steps


@pytest.mark.sample("0")
@pytest.mark.parametrize("part", range(8))
def test_a_power_cut_at_every_step(tmp_path: Path, part: int) -> None:
    """An eighth of the steps each, with no un-synced block surviving, with all, and with some."""
    steps = steps_of_a_life(tmp_path)
    assert steps > 100
    for step in range(1 + part, steps + 1, 8):
        disk = CrashDisk(tmp_path / f"life-{step}", crash_at=step)
        acknowledged: dict[str, int] = {}
        with pytest.raises(Crashed):
            live(disk, str(disk.root / "store"), acknowledged)
        for seed in (0, 1, 2 + step):
            judge(disk.survivors(seed), acknowledged)


def test_without_forced_writes_it_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same lives, with the one forced write of an append left out: promises are broken, and the judge sees it."""
    monkeypatch.setattr(Syncer, "wait_durable", lambda self, commitlog_offset: None)
    steps, broken = steps_of_a_life(tmp_path), 0
    for step in range(steps // 2, steps, 6):
        disk = CrashDisk(tmp_path / f"life-{step}", crash_at=step)
        acknowledged: dict[str, int] = {}
        with pytest.raises(Crashed):
            live(disk, str(disk.root / "store"), acknowledged)
        try:
            judge(disk.survivors(0), acknowledged)
        except (AssertionError, broker.CorruptRecord):
            broken += 1
    assert broken
