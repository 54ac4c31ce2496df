"""The pass of the C module against the NumPy that is the reference: the same records, columns, stops and CRCs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import recovery.scan.framing
import recovery.scan.strings
import recovery.scan.windows
import recovery.transactions.digest
import recovery.verify.index_items
from broker.compiled import fast
from broker.format.commitlog import BODY_AT
from recovery.scan.framing import Walk, walk
from recovery.scan.kinds import Kinds
from recovery.scan.native.columns import COLUMNS, Averages, Wants, WindowPass
from recovery.scan.records import Records
from recovery.scan.scanner import Scan
from recovery.scan.store_files import StoreFiles
from recovery.transactions.events import Names, extract
from recovery.transactions.fingerprint import ODD_NUMBERS, fingerprints
from recovery.verify.index_items import IndexingRule, expected_items
from tests.golden.unpack import names
from tests.scan.effort import tries
from tests.scan.logs import Chunk, Log, Wanted, logs
from tests.scan.property_bytes import NAMES, raw_properties

pytestmark = pytest.mark.skipif(fast is None, reason="the C module was not built, or CHECKBACK_PURE=1 leaves it out")

_MODULES = (
    recovery.scan.framing, recovery.scan.strings, recovery.scan.windows,
    recovery.transactions.digest, recovery.verify.index_items,
)  # fmt: skip
_ASKED = Wants(
    crc=True, property_sums=True, texts=True, properties=(*NAMES, "TAGS", "PGROUP", "REAL_QID"), copied=ODD_NUMBERS
)


@contextmanager
def pure() -> Iterator[None]:
    """Without the C module."""
    with ExitStack() as stack:
        for module in _MODULES:
            stack.enter_context(patch.object(module, "fast", None))
        yield


def seen(records: Records) -> dict[str, Any]:
    """All that is read from records."""
    said: dict[str, Any] = {"base": records.base, "at": records.at.tolist()}
    for name in COLUMNS[1:15]:
        said[name] = records.field(name).tolist()
    said |= {
        "offsets": records.offsets.tolist(),
        "body_at": records.body_at.tolist(),
        "bad": records.bad_crcs().tolist(),
    }
    said |= {"topics": records.topics.array.to_pylist(), "bodies": records.bodies.array.to_pylist()}
    said |= {"properties": records.properties.array.to_pylist(), "sums": records.property_sums.tolist()}
    said["codes"] = [column if isinstance(column, list) else column.tolist() for column in records.topic_codes]
    for name in _ASKED.properties:
        said[name] = records.property(name).to_pylist()
    kinds = Kinds(records)
    said["events"] = kinds.events.tolist()
    for rule in IndexingRule:
        said[rule.name] = expected_items(records, kinds, rule).tolist()
    rows = extract(records, kinds, Names())
    part = records.take(np.searchsorted(records.offsets, rows["offset"]))
    said["copies"] = fingerprints(part, rows["kind"]).tolist() if len(rows) else []
    said["some"] = records.take(slice(1, None, 2)).field("store_timestamp_ms").tolist()
    return said


def walked(step: Walk) -> dict[str, Any]:
    """All that a walk says."""
    return {"stop": step.stop, "end": step.at, "claims": step.claims, **seen(step.records)}


def compare(window: np.ndarray, base: int, segment_end: int, pieces: list[int]) -> None:
    """A walk of the window by both, the compiled one while the window is read in pieces."""
    with pure():
        wanted = walked(walk(window, base, segment_end))
    begun = WindowPass(window, base, _ASKED, Averages(record=1 << 20))
    for limit in sorted(pieces):
        begun.advance(min(limit, len(window), segment_end - base - 8))
    assert walked(walk(window, base, segment_end, begun)) == wanted
    assert walked(walk(window, base, segment_end)) == wanted  # nothing was wanted, all is asked for afterwards


pieces = st.lists(st.integers(0, 1 << 14), max_size=4)
changes = st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), max_size=4)


@tries(60)
@given(logs(min_size=1), changes, st.integers(0, 400), pieces)
def test_any_window_with_damage(log: Log, changes: list[tuple[int, int]], cut: int, pieces: list[int]) -> None:
    base, raw = min(log.segments.items())
    window = np.frombuffer(bytes(raw), np.uint8).copy()
    for place, value in changes:
        window[place % len(window)] = value
    compare(window[: len(window) - cut], base, base + len(window), pieces)


@tries(60)
@given(logs(min_size=1), st.data(), pieces)
def test_any_damaged_head(log: Log, data: st.DataObject, pieces: list[int]) -> None:
    """Damage where it decides: in the fields and lengths of a record."""
    base, raw = min(log.segments.items())
    window = np.frombuffer(bytes(raw), np.uint8).copy()
    places = [offset - base for offset in log.records if offset < base + len(raw)]
    at = data.draw(st.sampled_from(places))
    for place in data.draw(st.lists(st.sampled_from([*range(48), *range(84, 115)]), min_size=1, max_size=3)):
        window[min(at + place, len(window) - 1)] = data.draw(st.sampled_from([0, 1, 2, 0x10, 0x30, 0x7F, 0x80, 0xFF]))
    stop = data.draw(st.sampled_from([len(window), *(after for _, after in pairwise([*places, len(window)]))]))
    compare(window[:stop], base, base + len(window), pieces)


def test_more_records_than_rows() -> None:
    """The pass makes room for them."""
    log = Log(1 << 20)
    for number in range(3000):
        log.append(Wanted(topic="OrderTopic" if number % 7 else "T", properties=b"KEYS\x01%d a\x02" % number))
    compare(np.frombuffer(bytes(log.segments[0]), np.uint8), 0, 1 << 20, [1 << 14, 1 << 18])


@tries(50)
@given(st.lists(st.tuples(raw_properties | st.binary(max_size=60), st.booleans()), min_size=1, max_size=6))
@example([(b"KEYS\x01a  \xc3\xa9b x\x02UNIQ_KEY\x01\xe6\x97\xa5\x02TAGS\x01\xff\x02", True)])
def test_any_properties(rows: list[tuple[bytes, bool]]) -> None:
    log = Log(1 << 16)
    for number, (properties, record_crc) in enumerate(rows):
        log.append(Wanted(properties=properties, record_crc=record_crc, sys_flag=4 * (number % 4)))
    compare(np.frombuffer(bytes(log.segments[0]), np.uint8), 0, 1 << 16, [])


@pytest.mark.parametrize("place", range(20))
@pytest.mark.parametrize("value", [0, 2, ord("0"), ord("9"), 255])
def test_a_damaged_record_crc(place: int, value: int) -> None:
    log = Log(4096)
    log.append(Wanted(properties=b"KEYS\x01a\x02", record_crc=True))
    end = log.end
    window = np.frombuffer(bytes(log.segments[0]), np.uint8).copy()
    window[end - 20 + place] = value
    compare(window, 0, 4096, [])
    window[end - 20 + (place + 7) % 20] ^= 1
    compare(window, 0, 4096, [])


def test_a_length_that_leads_beyond_the_window_is_no_record_in_any_window() -> None:
    """Its last two bytes are zeros, which would be the length of the properties at the end of the window."""
    log = Log(4096)
    log.append(Wanted(chunks=(Chunk("bytes", bytes(40)),)))
    size = log.end
    window = np.frombuffer(bytes(log.segments[0]), np.uint8).copy()
    window[BODY_AT[False, False] - 1] = size - 30
    for stop in (size, size + 1, 4096):
        compare(window[:stop], 0, 4096, [])
        assert walk(window[:stop], 0, 4096).at == 0


@pytest.mark.sample("rocketmq-3.1.5-killed", "rocketmq-5.3.3-clean")
@pytest.mark.parametrize("name", names())
def test_golden_stores(name: str, golden: Callable[[str], Path]) -> None:
    listing = StoreFiles.open(golden(name)).commitlog
    for window_bytes in (5000, 16 << 20):
        compiled = Scan(listing, window_bytes=window_bytes, wants=_ASKED)
        found = [seen(records) for records in compiled]
        with pure():
            scan = Scan(listing, window_bytes=window_bytes)
            assert [seen(records) for records in scan] == found
        assert (compiled.damages, compiled.end_offset) == (scan.damages, scan.end_offset)
