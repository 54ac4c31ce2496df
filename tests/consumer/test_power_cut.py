"""What a power cut may leave of the positions: each is one that the group had, or earlier; none is ahead."""

from __future__ import annotations

import contextlib
from pathlib import Path

import broker
from broker.consuming.group.offset_export import SCHEDULE_GROUP
from broker.consuming.group.positions import Positions, Start
from broker.format.topics import SCHEDULE_TOPIC
from broker.live import open_live
from broker.store.read.layout import StoreLayout
from broker.testing.crash_disk import CrashDisk, Crashed

TINY = StoreLayout(
    segment_bytes=1 << 14, consume_queue_bytes=2000, state_table_bytes=2400, redo_log_bytes=2000, index_slots=8,
    index_items=32,
)  # fmt: skip
ACKNOWLEDGED, EXPORTED = 4, 2


def test_nothing_is_skipped_after_a_power_cut(tmp_path: Path) -> None:
    """What was exported counts for good; what was acknowledged since may come again; the rest comes for certain."""
    disk = CrashDisk(tmp_path / "disk")
    with contextlib.suppress(Crashed), open_live(f"{disk.root}/store", disk=disk, layout=TINY, sync="each") as store:
        for number in range(6):
            store.append(broker.Message("orders", b"%d" % number))
        positions = Positions(store)
        cell = positions.cell("billing", "orders", 0)
        with positions.cells.lock:
            fence = positions.cells.give(cell, 1, 1)
        for position in range(1, ACKNOWLEDGED + 1):
            assert positions.cells.advance(cell, fence, position)
            if position == EXPORTED:
                positions.exchange.export(at_once=True)
        disk.crash()
        positions.close()
    starts = set()
    for seed in range(6):
        with open_live(f"{disk.survivors(seed)}/store") as store, store.consumer("billing", "orders") as consumer:
            found = []
            while (message := consumer.receive(0.2)) is not None:
                found.append(int(message.body))
                consumer.ack(message)
        assert found == list(range(found[0], 6))
        assert EXPORTED <= found[0] <= ACKNOWLEDGED
        starts.add(found[0])
    assert len(starts) > 1, "the cuts took nothing: this proves nothing"


def test_what_is_sent_after_a_power_cut_is_new_to_a_group_that_only_the_export_knows(tmp_path: Path) -> None:
    """In the mode `os` the log ends before what was consumed, and delivered after a delay; the cells are lost."""
    disk = CrashDisk(tmp_path / "disk")
    lost, delayed = range(1, 5), {"DELAY": "1"}
    with contextlib.suppress(Crashed), open_live(f"{disk.root}/store", disk=disk, layout=TINY, sync="os") as store:
        store.append(broker.Message("orders", b"0"))
        store.sync_now()
        for number in lost:
            store.append(broker.Message("orders", b"%d" % number))
            store.append(broker.Message("orders", b"later"), extra_properties=delayed)
        positions = Positions(store)
        positions.begin("billing", "orders", Start("last"))
        level = positions.levels()[0]
        with positions.cells.lock:
            positions.cells.put(level, len(lost))
        positions.exchange.export(at_once=True)
        disk.crash()
        positions.close()
    with open_live(f"{disk.survivors(0)}/store", sync="os") as store:
        assert store.queue_end("orders", 0) == 1
        for number in range(10, 15):
            store.append(broker.Message("orders", b"%d" % number))
            store.append(broker.Message("orders", b"later"), extra_properties=delayed)
        positions = Positions(store)
        assert positions.cells.position(positions.cell(SCHEDULE_GROUP, SCHEDULE_TOPIC, 0)) == 0
        positions.close()
        with store.consumer("billing", "orders") as consumer:
            message = consumer.receive(1.0)
            assert message is not None
            assert message.body == b"10"


def test_a_reset_survives_a_power_cut(tmp_path: Path) -> None:
    """Also where the system had written the position of before to the disk, and not the one that it was put to."""
    disk = CrashDisk(tmp_path / "disk")
    with contextlib.suppress(Crashed), open_live(f"{disk.root}/store", disk=disk, layout=TINY, sync="each") as store:
        for number in range(3):
            store.append(broker.Message("orders", b"%d" % number))
        positions = Positions(store)
        positions.begin("billing", "orders", Start("last"))
        positions.cells.flush()
        positions.reset("billing", "orders", Start("first"))
        disk.crash()
        positions.close()
    for seed in range(12):
        with open_live(f"{disk.survivors(seed)}/store") as store:
            positions = Positions(store)
            assert positions.cells.position(positions.cell("billing", "orders", 0)) == 0
            positions.close()
