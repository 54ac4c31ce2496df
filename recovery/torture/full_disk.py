"""Lives of a store on a disk that fills up: what is refused is refused whole, and sends work again when there is space.

The disk is `broker.testing.crash_disk.CrashDisk` on the real one: it takes so many bytes and then raises ENOSPC, so
that neither a quota nor root is needed, and no other program on the disk notices.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import broker
from broker.errors import StoreFull
from broker.live import LiveStore, open_live
from broker.store.read.layout import StoreLayout
from broker.testing.crash_disk import CrashDisk
from recovery.torture.power_cuts import TINY, promises_kept
from recovery.torture.promises import require
from recovery.torture.second_reader import COMMIT, PREPARED, ROLLBACK, assert_one_truth
from recovery.verify.verifier import verify

_BEFORE, _DURING, _AFTER = 3, 30, 5  # transactions
_ROOMY = 1 << 50

Promised = set[tuple[int, int]]


def room_of_a_life(directory: Path, sync: str, engine: str) -> int:
    """How many bytes the transactions of a life take that never meets a full disk."""
    disk = CrashDisk(directory / "full-dry")
    with _open(disk, sync, engine, TINY) as store:
        _transactions(store, _BEFORE, set())
        disk.full_after(_ROOMY)
        _transactions(store, _DURING, set())
        taken = _ROOMY - disk.free_bytes(str(disk.root))
    shutil.rmtree(disk.root)
    return taken


def fill_at(directory: Path, sync: str, engine: str, room_bytes: int) -> bool:
    """A life on a disk that takes so many bytes more; whether it was refused something. Raises PromiseBroken."""
    disk, promised = CrashDisk(directory / f"full-{room_bytes}"), Promised()
    store = _open(disk, sync, engine, TINY)
    _transactions(store, _BEFORE, promised)
    disk.full_after(room_bytes)
    refused = not _fits(store, _DURING, promised)
    if refused:
        _fits(store, 1, promised)  # what is refused again has written nothing either
    disk.full_after(None)
    _transactions(store, _AFTER, promised)
    store.close()
    _require_kept(disk.root / "store", promised)
    shutil.rmtree(disk.root)
    return refused


def create_on_full_disk(directory: Path, sync: str, engine: str, layout: StoreLayout) -> None:
    """A new store of a layout on a disk without room for it is refused; the next try with room works.

    Raises PromiseBroken.
    """
    disk, promised = CrashDisk(directory / "full-new"), Promised()
    disk.full_after(layout.segment_bytes - 1)
    try:
        store = _open(disk, sync, engine, layout)
    except StoreFull:
        store = None
    refused = store is None or not _fits(store, 1, promised)
    require(refused, f"a disk with {layout.segment_bytes - 1} bytes took a CommitLog file of {layout.segment_bytes}")
    disk.full_after(None)
    store = store or _open(disk, sync, engine, layout)
    _transactions(store, _AFTER, promised)
    store.close()
    _require_kept(disk.root / "store", promised)
    shutil.rmtree(disk.root)


def _open(disk: CrashDisk, sync: str, engine: str, layout: StoreLayout) -> LiveStore:
    return open_live(disk.root / "store", disk=disk, layout=layout, sync=sync, transactions=engine)


def _fits(store: LiveStore, count: int, promised: Promised) -> bool:
    try:
        _transactions(store, count, promised)
    except StoreFull:
        return False
    return True


def _transactions(store: LiveStore, count: int, promised: Promised) -> None:
    """Commit, roll back and leave by turns; note what was acknowledged. Raises StoreFull."""
    for number in range(count):
        message = broker.Message("orders", b"x" * (40 + 60 * (number % 3)), keys=[f"k{number}"])
        half = store.transactions.prepare(message, "shop", queue_id=number % 2)
        promised.add((PREPARED, half.commitlog_offset))
        if number % 3 == 0:
            store.transactions.commit(half)
            promised.add((COMMIT, half.commitlog_offset))
        elif number % 3 == 1:
            store.transactions.rollback(half)
            promised.add((ROLLBACK, half.commitlog_offset))


def _require_kept(store: Path, promised: Promised) -> None:
    lost = sorted(promised - promises_kept(assert_one_truth(store)))
    require(not lost, f"acknowledged around a full disk, and gone: (kind, CommitLog offset) {lost[:3]}")
    report = verify(store)
    require(report.ok, f"after a full disk verification finds {[str(finding) for finding in report.findings][:4]}")
