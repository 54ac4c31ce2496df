"""Two halves that claim one slot: each in doubt gets one of its own and can be settled, wherever it was killed."""

from __future__ import annotations

import shutil
from pathlib import Path
from unittest import mock

import pytest
from click.testing import CliRunner

import broker
from broker.errors import StoreError
from broker.store.disk.files import Disk
from broker.store.read.layout import StoreLayout
from broker.store.write.appender import Appender
from broker.testing.crash_disk import CrashDisk, Crashed
from recovery.cli.app import app
from recovery.rebuild.rebuilder import rebuild
from recovery.repair import crash
from recovery.repair.slot_conflicts import Moved, move
from recovery.transactions.in_doubt import Pending
from recovery.verify.verifier import verify
from tests.rebuild.derived_files import prepared
from tests.store.build import Log

NOW_MS = 1_800_000_000_000
SMALL = StoreLayout(1 << 16, 400, 240, 200, 16, 24)
CLAIMED = (0, 1, 2, 1, 2, 5)  # the slot that each half states: 1 and 2 were given twice
ENDED = {4: 12}  # the later owner of slot 2 was rolled back


def foreign_store(path: Path, claimed: tuple[int, ...] = CLAIMED) -> list[int]:
    """A store whose table RocketMQ 3.x once numbered anew; the offset of each half."""
    log, places = Log(segment_size=1 << 16), []
    for number, slot in enumerate(claimed):
        places.append(len(log.data))
        log.data += prepared(number, slot, len(log.data))
    for number, kind in ENDED.items():
        log.data += prepared(number, claimed[number], len(log.data), kind=kind, half=places[number])
    path.mkdir(parents=True, exist_ok=True)
    log.write(path)
    return places


def moved(path: Path, disk: Disk | None = None) -> list[Moved]:
    return move(path, broker_is_stopped=True, disk=disk, still_s=0, by="ada")


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store without derived files would get those of RocketMQ's sizes: an index of 420 MB."""
    for module in ("recovery.repair.taking_over", "recovery.rebuild.rebuilder"):
        monkeypatch.setattr(f"{module}.sizes_of", lambda *_: SMALL)


def keys_in_doubt(path: Path) -> list[str]:
    return sorted(key for half in Pending(path, NOW_MS) for key in half.keys)


def all_can_be_settled(path: Path) -> None:
    """Nothing was lost or doubled by the move; each one takes its end, and stays ended."""
    assert keys_in_doubt(path) == ["k0", "k1", "k2", "k3", "k5"]
    assert rebuild(path).refusal == ""
    assert rebuild(path).differences == ()
    with broker.open(path) as store:
        halves = list(store.transactions.in_doubt())
        assert sorted(key for half in halves for key in half.keys) == ["k0", "k1", "k2", "k3", "k5"]
        for half in halves:
            store.transactions.commit(half)
    assert rebuild(path, apply=True).applied
    report = verify(path)
    assert {finding.kind for finding in report.findings} == {"table-compacted"}  # which it was, and stays
    assert (report.transactions["committed"], report.transactions["in_doubt"]) == (5, 0)


def test_each_in_doubt_gets_a_slot_of_its_own(tmp_path: Path) -> None:
    places = foreign_store(tmp_path / "store")
    done = moved(tmp_path / "store")
    assert [(one.old_offset, one.old_slot, one.slot) for one in done] == [
        (places[1], 1, 6), (places[3], 1, 7), (places[2], 2, 8),
    ]  # fmt: skip
    assert moved(tmp_path / "store") == []
    with broker.open(tmp_path / "store", read_only=True) as store:
        for one in done:
            old, new = store.record(one.old_offset), store.record(one.commitlog_offset)
            assert old is not None
            assert new is not None
            assert (new.topic, new.body, new.born_timestamp_ms) == (old.topic, old.body, old.born_timestamp_ms)
            assert new.property_map.items() >= old.property_map.items()
            assert new.property_map["CHECKBACK_MOVED_FROM"] == str(one.old_offset)
        ends = [record for record in store.records() if record.transaction_type == 12][1:]
        assert [record.prepared_transaction_offset for record in ends] == [one.old_offset for one in done]
        assert {record.property_map["CHECKBACK_BY"] for record in ends} == {"ada"}
    all_can_be_settled(tmp_path / "store")


def test_of_three_in_one_slot_each_is_moved_once(tmp_path: Path) -> None:
    """A broker of 3.1.4 that was killed twice numbered its table again twice."""
    places = foreign_store(tmp_path / "store", (0, 1, 1, 1, 2, 5))
    assert [one.old_offset for one in moved(tmp_path / "store")] == places[1:4]
    assert not verify(tmp_path / "store").findings.counts["double-end"]
    all_can_be_settled(tmp_path / "store")


def test_the_old_place_takes_no_end_any_more(tmp_path: Path) -> None:
    """A producer that still knows the old offset is refused: the message is delivered once at most."""
    foreign_store(tmp_path / "store")
    old = [one.old_offset for one in moved(tmp_path / "store")]
    with broker.open(tmp_path / "store") as store:
        for commitlog_offset in old:
            with pytest.raises((broker.TransactionError, broker.AlreadyEnded)):
                store.transactions.commit(store.transactions.half(commitlog_offset))


def test_the_command_says_so_and_does_it(tmp_path: Path) -> None:
    path = tmp_path / "store"
    foreign_store(path)
    refused = CliRunner().invoke(app, ["rebuild", str(path)])
    assert refused.exit_code == 1
    assert "with --apply --move" in refused.output
    with pytest.raises(StoreError, match="--apply --move"):
        rebuild(path, apply=True, broker_is_stopped=True, still_s=0)
    made = crash.plan(crash.survey(path))
    with pytest.raises(StoreError, match="--apply --move"):
        crash.apply(made, broker_is_stopped=True, still_s=0)
    assert CliRunner().invoke(app, ["rebuild", str(path), "--move"]).exit_code == 2
    with mock.patch("recovery.repair.crash.check_still"):  # which would look for three seconds whether anything moves
        ran = CliRunner().invoke(app, ["rebuild", str(path), "--apply", "--move", "--broker-is-stopped"])
    assert ran.exit_code == 0, ran.output
    assert "(slot 1) was prepared again at" in ran.output
    assert "nothing was replaced" in ran.output, "its own load made the derived files again"
    all_can_be_settled(path)


def test_killed_between_the_copy_and_the_end_it_makes_no_second_copy(tmp_path: Path) -> None:
    foreign_store(tmp_path / "store")

    class Killed(BaseException):
        pass

    real = Appender.append_locked
    calls: list[int] = []

    def dies(self: Appender, drafts: object) -> object:
        calls.append(1)
        if len(calls) == 4:
            raise Killed
        return real(self, drafts)  # type: ignore[arg-type]

    with mock.patch.object(Appender, "append_locked", dies), pytest.raises(Killed):
        moved(tmp_path / "store")
    assert len(moved(tmp_path / "store")) == 2  # the first was done
    all_can_be_settled(tmp_path / "store")


@pytest.mark.sample("0")
@pytest.mark.parametrize("part", range(2))
def test_a_power_cut_at_any_step_of_it(tmp_path: Path, part: int) -> None:
    """Also in the middle of taking the store over."""
    foreign_store(tmp_path / "dry" / "store")
    dry = CrashDisk(tmp_path / "dry")
    moved(tmp_path / "dry" / "store", dry)
    assert dry.steps > 60
    for step in range(1 + 11 * part, dry.steps + 1, 22):
        root = tmp_path / f"life-{step}"
        foreign_store(root / "store")
        disk = CrashDisk(root, crash_at=step)
        with pytest.raises(Crashed):
            moved(root / "store", disk)
        for seed in (0, 1, step):
            image = disk.survivors(seed)
            moved(image / "store")
            all_can_be_settled(image / "store")
            shutil.rmtree(image)
