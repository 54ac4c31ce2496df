"""What survives a power cut: the files and names of a disk, of each what is safe and what else may be found of it.

The model behind `broker.testing.CrashDisk`, whose docstring tells its rules. It knows of bytes and names, not of calls.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

BLOCK = 512  # a drive never writes half of it
_CHUNK = 128 * BLOCK


class File:
    """What was last seen of a file, what of it is safe, and what else may be found of it after a power cut."""

    def __init__(self, durable: bytes = b"") -> None:
        self.seen = durable
        self.durable = bytearray(durable)
        self.later: dict[int, list[bytes]] = {}  # of each block, what it held since it was last forced
        self.sizes: list[int] = []  # since the size was last forced
        self.lost: set[int] = set()  # blocks that the system takes for clean since a forced write of them failed
        self.descriptor = -1

    def __del__(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)

    def look(self, descriptor: int) -> None:
        """Note what changed."""
        now = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
        if now == self.seen:
            return
        for block in _changed(self.seen, now):
            self.later.setdefault(block, []).append(_block(now, block))
            self.lost.discard(block)
        if len(now) != len(self.seen):
            self.sizes.append(len(now))
        self.seen = now

    def force(self, start: int, stop: int, *, failed: bool) -> None:
        """Make every block of the range, and the size, safe; or have the system believe that they are."""
        blocks = [block for block in self.later if block * BLOCK < stop and (block + 1) * BLOCK > start]
        if failed:
            self.lost.update(blocks)
            return
        self.sizes.clear()
        _resize(self.durable, len(self.seen))
        for block in blocks:
            if block not in self.lost:
                _place(self.durable, block, self.later.pop(block)[-1])
        _resize(self.durable, len(self.seen))

    def survivor(self, chance: Chance) -> bytes:
        """The file as a power cut may leave it."""
        size = chance.size(len(self.durable), self.sizes)
        data = bytearray(self.durable)
        for block, states in self.later.items():
            if chance.survives():
                _place(data, block, chance.one_of(states))
        _resize(data, size)
        return bytes(data)


class Folder:
    """The names in a folder, and those that are safe."""

    def __init__(self) -> None:
        self.now: dict[str, Node] = {}
        self.durable: dict[str, Node] = {}

    def folders(self) -> list[Folder]:
        """This one and those in it, by the names that are safe."""
        inner = [node for node in self.durable.values() if isinstance(node, Folder)]
        return [self, *(folder for node in inner for folder in node.folders())]


Node: TypeAlias = File | Folder


@dataclass(eq=False)
class Operation:
    """Names that change together."""

    changes: list[tuple[Folder, str, Node | None]]
    keys: set[tuple[int, str]] = field(init=False)

    def __post_init__(self) -> None:
        self.keys = {(id(folder), name) for folder, name, _ in self.changes}


class Chance:
    """What survives, by seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._all = seed == 1
        # Not always a half: nearly all and nearly nothing find other faults.
        self._odds = {0: 0.0, 1: 1.0}.get(seed, self._random.choice([0.1, 0.5, 0.9]))

    def survives(self) -> bool:
        return self._random.random() < self._odds

    def one_of(self, states: list[bytes]) -> bytes:
        return states[-1] if self._all else self._random.choice(states)

    def size(self, durable: int, later: list[int]) -> int:
        """One that was forced, one that came later, or one between: a large file grows in pieces."""
        if not later or not self.survives():
            return durable
        if self._all:
            return later[-1]
        between = self._random.randint(min(durable, *later), max(durable, *later))
        return self._random.choice([*later, between - between % BLOCK])


def loaded(path: str) -> Folder:
    """What is there when the disk is made: all of it safe."""
    folder = Folder()
    for item in os.scandir(path):
        folder.now[item.name] = loaded(item.path) if item.is_dir() else File(Path(item.path).read_bytes())
    folder.durable = dict(folder.now)
    return folder


def write_image(folder: Folder, path: str, entries: dict[int, dict[str, Node]], chance: Chance) -> None:
    for name, node in entries.get(id(folder), folder.durable).items():
        target = os.path.join(path, name)
        if isinstance(node, Folder):
            os.mkdir(target)
            write_image(node, target, entries, chance)
        else:
            Path(target).write_bytes(node.survivor(chance))


def assign(names: dict[str, Node], name: str, node: Node | None) -> None:
    if node is None:
        names.pop(name, None)
    else:
        names[name] = node


def _changed(before: bytes, now: bytes) -> list[int]:
    """The numbers of the blocks that differ; what lies behind an end counts as zeros."""
    found = []
    for start in range(0, max(len(before), len(now)), _CHUNK):
        if _piece(before, start, _CHUNK) != _piece(now, start, _CHUNK):
            blocks = range(start // BLOCK, (start + _CHUNK) // BLOCK)
            found += [block for block in blocks if _block(before, block) != _block(now, block)]
    return found


def _block(data: bytes, block: int) -> bytes:
    return _piece(data, block * BLOCK, BLOCK)


def _piece(data: bytes, start: int, size: int) -> bytes:
    return data[start : start + size].ljust(size, b"\0")


def _place(data: bytearray, block: int, state: bytes) -> None:
    if len(data) < (block + 1) * BLOCK:
        _resize(data, (block + 1) * BLOCK)
    data[block * BLOCK : (block + 1) * BLOCK] = state


def _resize(data: bytearray, size: int) -> None:
    del data[size:]
    data.extend(bytes(size - len(data)))
