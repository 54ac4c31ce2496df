"""Calls the scan's functions of the C module with hostile bytes and arguments: it may refuse them, it may not crash.

    python tests/scan/hostile_arrays.py MODULE CALLS SEED

Arrays are made of lists, and so have exactly as many bytes as they hold: the sanitizers see each byte beyond.
"""

from __future__ import annotations

import random
import struct
import sys
from array import array
from collections.abc import Iterable
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_loader
from typing import Any

REFUSED = (ValueError, TypeError, OverflowError, BufferError)
EDGES = (0, 1, 2, 7, 8, 19, 20, 90, 91, 92, 127, 128, 255, 1 << 15, (1 << 31) - 1, 1 << 31, (1 << 63) - 1)
SIGNATURES = {  # y: bytes, q: int64, i: int32, Q: uint64, each to read; capitals behind a w: to write; n: a number
    "scan_window": "y n n n wq n wy n n names Q",
    "string_codes": "y q q wi",
    "java_hashes": "y q q i wi wy",
    "index_items": "y n q q y i i q q q q q q wq wq",
    "digest_sums": "y q q",
    "index_chains": "y n wi wy",
}
COLUMN_COUNT = 25


def exact(code: str, values: Iterable[int]) -> array[int]:
    """An array without room to grow; of raw bytes it would have some."""
    return array(code, list(values))


def number(rng: random.Random) -> int:
    """Near an edge of some width, or any."""
    return rng.choice((1, -1)) * rng.choice((rng.choice(EDGES), rng.randrange(200))) + rng.choice((-1, 0, 0, 1))


def raw(rng: random.Random, size: int) -> bytes:
    """Any bytes, with many of those that separate something."""
    return bytes(rng.choice((0, 1, 2, 2, 32, 65, 200, rng.randrange(256))) for _ in range(size))


def record(rng: random.Random, offset: int) -> bytes:
    """A record, mostly with one lie in it."""
    wide, six = rng.random() < 0.3, rng.choice((0, 0, 0x10, 0x20, 0x30))
    body, topic = raw(rng, rng.randrange(80)), raw(rng, rng.randrange(20))
    properties = raw(rng, rng.randrange(90)) + rng.choice((b"", b"KEYS\x01a b\x02", b"__CRC32#\x010123456789\x02"))
    born, store = bytes(16 if six & 0x10 else 4), bytes(16 if six & 0x20 else 4)
    tail = struct.pack(">h" if wide else ">b", len(topic)) + topic + struct.pack(">h", len(properties)) + properties
    middle = struct.pack(">iqi", 0, 0, len(body))
    size = 48 + len(born) + 12 + len(store) + 4 + len(middle) + len(body) + len(tail)
    magic = 0xDAA320AB if wide else 0xDAA320A7
    head = struct.pack(">iIiiiqqiq", size, magic, 0, 0, 0, 0, offset, six | rng.choice((0, 4, 8, 12)), 0)
    made = bytearray(head + born + bytes(12) + store + bytes(4) + middle + body + tail)
    if rng.random() < 0.7:
        place = rng.choice((rng.randrange(4), 7, 36, 39, rng.randrange(84, 112), rng.randrange(len(made))))
        made[min(place, len(made) - 1)] = rng.choice((0, 1, 0x10, 0x30, 0x7F, 0x80, 0xFF))
    return bytes(made)


def window(rng: random.Random, base: int) -> array[int]:
    """Some records, cut anywhere."""
    made = b""
    for _ in range(rng.randrange(6)):
        made += record(rng, base + len(made))
    return exact("B", made[: rng.randrange(len(made) + 1)] if rng.random() < 0.4 else made)


def hostile(rng: random.Random, kind: str, count: int, *, fits: bool) -> Any:
    """An argument of a kind; where it fits, of so many values that lie in the data."""
    if kind == "n":
        return rng.choice((3, 5, 54)) if fits else number(rng)
    if kind == "names":
        return tuple(raw(rng, rng.randrange(70)) for _ in range(rng.choice((0, 1, 16, 17))))
    if not fits and rng.random() < 0.05:
        return rng.choice(
            (None, 5, "text", b"", bytearray(7), memoryview(bytes(64))[::2], memoryview(bytearray(33))[1:])
        )
    count = count if fits or rng.random() < 0.9 else rng.randrange(40)
    code = {"y": "B", "q": "q", "i": "i", "Q": "Q"}[kind[-1]]
    if kind == "y":
        return exact("B", raw(rng, 24 if fits else count))
    if kind == "q":
        lies = 0.01 if fits else 0.05
        return array("q", [number(rng) % (1 << 63) if rng.random() < lies else rng.randrange(13) for _ in range(count)])
    return exact(code, [0] * count)


def scan_call(rng: random.Random) -> list[Any]:
    """A scan that is plausible."""
    base = rng.choice((0, 0, 1 << 40, (1 << 63) - 4000))
    bytes_of, names = window(rng, base), (b"KEYS", b"K", raw(rng, 3))[: rng.randrange(4)]
    width = COLUMN_COUNT + 2 * len(names)
    columns = exact("q", [0] * (width * rng.randrange(5)))
    texts, odd = exact("B", bytes(rng.choice((0, 10, 100, 600)))), rng.choice((b"", exact("Q", range(64))))
    return [bytes_of, 0, len(bytes_of), base, columns, 0, texts, 0, rng.randrange(8), names, odd]


def arguments(rng: random.Random, name: str) -> list[Any]:
    """Those of one call: half of them fit together, and the others nearly."""
    if name == "scan_window" and rng.random() < 0.7:
        made = scan_call(rng)
        if rng.random() < 0.3:
            made[rng.choice((1, 2, 3, 5, 7, 8))] = number(rng)
        return made
    count, fits = rng.randrange(12), rng.random() < 0.5
    made = [hostile(rng, kind, count, fits=fits) for kind in SIGNATURES[name].split()]
    if name == "index_items" and fits:
        made[4] = exact("B", [1] * count)
        made[-2:] = [exact("q", [0] * (size * rng.randrange(40))) for size in (3, 5)]
    if name == "digest_sums" and rng.random() < 0.7:
        starts = sorted(rng.randrange(9) for _ in range(count + 1))
        made = [exact("B", bytes(26 * count)), exact("q", starts), exact("q", range(8 + rng.randrange(3)))]
    if name == "index_chains" and rng.random() < 0.7:
        made = [
            exact("B", raw(rng, 20 * count)),
            rng.randrange(9),
            exact("i", [0] * rng.randrange(1, 9)),
            exact("B", bytes(count)),
        ]
    return made[: len(made) if fits or rng.random() < 0.9 else rng.randrange(len(made))]


def main(path: str, calls: int, seed: int) -> None:
    """Make so many calls; prints how many were answered."""
    loader = ExtensionFileLoader("_fast", path)
    spec = spec_from_loader("_fast", loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    rng, answered = random.Random(seed), dict.fromkeys(SIGNATURES, 0)
    for _ in range(calls):
        name = rng.choice(list(SIGNATURES))
        try:
            getattr(module, name)(*arguments(rng, name))
        except REFUSED:
            continue
        answered[name] += 1
    print(answered)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
