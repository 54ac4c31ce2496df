"""Stores of ours as a machine leaves them that stops, and damage at a place of their log."""

from __future__ import annotations

from pathlib import Path

from broker.store.disk.files import Disk
from broker.store.read.layout import StoreLayout
from broker.store.shared.control import Word
from broker.store.writer import StoreWriter, open_writer
from tests.store.filled import SMALL, fill


def abandoned(path: Path, closed: int, then: int, layout: StoreLayout = SMALL) -> int:
    """A store that was closed after some transactions and went on; the machine stopped. Returns the log's end."""
    store = open_writer(str(path), Disk(), layout, sync="os")
    fill(store, 0, closed)
    store.close()
    store = open_writer(str(path), Disk(), sync="os")
    fill(store, closed, then)
    end = store.control[Word.TAIL]
    left(store, path)
    return end


def left(store: StoreWriter, path: Path) -> None:
    """Let go of a store without closing it, as when the machine stops; the control page is of a boot that is over."""
    store.upkeep.close()
    store.lock.release()
    (path / "checkback" / "control").unlink()
    (path / "checkback" / "durable").unlink(missing_ok=True)


def write_at(path: Path, commitlog_offset: int, data: bytes, segment_bytes: int = SMALL.segment_bytes) -> None:
    base = commitlog_offset - commitlog_offset % segment_bytes
    with open(path / "commitlog" / f"{base:020}", "r+b") as file:
        file.seek(commitlog_offset - base)
        file.write(data)


def offsets(path: Path) -> list[tuple[int, int]]:
    """Where each record begins, and its size: by the reader, which knows nothing of recovery."""
    import broker

    with broker.open(path, read_only=True) as store:
        return [(one.commitlog_offset, one.total_size) for one in store.records()]
