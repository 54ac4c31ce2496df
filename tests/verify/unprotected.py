"""Which bytes of a store no check covers: measured by flipping every bit of the small stores, published in the manual.

`python -m tests.verify.unprotected` measures anew (minutes), writes `unprotected.json` and the table in
docs/format.md. The tests compare: no other byte may escape, and every field in the table must have one that does.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from broker.format.checkpoint import Checkpoint
from broker.format.commitlog import head_dtype
from broker.format.consumequeue import Unit
from tests.scan.small_broker import GENERATIONS, Generation
from tests.scan.small_stores import build
from tests.verify.consequences import CONSEQUENCES, consequence_of
from tests.verify.damage import ESCAPED, FOUND, Patient
from tests.verify.damage_map import BEHIND_BLANK, UNUSED, Place, places

DATA = Path(__file__).with_name("unprotected.json")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "format.md"
BEGIN, END = "<!-- unprotected -->\n", "<!-- end -->"
_SAMPLED = {UNUSED, BEHIND_BLANK, "rest"}  # long runs of one meaning: not every byte of them is tried
_EDGE = 24
_PARTS = 8
_RUNS = 3  # of bits that are written out; more depend on the value that stands there

WIDTHS = {("CommitLog record", name): 8 * np.dtype(kind).itemsize for name, kind in head_dtype(False, False)}
WIDTHS |= {
    (kind, name): 8 * np.dtype(code).itemsize
    for kind, layout in (("ConsumeQueue unit", Unit), ("checkpoint", Checkpoint))
    for name, code in layout.DTYPE
}
"""Bits of the fields that have numbered bits."""

Masks = dict[str, int]  # by Place.key: the bits that escape


@dataclass
class Measured:
    """What became of the flips in a store."""

    trials: int = 0
    escapes: int = 0
    masks: Masks = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)  # found but not named, or raised

    def take(self, place: Place, at: int, bit: int, outcome: str) -> None:
        self.trials += 1
        if outcome == ESCAPED:
            self.escapes += 1
            self.masks[place.key] = self.masks.get(place.key, 0) | mask(place, at, bit)
        elif outcome != FOUND:
            self.wrong.append(f"{place.file} byte {at} bit {bit} ({place.key}): {outcome}")

    def add(self, other: Measured) -> None:
        self.trials += other.trials
        self.escapes += other.escapes
        self.wrong += other.wrong
        for key, bits in other.masks.items():
            self.masks[key] = self.masks.get(key, 0) | bits


def mask(place: Place, at: int, bit: int) -> int:
    """A bit of a field as one number: of a fixed field its value, of text the bit in whichever byte."""
    return 1 << (bit + 8 * (place.stop - 1 - at)) if place.fixed else 1 << bit


def positions(place: Place, rng: random.Random) -> Iterable[int]:
    """The bytes of a place that are tried: all, but of unused space only the edges and some between."""
    if place.field not in _SAMPLED or len(place) <= 2 * _EDGE:
        return range(place.start, place.stop)
    middle = rng.sample(range(place.start + _EDGE, place.stop - 1), _EDGE)
    return [*range(place.start, place.start + _EDGE), *middle, place.stop - 1]


def flips(found: Iterable[Place], seed: int = 0) -> Iterator[tuple[Place, int, int]]:
    """Every bit of every byte that is tried."""
    rng = random.Random(seed)
    for place in found:
        for at in positions(place, rng):
            for bit in range(8):
                yield place, at, bit


def measure(generation: Generation, directory: Path, part: int = 0, parts: int = 1) -> Measured:
    """Flip every bit of a generation's store, or each `parts`-th place of it."""
    store = directory / f"{generation.name}-{part}".replace(" ", "-")
    broker, measured = build(generation, store), Measured()
    with Patient(store) as patient, warnings.catch_warnings():
        warnings.simplefilter("error")
        for place, at, bit in flips(places(broker, store)[part::parts]):
            measured.take(place, at, bit, patient.flip(place, at, bit))
    return measured


def measure_all() -> dict[str, Measured]:
    """All generations, on all processors."""
    found = {generation.name: Measured() for generation in GENERATIONS}
    with tempfile.TemporaryDirectory() as directory, ProcessPoolExecutor() as pool:
        runs = [
            (generation.name, pool.submit(measure, generation, Path(directory), part, _PARTS))
            for generation in GENERATIONS
            for part in range(_PARTS)
        ]
        for name, run in runs:
            found[name].add(run.result())
    return found


def load() -> dict[str, Masks]:
    """The published measurement, by generation."""
    raw = json.loads(DATA.read_text(encoding="utf-8"))
    return {name: {key: int(bits, 16) for key, bits in masks.items()} for name, masks in raw.items()}


def dump(found: dict[str, Masks]) -> str:
    ordered = {name: {key: f"{bits:x}" for key, bits in sorted(masks.items())} for name, masks in found.items()}
    return json.dumps(ordered, indent=1) + "\n"


# The table in docs/format.md


def table(found: dict[str, Masks]) -> str:
    """A line for each field, whatever records it stands in."""
    rows: dict[tuple[str, str], dict[str, Masks]] = {}
    for name, masks in found.items():
        for key, bits in masks.items():
            kind, field_name, role = key.split("|")
            row = rows.setdefault((kind, _row_of(field_name)), {})
            roles = row.setdefault(name, {})
            roles[role] = roles.get(role, 0) | bits
    lines = ["| file | field | " + " | ".join(found) + " | then |", "|---|---|" + "---|" * len(found) + "---|"]
    for kind, field_name in sorted(rows, key=lambda row: (row[0], _rank(row), row[1])):
        width = WIDTHS.get((kind, field_name), 8)
        cells = [_cell(rows[kind, field_name].get(name, {}), width) for name in found]
        then = consequence_of(kind, field_name)
        lines.append(f"| {kind} | {field_name} | " + " | ".join(cells) + f" | {then} |")
    return "\n".join(lines) + "\n"


def _rank(row: tuple[str, str]) -> int:
    """Fields in the order of the sentences; properties without one of their own come last."""
    return list(CONSEQUENCES).index(row) if row in CONSEQUENCES else len(CONSEQUENCES)


def _row_of(field_name: str) -> str:
    """Name, value and end of a property share a line."""
    for prefix in ("name of ", "value of ", "end of "):
        if field_name.startswith(prefix):
            return f"property `{field_name.removeprefix(prefix)}`"
    return field_name


def _cell(roles: Masks, width: int) -> str:
    """In which records, and which bits where not all."""
    if not roles:
        return "–"
    by_bits: dict[str, list[str]] = {}
    for role, bits in sorted(roles.items()):
        by_bits.setdefault(_bits(bits, width), []).append(role)
    parts = []
    for text, named in by_bits.items():
        where = ", ".join(role for role in named if role)
        parts.append(f"{where} ({text})" if where and text else where or text or "any bit")
    return "; ".join(parts)


def _bits(bits: int, width: int) -> str:
    """Which bits, in few words; empty for all of a field. Text counts as all: which bits of a letter says little."""
    if width == 8 or bits == (1 << width) - 1:
        return ""
    runs: list[str] = []
    start: int | None = None
    for bit in range(width + 1):
        inside = bit < width and bits >> bit & 1
        if inside and start is None:
            start = bit
        elif not inside and start is not None:
            runs.append(f"{start}–{bit - 1}" if bit - 1 > start else f"{start}")
            start = None
    if len(runs) > _RUNS:
        return f"some of bits 0–{bits.bit_length() - 1}"
    return ("bit " if len(runs) == 1 and "–" not in runs[0] else "bits ") + ", ".join(runs)


def written(text: str, found: dict[str, Masks]) -> str:
    """The page with the table in its place."""
    head, rest = text.split(BEGIN, 1)
    return head + BEGIN + table(found) + rest[rest.index(END) :]


def main() -> None:
    measured = measure_all()
    found = {name: each.masks for name, each in measured.items()}
    DATA.write_text(dump(found), encoding="utf-8")
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), found), encoding="utf-8")
    for name, each in measured.items():
        sys.stderr.write(f"{name}: {each.trials} flips, {each.escapes} escape, {len(each.wrong)} answered wrongly\n")
        sys.stderr.writelines(f"  {line}\n" for line in each.wrong[:20])


if __name__ == "__main__":
    main()
