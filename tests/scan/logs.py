"""CommitLogs for property tests: a few small segments of records, some of which carry bodies made to deceive.

A body is a list of chunks, among them whole records, blanks and magic codes. A chunk that *lies* states another place
than its own, as a record does that was copied into a body. One that does not (`delta` 0) could only be made by someone
who knew where his message would lie.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from hypothesis import strategies as st

from broker.format.commitlog import BLANK_SIZE, BODY_AT, Record, encode, encode_blank, make_record
from broker.format.java import Host
from recovery.scan.scanner import Scan

V4, V6 = Host(b"\x7f\x00\x00\x01", 10911), Host(bytes(15) + b"\x01", 65535)
MAGICS = (0xDAA320A7, 0xDAA320AB, 0xCBD43194)
SIZES = (4096, 8192, 12288)


@dataclass(frozen=True)
class Chunk:
    """A part of a body: `raw` as it is, or something that looks like a part of a log."""

    kind: str  # bytes, record, half (of a record), blank, magic
    raw: bytes = b""
    delta: int = 1  # what it states as its place is so far from the truth

    def at(self, offset: int, remaining: int) -> bytes:
        """The bytes of this chunk when it lies at a CommitLog offset, with so many bytes left in the segment."""
        if self.kind == "bytes":
            return self.raw
        if self.kind == "magic":
            return len(self.raw).to_bytes(4, "big") + MAGICS[self.delta % 3].to_bytes(4, "big") + self.raw
        if self.kind == "blank":
            return encode_blank(max(remaining + self.delta, BLANK_SIZE))
        fake = encode(record("Fake", self.raw, b"KEYS\x01fake\x02", offset + self.delta))
        return fake if self.kind == "record" else fake[: len(fake) // 2]


@dataclass(frozen=True)
class Wanted:
    """A record to be written, once its place is known."""

    topic: str = "OrderTopic"
    chunks: tuple[Chunk, ...] = ()
    properties: bytes = b""
    born: Host = V4
    store: Host = V4
    sys_flag: int = 0
    queue_offset: int = 0
    prepared_offset: int = 0
    record_crc: bool = False

    def at(self, offset: int, segment_end: int) -> bytes:
        """The bytes of this record at a CommitLog offset."""
        place = offset + BODY_AT[self.born.is_ipv6, self.store.is_ipv6]
        body = b""
        for chunk in self.chunks:
            here = place + len(body)
            body += chunk.at(here, max(segment_end - here, BLANK_SIZE))
        made = make_record(
            self.topic,
            body,
            self.properties,
            born_host=self.born,
            store_host=self.store,
            born_timestamp_ms=1_700_000_000_000,
            store_timestamp_ms=1_700_000_000_001,
            queue_offset=self.queue_offset,
            commitlog_offset=offset,
            sys_flag=self.sys_flag,
            prepared_transaction_offset=self.prepared_offset,
        )
        return encode(made, record_crc=self.record_crc)


def record(topic: str, body: bytes, properties: bytes, offset: int) -> Record:
    """A plain record at an offset."""
    times = {"born_timestamp_ms": 1_700_000_000_000, "store_timestamp_ms": 1_700_000_000_000}
    return make_record(topic, body, properties, born_host=V4, store_host=V4, commitlog_offset=offset, **times)


class Placeable(Protocol):
    """What can be written once its place is known."""

    def at(self, offset: int, segment_end: int) -> bytes: ...


@dataclass
class Log:
    """Segments as bytes, and where the records in them are."""

    segment_size: int
    base: int = 0
    segments: dict[int, bytearray] = field(default_factory=dict)  # by base
    records: dict[int, bytes] = field(default_factory=dict)  # by CommitLog offset
    blanks: list[int] = field(default_factory=list)

    def __repr__(self) -> str:
        lengths = {offset: len(raw) for offset, raw in self.records.items()}
        return f"Log({self.segment_size}, segments={list(self.segments)}, records={lengths}, blanks={self.blanks})"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # noqa: ARG002 - its caller gives two
        """Hypothesis would print every byte."""
        printer.text(repr(self))

    @property
    def begin(self) -> int:
        return self.base

    @property
    def end(self) -> int:
        """After the last record."""
        offset, raw = next(reversed(self.records.items()), (self.base, b""))
        return offset + len(raw)

    def append(self, wanted: Placeable, garbage: bytes = b"") -> int:
        """Write one record where the log ends, in a new segment when it does not fit; returns its offset."""
        at = self.end
        segment = at - at % self.segment_size
        if self.blanks and self.blanks[-1] >= at:
            segment = at = segment + self.segment_size
        raw = wanted.at(at, segment + self.segment_size)
        if at + len(raw) + BLANK_SIZE > segment + self.segment_size:
            self._roll(at, segment + self.segment_size, garbage)
            segment = at = segment + self.segment_size
            raw = wanted.at(at, segment + self.segment_size)
        held = self.segments.setdefault(segment, bytearray(self.segment_size))
        held[at - segment : at - segment + len(raw)] = raw
        self.records[at] = raw
        return at

    def _roll(self, at: int, segment_end: int, garbage: bytes) -> None:
        """The blank; 3.0 leaves scraps of earlier messages behind it."""
        left = segment_end - at
        held = self.segments.setdefault(segment_end - self.segment_size, bytearray(self.segment_size))
        rest = (encode_blank(left) + garbage)[:left]
        held[self.segment_size - left : self.segment_size - left + len(rest)] = rest
        self.blanks.append(at)

    def blank(self, at: int) -> bytes:
        """The eight bytes of the blank at an offset."""
        segment = at - at % self.segment_size
        return bytes(self.segments[segment][at - segment :][:BLANK_SIZE])

    def preallocate(self, count: int) -> None:
        """Segments of zeros after the last, as RocketMQ makes them ahead."""
        for _ in range(count):
            last = max(self.segments, default=self.base - self.segment_size)
            self.segments[last + self.segment_size] = bytearray(self.segment_size)

    def write(self, directory: Path) -> Path:
        """The store on disk: nothing but commitlog/."""
        home = directory / "commitlog"
        home.mkdir(parents=True)
        for base, held in self.segments.items():
            (home / f"{base:020}").write_bytes(held)
        return directory


def _chunks(deltas: st.SearchStrategy[int]) -> st.SearchStrategy[tuple[Chunk, ...]]:
    raw = st.builds(Chunk, st.just("bytes"), st.binary(max_size=60))
    long = st.builds(
        lambda byte, size: Chunk("bytes", bytes([byte]) * size), st.sampled_from(b"\0\xda\x01"), st.integers(0, 1500)
    )
    magic = st.builds(Chunk, st.just("magic"), st.binary(max_size=4), st.integers(0, 2))
    fake = st.builds(Chunk, st.sampled_from(("record", "half", "blank")), st.binary(max_size=30), deltas)
    return st.lists(raw | long | magic | fake | fake, max_size=4).map(tuple)


lies = st.integers(-20_000, 20_000).filter(bool) | st.sampled_from((-88, -4096, 4096, 1, -1, -(1 << 40)))
truths_and_lies = st.just(0) | st.just(0) | lies


def wanted_records(deltas: st.SearchStrategy[int] = lies) -> st.SearchStrategy[Wanted]:
    """Records of every shape: V1 and V2, both address families, empty and deceiving bodies, record CRCs."""
    hosts = st.sampled_from((V4, V6))
    return st.builds(
        Wanted,
        topic=st.sampled_from(("OrderTopic", "T", "%RETRY%" + "g" * 140, "Tópico")),
        chunks=_chunks(deltas),
        properties=st.sampled_from(
            (b"", b"KEYS\x01a b\x02TAGS\x01t\x02", b"KEYS\x01a", b"UNIQ_KEY\x01u\x02PGROUP\x01g\x02")
        ),
        born=hosts,
        store=hosts,
        sys_flag=st.sampled_from((0, 0, 4, 8, 12)),
        queue_offset=st.integers(0, 5),
        prepared_offset=st.integers(0, 9000),
        record_crc=st.booleans(),
    )


@st.composite
def logs(draw: st.DrawFn, deltas: st.SearchStrategy[int] = lies, min_size: int = 0, max_size: int = 25) -> Log:
    """A whole log: rolled segments, the zeros after its end, maybe segments made ahead; it may begin anywhere."""
    size = draw(st.sampled_from(SIZES))
    log = Log(size, draw(st.sampled_from((0, 0, 1, 1000))) * size)
    garbage = draw(st.sampled_from((b"", b"", b"\xda\xa3\x20\xa7" * 40)))
    for wanted in draw(st.lists(wanted_records(deltas), min_size=min_size, max_size=max_size)):
        if len(wanted.at(0, size)) + BLANK_SIZE <= size:
            log.append(wanted, garbage)
    while len(log.records) < min_size:  # others were larger than a segment
        log.append(Wanted(), garbage)
    log.preallocate(draw(st.sampled_from((0, 0, 1, 2))) or (not log.segments))
    return log


def found_by(scan: Scan) -> dict[int, bytes]:
    """Offset and bytes of each record, in the order in which they come; none comes twice."""
    found: dict[int, bytes] = {}
    for records in scan:
        for offset, at, size in zip(records.offsets.tolist(), records.at.tolist(), records.sizes.tolist(), strict=True):
            assert offset not in found
            found[offset] = records.window[at : at + size].tobytes()
    assert list(found) == sorted(found)
    return found
