"""A bit that is flipped in a store while processes write to it and are killed: it is found, and nothing else is."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from broker.format.commitlog import decode
from broker.format.statetable import STATE_AT, Slot
from broker.store.disk.files import Disk
from broker.store.recover.watermark import read_watermark
from recovery.rebuild.rebuilder import rebuild
from recovery.scan.scanner import Scan
from recovery.scan.store_files import StoreFiles
from recovery.verify.verifier import verify
from tests.verify.beside_writers import LAYOUTS, writers


def assert_a_flipped_bit_is_found(store: Path, layout: str, kills: int) -> None:
    """In a record, a slot, a queue and the index, each while processes write and are killed; undone, all is well."""
    with writers(store, layout, kills, 3, "state-table"):
        _wait_for_records(store)
        for kind, place in _bits(store, layout).items():
            path, at, bit = place()
            _flip(path, at, bit)
            report = verify(store)
            assert kind in report.findings.counts, (kind, dict(report.findings.counts))
            if kind != "crc-mismatch":
                assert not rebuild(store).ok, kind
            _flip(path, at, bit)
        assert [str(finding) for finding in verify(store).findings] == []


def _wait_for_records(store: Path, at_least: int = 400_000) -> None:
    deadline = time.monotonic() + 60
    while True:
        mark = read_watermark(os.fspath(store), Disk())
        if mark is not None and mark.dispatched > at_least:
            return
        assert time.monotonic() < deadline, "nothing was written"
        time.sleep(0.05)


Place = tuple[Path, int, int]


def _bits(store: Path, layout: str) -> dict[str, Callable[[], Place]]:
    """A bit for each kind of finding that its change must lead to."""
    return {
        "crc-mismatch": lambda: _bit_of_body(store),
        "slot-wrong-state": lambda: _bit_of_state(store),
        "queue-missing": lambda: (_first(store / "consumequeue" / "Orders" / "0"), 20 * 3 + 7, 1),
        "index-orphan": lambda: _bit_of_item(store, layout),
    }


def _bit_of_body(store: Path) -> Place:
    segment = _first(store / "commitlog")
    for records in Scan(StoreFiles.open(store, read_watermark(os.fspath(store), Disk())).compared):
        at = int(records.offsets[20])
        with segment.open("rb") as file:
            record = decode(os.pread(file.fileno(), int(records.sizes[20]), at), commitlog_offset=at)
        assert record.body
        return segment, at + 88, 4  # behind the length of the body, of a record of IPv4
    raise AssertionError("no records")


def _bit_of_state(store: Path) -> Place:
    """Of a transaction that nobody will end: what is in doubt behind the last end of its process stays so."""
    path = _first(store / "transaction" / "statetable")
    raw = path.read_bytes()
    for at in range(0, len(raw), Slot.SIZE):
        slot = Slot.unpack_from(raw, at)
        if slot.state == 4:
            return path, at + STATE_AT + 3, 4 ^ 8  # prepared becomes committed
    raise AssertionError("nothing is in doubt")


def _bit_of_item(store: Path, layout: str) -> Place:
    return _first(store / "index"), 40 + 4 * LAYOUTS[layout].index_slots + 20 * 2, 1  # the hash of item 2


def _first(directory: Path) -> Path:
    return min(path for path in directory.iterdir() if path.is_file())


def _flip(path: Path, at: int, bits: int) -> None:
    with path.open("r+b") as file:
        (old,) = os.pread(file.fileno(), 1, at)
        os.pwrite(file.fileno(), bytes([old ^ bits]), at)
