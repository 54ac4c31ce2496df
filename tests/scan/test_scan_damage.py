"""Damaged logs: no error, every record that was left whole, and each damaged place named by its right kind."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from recovery.scan.scanner import Damage, Scan
from recovery.scan.store_files import StoreFiles
from tests.scan.effort import tries
from tests.scan.logs import Chunk, Log, Wanted, found_by, logs


@dataclass
class Harm:
    """A log, and what was done to its files."""

    log: Log
    files: dict[int, bytes] = field(default_factory=dict)  # by base; missing ones are gone
    done: list[tuple[int, bytes]] = field(default_factory=list)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # noqa: ARG002 - its caller gives two
        """Hypothesis would print every byte."""
        printer.text(
            f"Harm({self.log!r}, files={ {base: len(held) for base, held in self.files.items()} }, done={self.done})"
        )

    @classmethod
    def of(cls, log: Log) -> Harm:
        return cls(log, {base: bytes(held) for base, held in log.segments.items()})

    def overwrite(self, position: int, raw: bytes) -> None:
        base = position - position % self.log.segment_size
        at, held = position - base, self.files.get(base, b"")
        raw = raw[: max(len(held) - at, 0)]
        self.done.append((position, raw))
        self.files |= {base: held[:at] + raw + held[at + len(raw) :]} if raw else {}

    def byte(self, position: int) -> int | None:
        base = position - position % self.log.segment_size
        held = self.files.get(base, b"")
        return held[position - base] if position - base < len(held) else None

    def is_whole(self, offset: int, raw: bytes) -> bool:
        base = offset - offset % self.log.segment_size
        return self.files.get(base, b"")[offset - base :][: len(raw)] == raw

    def is_changed(self, start: int, end: int) -> bool:
        """Whether any byte of [start, end) is not what it was."""
        size = self.log.segment_size
        return any(self.byte(at) != self.log.segments[at - at % size][at % size] for at in range(start, end))

    def is_empty_from(self, offset: int) -> bool:
        """Whether nothing but zeros is left from there on: then nobody can know that there was more."""
        return not any(
            any(held[max(offset - base, 0) :]) for base, held in self.files.items() if base + len(held) > offset
        )

    def scan(self, window_bytes: int) -> tuple[dict[int, bytes], Scan]:
        with tempfile.TemporaryDirectory() as directory:
            home = Path(directory) / "commitlog"
            home.mkdir()
            for base, held in self.files.items():
                (home / f"{base:020}").write_bytes(held)
            scan = Scan(StoreFiles.open(directory).commitlog, window_bytes=window_bytes)
            return found_by(scan), scan


@st.composite
def harmed_logs(draw: st.DrawFn) -> Harm:
    """One to three kinds of harm, anywhere in the log or behind its end."""
    log = draw(logs(min_size=3))
    harm = Harm.of(log)
    places = st.integers(log.begin, max(log.segments) + log.segment_size - 1) | st.sampled_from(
        [offset + delta for offset in [*log.records, *log.blanks, log.end] for delta in (0, 1, 4, 7, 30, 87)]
    )
    for kind in draw(st.lists(st.sampled_from(("bytes", "zeros", "zeros", "cut", "remove")), min_size=1, max_size=3)):
        base = draw(st.sampled_from(sorted(log.segments)))
        if kind == "bytes":
            harm.overwrite(draw(places), draw(st.binary(min_size=1, max_size=200)))
        elif kind == "zeros":
            harm.overwrite(draw(places), bytes(draw(st.integers(1, 3000))))
        elif kind == "cut" and base in harm.files:
            harm.files[base] = harm.files[base][: draw(st.integers(0, log.segment_size))]
        elif len(harm.files) > 1:
            harm.files.pop(base, None)
    return harm


@tries(75)
@given(harmed_logs(), st.sampled_from((64, 4096, 1 << 20)))
def test_what_is_whole_is_found_and_what_is_not_is_named(harm: Harm, window_bytes: int) -> None:
    found, scan = harm.scan(window_bytes)
    log, begin = harm.log, min(harm.files)
    assert found.keys() <= log.records.keys(), "a record was invented"
    if scan.segment_size != log.segment_size:  # most files were cut to another size: nobody can know the true one
        return
    whole = {offset for offset, raw in log.records.items() if harm.is_whole(offset, raw)}
    assert whole <= found.keys()
    for offset in log.records.keys() - found.keys():
        end = offset + len(log.records[offset])
        covered = any(d.commitlog_offset < end and offset < d.commitlog_offset + d.size for d in scan.damages)
        assert covered or offset < begin or harm.is_empty_from(offset), f"the loss of {offset} is not said"
    regions = [damage for damage in scan.damages if damage.kind in ("corrupt-region", "torn-tail")]
    for damage in regions:
        check_region(harm, damage, found, [*found, *(other.commitlog_offset for other in regions)])
    assert len([damage for damage in regions if damage.kind == "torn-tail"]) <= 1
    assert {(d.kind, d.commitlog_offset, d.size) for d in scan.damages if d not in regions} == file_damages(harm)


def check_region(harm: Harm, damage: Damage, found: dict[int, bytes], others: list[int]) -> None:
    """It is where something changed, and it is a torn tail only where nothing follows.

    Zeros between the log's last record and bytes in a later segment are no change, but nothing that RocketMQ writes.
    And harm can make a shorter record of one, whose lengths add up; what it leaves over is no record.
    """
    start, size = damage.commitlog_offset, damage.size
    assert size > 0
    segment_end = start - start % harm.log.segment_size + harm.log.segment_size
    reach = min(start + max(size, len(harm.log.records.get(start, b"")), 8), segment_end)
    hollow = damage.kind == "corrupt-region" and not any(harm.byte(at) for at in range(start, segment_end))
    shortened = any(raw != harm.log.records[at] and at + len(raw) == start for at, raw in found.items())
    assert harm.is_changed(start, reach) or shortened or (hollow and not harm.is_empty_from(segment_end))
    follows = any(offset >= start + size for offset in others)
    blank_follows = any(harm.is_whole(at, harm.log.blank(at)) for at in harm.log.blanks if start < at < segment_end)
    assert (damage.kind == "corrupt-region") == (follows or blank_follows)


def file_damages(harm: Harm) -> set[tuple[str, int, int]]:
    """Missing and cut segments as (kind, offset, bytes)."""
    size, bases = harm.log.segment_size, sorted(harm.files)
    wanted = set()
    for base, following in zip(bases, [*bases[1:], None], strict=True):
        held = len(harm.files[base])
        if held != size and (held or following is not None):
            wanted.add(("segment-size", base + held, size - held))
        if following is not None and following > base + size:
            wanted.add(("segment-missing", base + size, following - base - size))
    return wanted


def test_a_record_that_states_another_place_is_none() -> None:
    """RocketMQ takes what an older run left behind for records; we compare the offset that each states."""
    log = Log(4096)
    for body in (b"first", b"second", b"third!"):
        log.append(Wanted(chunks=(Chunk("bytes", body * 10),)))
    harm, (first, second, third) = Harm.of(log), log.records
    moved = log.records[second].replace(second.to_bytes(8, "big"), (second + 4096).to_bytes(8, "big"))
    harm.overwrite(second, moved)
    found, scan = harm.scan(4096)
    assert list(found) == [first, third]
    assert [(d.kind, d.commitlog_offset, d.size) for d in scan.damages] == [("corrupt-region", second, third - second)]


def test_only_the_last_place_is_a_torn_tail() -> None:
    """Half a record, and bytes in the segment made ahead: the first is damage in the middle, to its segment's end."""
    log = Log(4096)
    log.append(Wanted())
    log.preallocate(1)
    harm = Harm.of(log)
    harm.overwrite(log.end, b"half a record")
    harm.overwrite(4096, b"more")
    _, scan = harm.scan(4096)
    places = [(damage.kind, damage.commitlog_offset, damage.size) for damage in scan.damages]
    assert places == [("corrupt-region", log.end, 4096 - log.end), ("torn-tail", 4096, 4)]


@tries(30)
@given(harmed_logs(), st.integers(0, 20_000), st.integers(0, 20_000), st.sampled_from((64, 4096, 1 << 20)))
def test_ranges_of_a_damaged_log_give_each_whole_record_once(harm: Harm, first: int, second: int, window: int) -> None:
    cuts = sorted({harm.log.begin + first, harm.log.begin + second})
    last = max(harm.log.segments) + harm.log.segment_size
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory) / "commitlog"
        home.mkdir()
        for base, held in harm.files.items():
            (home / f"{base:020}").write_bytes(held)
        listing = StoreFiles.open(directory).commitlog
        together: list[int] = []
        for start, end in zip([0, *cuts], [*cuts, max(last, *cuts)], strict=True):
            together += found_by(Scan(listing, start, end, resync=True, window_bytes=window))
        whole = found_by(Scan(listing, window_bytes=window))
    assert together == list(whole)
