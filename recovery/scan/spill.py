"""Rows by partition, in memory while they are few and in temporary files when they are many.

A verification must join records that lie far apart (a half message and its end, an op message and its half) in bounded
memory, whatever the size of the store. Rows are dealt to partitions by what they are joined on, and each partition is
then joined alone.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from broker.store.disk.os_errors import temporary_not_written
from recovery.interrupts import temporary_directory

Rows = npt.NDArray[Any]

PARTITION_BYTES = 64 << 20  # of CommitLog: some 400,000 of the smallest records, 40 MB of rows
_PARTITIONS_MAX = 1024  # a flush writes to each: of a larger log, each partition is split again when it is read
_HELD_BYTES = 32 << 20
_PART_BYTES = 48 << 20  # of rows that are joined at once
_DEPTH_MAX = 4  # all rows with one key cannot be split

Keys = Callable[[Rows], npt.NDArray[Any]]  # a number of zero or more for each row: rows with the same stay together


def pick(rows: Rows, which: Any) -> Rows:
    """rows[which], ten times as fast: NumPy copies a structure field by field, and plain bytes at once."""
    picked: Rows = rows.view(f"V{rows.dtype.itemsize}")[which].view(rows.dtype)
    return picked


def joined(parts: list[Rows], dtype: np.dtype[Any]) -> Rows:
    """The parts one after another, copied as plain bytes."""
    plain = f"V{dtype.itemsize}"
    return np.concatenate([np.zeros(0, plain), *(part.view(plain) for part in parts)]).view(dtype)


def partitions_for(commitlog_bytes: int) -> int:
    """How many partitions a CommitLog of this size needs."""
    return min(max(1, -(-commitlog_bytes // PARTITION_BYTES)), _PARTITIONS_MAX)


class Spill:
    """Rows of one NumPy dtype, dealt to `count` partitions."""

    def __init__(self, dtype: Any, count: int) -> None:
        self.dtype = np.dtype(dtype)
        self.count = count
        self._held: dict[int, list[Rows]] = {}
        self._held_bytes = 0
        self._directory: tempfile.TemporaryDirectory[str] | None = None

    def add(self, rows: Rows, partition: npt.NDArray[np.int64]) -> None:
        """Deal rows to their partitions; within one, rows keep the order in which they were added. Raises StoreFull."""
        if not len(rows):
            return
        if self.count == 1 or bool((partition == partition[0]).all()):
            self._hold(int(partition[0]) if self.count > 1 else 0, rows)
        else:
            order = np.argsort(partition, kind="stable")
            cuts = np.searchsorted(partition[order], np.arange(self.count + 1))
            for number in np.unique(partition):
                self._hold(int(number), pick(rows, order[cuts[number] : cuts[number + 1]]))
        if self._held_bytes > _HELD_BYTES and self.count > 1:
            self._write()

    def _hold(self, partition: int, rows: Rows) -> None:
        self._held.setdefault(partition, []).append(rows)
        self._held_bytes += rows.nbytes

    def _write(self) -> None:
        if self._directory is None:
            self._directory = temporary_directory("checkback-")
        try:
            for partition, parts in self._held.items():
                with open(self._file(partition), "ab") as file:
                    file.writelines(np.ascontiguousarray(rows).data for rows in parts)
        except OSError as error:
            refusal = temporary_not_written(error, self._directory.name)
            self.close()
            raise refusal from error
        self._held.clear()
        self._held_bytes = 0

    def _file(self, partition: int) -> Path:
        assert self._directory is not None
        return Path(self._directory.name) / str(partition)

    def take(self, partition: int) -> Rows:
        """The rows of a partition, in the order in which they were added; they are forgotten here."""
        parts = self._held.pop(partition, [])
        self._held_bytes -= sum(rows.nbytes for rows in parts)
        if self._directory is not None and self._file(partition).exists():
            parts.insert(0, np.fromfile(self._file(partition), self.dtype))
            self._file(partition).unlink()
        return joined(parts, self.dtype)

    def parts(self, keys: Keys, depth: int = 0) -> Iterator[Rows]:
        """The rows of every partition that has any; a partition that is too large is split by what is left of the key.

        Rows must have been added to the partition `keys(rows) % count`.
        """
        for partition in range(self.count):
            size = self._size(partition)
            if size > _PART_BYTES and depth < _DEPTH_MAX:
                rest = _rest_of(keys, self.count)
                finer = Spill(self.dtype, 2 * size // _PART_BYTES + 2)
                for rows in self._pieces(partition):
                    finer.add(rows, rest(rows) % finer.count)
                yield from finer.parts(rest, depth + 1)
                finer.close()
            elif size:
                yield self.take(partition)

    def _size(self, partition: int) -> int:
        held = sum(rows.nbytes for rows in self._held.get(partition, []))
        on_disk = self._directory is not None and self._file(partition).exists()
        return held + (self._file(partition).stat().st_size if on_disk else 0)

    def _pieces(self, partition: int) -> Iterator[Rows]:
        """The rows of a partition without ever having all of them in memory; they are forgotten here."""
        if self._directory is not None and self._file(partition).exists():
            count = max(_HELD_BYTES // 4 // self.dtype.itemsize, 1024)
            with open(self._file(partition), "rb") as file:
                while len(rows := np.fromfile(file, self.dtype, count)):
                    yield rows
            self._file(partition).unlink()
        held = self._held.pop(partition, [])
        self._held_bytes -= sum(rows.nbytes for rows in held)
        yield from held

    def close(self) -> None:
        """Remove the temporary files."""
        self._held.clear()
        if self._directory is not None:
            self._directory.cleanup()
            self._directory = None


def _rest_of(keys: Keys, count: int) -> Keys:
    return lambda rows: keys(rows) // count
