"""What survives a power cut: the files and names of a disk, of each what is safe and what else may be found of it.

The model behind `broker.testing.crash_disk.CrashDisk`, whose docstring has its rules. It knows of bytes and names,
not of calls.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field
from typing import TypeAlias

from broker.store.disk.files import ReadFile

BLOCK = 512  # a drive never writes half of it
_CHUNK = 8 * BLOCK
_ZEROS = bytes(_CHUNK)


class Content:
    """The bytes of a file. A store's files are large and nearly empty: chunks of zeros take no room here."""

    def __init__(self, size: int = 0, chunks: dict[int, bytes] | None = None) -> None:
        self.size = size
        self._chunks = {} if chunks is None else chunks  # by number; each is whole, filled up with zeros

    @classmethod
    def of(cls, descriptor: int) -> Content:
        """What an open file holds."""
        size, chunks = os.fstat(descriptor).st_size, dict[int, bytes]()
        file = ReadFile(f"file descriptor {descriptor}", os.dup(descriptor))
        for start, stop in file.filled(0):
            for number in range(start // _CHUNK, -(-min(stop, size) // _CHUNK)):
                piece = file.pread(min(_CHUNK, size - number * _CHUNK), number * _CHUNK).ljust(_CHUNK, b"\0")
                if piece != _ZEROS:
                    chunks[number] = piece
        return cls(size, chunks)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Content) and (self.size, self._chunks) == (other.size, other._chunks)

    __hash__ = None  # type: ignore[assignment] # it changes

    def copy(self) -> Content:
        return Content(self.size, dict(self._chunks))

    def block(self, number: int) -> bytes:
        """One block; behind the end are zeros."""
        at = number * BLOCK % _CHUNK
        return self._chunks.get(number * BLOCK // _CHUNK, _ZEROS)[at : at + BLOCK]

    def changed(self, now: Content) -> list[int]:
        """The numbers of the blocks that differ."""
        per_chunk, found = _CHUNK // BLOCK, []
        for chunk in sorted(self._chunks.keys() | now._chunks.keys()):
            if self._chunks.get(chunk, _ZEROS) != now._chunks.get(chunk, _ZEROS):
                blocks = range(chunk * per_chunk, (chunk + 1) * per_chunk)
                found += [block for block in blocks if self.block(block) != now.block(block)]
        return found

    def place(self, number: int, state: bytes) -> None:
        """Store one block; a file that ends before it grows."""
        chunk, at = number * BLOCK // _CHUNK, number * BLOCK % _CHUNK
        old = self._chunks.get(chunk, _ZEROS)
        self._chunks[chunk] = old[:at] + state + old[at + BLOCK :]
        self.size = max(self.size, (number + 1) * BLOCK)

    def resize(self, size: int) -> None:
        """Cut it, or let it grow by zeros."""
        last, rest = divmod(size, _CHUNK)
        kept = {number: piece for number, piece in self._chunks.items() if number < last}
        if rest and last in self._chunks:
            kept[last] = self._chunks[last][:rest].ljust(_CHUNK, b"\0")
        self.size, self._chunks = size, kept

    def write(self, path: str) -> None:
        """Make a file of it."""
        with open(path, "wb", buffering=0) as file:
            for number, piece in self._chunks.items():
                os.pwrite(file.fileno(), piece[: self.size - number * _CHUNK], number * _CHUNK)
            file.truncate(self.size)


class File:
    """What was last seen of a file, what of it is safe, and what else may be found of it after a power cut."""

    def __init__(self, durable: Content | None = None) -> None:
        self.seen = durable or Content()
        self.durable = self.seen.copy()
        self.later: dict[int, list[bytes]] = {}  # of each block, what it held since it was last forced
        self.sizes: list[int] = []  # since the size was last forced
        self.lost: set[int] = set()  # blocks that the system takes for clean since an fsync of them failed
        self.descriptor = -1

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Close the file itself; what was seen of it stays."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def look(self, descriptor: int) -> None:
        """Note what changed."""
        now = Content.of(descriptor)
        if now == self.seen:
            return
        for block in self.seen.changed(now):
            self.later.setdefault(block, []).append(now.block(block))
            self.lost.discard(block)
        if now.size != self.seen.size:
            self.sizes.append(now.size)
        self.seen = now

    def force(self, start: int, stop: int, *, failed: bool) -> None:
        """Make every block of the range, and the size, safe; or have the system believe that they are."""
        blocks = [block for block in self.later if block * BLOCK < stop and (block + 1) * BLOCK > start]
        if failed:
            self.lost.update(blocks)
            return
        self.sizes.clear()
        for block in blocks:
            if block not in self.lost:
                self.durable.place(block, self.later.pop(block)[-1])
        self.durable.resize(self.seen.size)

    def survivor(self, chance: Chance) -> Content:
        """The file as a power cut may leave it."""
        size = chance.size(self.durable.size, self.sizes)
        left = self.durable.copy()
        for block, states in self.later.items():
            if chance.survives():
                left.place(block, chance.one_of(states))
        left.resize(size)
        return left


class DirectoryNode:
    """The names in a directory, and those that are safe."""

    def __init__(self) -> None:
        self.now: dict[str, Node] = {}
        self.durable: dict[str, Node] = {}

    def directories(self) -> list[DirectoryNode]:
        """This one and those in it, by the names that are safe."""
        inner = [node for node in self.durable.values() if isinstance(node, DirectoryNode)]
        return [self, *(directory for node in inner for directory in node.directories())]


Node: TypeAlias = File | DirectoryNode


@dataclass(eq=False)
class Operation:
    """Names that change together."""

    changes: list[tuple[DirectoryNode, str, Node | None]]
    keys: set[tuple[int, str]] = field(init=False)

    def __post_init__(self) -> None:
        self.keys = {(id(directory), name) for directory, name, _ in self.changes}


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
        """One that was flushed, one that came later, or one between: a large file grows in pieces."""
        if not later or not self.survives():
            return durable
        if self._all:
            return later[-1]
        between = self._random.randint(min(durable, *later), max(durable, *later))
        return self._random.choice([*later, between - between % BLOCK])


def loaded(path: str) -> DirectoryNode:
    """What is there when the disk is made: all of it safe."""
    directory = DirectoryNode()
    for item in os.scandir(path):
        directory.now[item.name] = loaded(item.path) if item.is_dir() else _loaded_file(item.path)
    directory.durable = dict(directory.now)
    return directory


def _loaded_file(path: str) -> File:
    with open(path, "rb") as file:
        return File(Content.of(file.fileno()))


def write_image(directory: DirectoryNode, path: str, entries: dict[int, dict[str, Node]], chance: Chance) -> None:
    for name, node in entries.get(id(directory), directory.durable).items():
        target = os.path.join(path, name)
        if isinstance(node, DirectoryNode):
            os.mkdir(target)
            write_image(node, target, entries, chance)
        else:
            node.survivor(chance).write(target)


def assign(names: dict[str, Node], name: str, node: Node | None) -> None:
    if node is None:
        names.pop(name, None)
    else:
        names[name] = node
