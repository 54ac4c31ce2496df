"""A broker may open a store at any step of ours: it must find no queue file without a unit, and no short segment.

`ConsumeQueue.truncateDirtyLogicFiles` of 3.1.4 to 5.5.0 takes the first 20 bytes of the last file for a unit, and skips
a queue offset for good. `MappedFileQueue.load` refuses the store for a segment of another size.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import broker
from broker.live import open_live
from broker.testing.crash_disk import Crashed
from recovery.torture.power_cuts import TINY, Life, WatchedDisk, steps_of_a_life
from recovery.verify.verifier import verify


class LookingDisk(WatchedDisk):
    """Looks at the names and contents of all queue files before each step."""

    empty: tuple[Path, ...] = ()
    files = 0

    def _step(self, name: str, *about: str) -> None:
        found = [*self.root.glob("store/consumequeue/*/*/*"), *self.root.glob("store/transaction/redolog/*/*/*")]
        self.files = max(self.files, len(found))
        self.empty += tuple(path for path in found if not any(path.read_bytes()))
        super()._step(name, *about)


@pytest.mark.parametrize("engine", ["state-table", "half-op"])
def test_no_queue_file_is_seen_without_a_unit(tmp_path: Path, engine: str) -> None:
    disk = LookingDisk(tmp_path / "life")
    life = Life(disk, "group", engine)
    life.live(60)
    assert disk.empty == ()
    assert disk.files > 9
    assert list((life.path / "checkback" / "begun").iterdir()) == []


@pytest.mark.sample("half-op")
@pytest.mark.parametrize("engine", ["state-table", "half-op"])
def test_nor_after_a_power_cut_and_while_it_is_recovered(tmp_path: Path, engine: str) -> None:
    """A recovery goes back to a checkpoint, behind which a queue may end with a whole file."""
    steps, begun = steps_of_a_life(tmp_path, "os", engine)
    for step in range(begun + 3, steps, 9):
        disk = WatchedDisk(tmp_path / f"life-{step}", crash_at=step)
        with pytest.raises(Crashed):
            Life(disk, "os", engine).live()
        again = LookingDisk(disk.survivors(step))
        with open_live(again.root / "store", disk=again, sync="os") as store:
            assert again.empty == ()
            assert verify(again.root / "store").ok
            store.close()
        disk.close()
        again.close()


def test_a_segment_that_was_being_made_is_removed(tmp_path: Path) -> None:
    """The power failed when its name was on the disk, and a part of its size."""
    path = tmp_path / "store"
    open_live(path, layout=TINY, sync="os").close()
    with open_live(path, sync="os") as store:
        store.append(broker.Message("orders", b"one"))
    (path / "abort").touch()
    (path / "checkback" / "control").unlink()
    short = path / "commitlog" / f"{TINY.segment_bytes:020}"
    short.write_bytes(bytes(1536))
    with open_live(path, sync="os"):
        assert not short.exists()
        assert verify(path).ok


def test_a_short_segment_that_holds_something_stays(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with open_live(path, layout=TINY, sync="os") as store:
        store.append(broker.Message("orders", b"one"))
    (path / "abort").touch()
    (path / "checkback" / "control").unlink()
    short = path / "commitlog" / f"{TINY.segment_bytes:020}"
    short.write_bytes(bytes(1000) + b"x" + bytes(535))
    with open_live(path, sync="os"):
        kept = list((path / "checkback" / "torn").iterdir())
        assert [one.read_bytes().lstrip(b"\0")[:1] for one in kept] == [b"x"]


def test_a_file_of_another_size_is_not_replaced(tmp_path: Path) -> None:
    """One that is too large is not understood; one that is too short was begun by an older version, and grows."""
    path = tmp_path / "store"
    with open_live(path, layout=TINY, sync="os") as store:
        queue = path / "consumequeue" / "orders" / "0"
        queue.mkdir(parents=True)
        file = queue / f"{0:020}"
        file.write_bytes(b"x" * 1000)
        with pytest.raises(broker.StoreError, match="1000 bytes"):
            store.append(broker.Message("orders", b"one"), queue_id=0)
        assert file.read_bytes() == b"x" * 1000
        file.write_bytes(bytes(100))
        store.append(broker.Message("orders", b"two"), queue_id=0)
        assert file.stat().st_size == TINY.consume_queue_bytes
        message = store.message("orders", 0, 0)
    assert message is not None
    assert message.body == b"two"
    assert verify(path).ok
