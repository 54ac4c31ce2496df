"""Logs whose sizes have a rhythm, which a walk predicts: it finds what hopping from size to size finds."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import recovery.scan.framing
from broker.format.commitlog import BODY_AT
from recovery.scan.framing import Stop, walk
from tests.scan.effort import tries
from tests.scan.logs import Chunk, Log, Wanted

SEGMENT = 1 << 20
PLAIN = len(Wanted().at(0, SEGMENT))


@pytest.fixture(autouse=True)
def without_the_c_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """It predicts nothing: tests/scan/test_compiled_pass.py compares it with what is tested here."""
    monkeypatch.setattr(recovery.scan.framing, "fast", None)


@pytest.fixture
def foretold(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many positions each look ahead gave."""
    counts: list[int] = []
    original = recovery.scan.framing.predict_offsets

    def counted(*arguments: object) -> object:
        found = original(*arguments)
        counts.append(len(found) - 1)
        return found

    monkeypatch.setattr(recovery.scan.framing, "predict_offsets", counted)
    return counts


def written(bodies: list[int]) -> Log:
    """A log of one segment with bodies of these sizes."""
    log = Log(SEGMENT)
    for size in bodies:
        log.append(Wanted(chunks=(Chunk("bytes", bytes(size)),)))
    return log


def found_in(log: Log, size: int = SEGMENT) -> tuple[list[int], Stop]:
    step = walk(np.frombuffer(log.segments[0], np.uint8)[:size], 0, SEGMENT)
    return step.records.offsets.tolist(), step.stop


@pytest.mark.parametrize("period", [1, 2, 3, 7, 31])
def test_a_rhythm_is_foretold_to_the_end_of_the_log(period: int, foretold: list[int]) -> None:
    log = written([(7 * number) % period for number in range(period)] * (1000 // period))
    assert found_in(log) == (list(log.records), Stop.EMPTY)
    assert sum(foretold) > 900


def test_without_a_rhythm_nothing_is_foretold(foretold: list[int]) -> None:
    log = written([number * number % 211 for number in range(400)])
    assert found_in(log) == (list(log.records), Stop.EMPTY)
    assert sum(foretold) < 10


@pytest.mark.parametrize("at", [64, 65, 66, 127, 128, 200, 399])
@pytest.mark.parametrize("more", [-1, 1, 5000])
def test_a_break_in_the_rhythm_is_seen(at: int, more: int, foretold: list[int]) -> None:
    """One record of another size, after which the rhythm goes on as it was."""
    bodies = [10, 20] * 200
    bodies[at] += more
    log = written(bodies)
    assert found_in(log) == (list(log.records), Stop.EMPTY)
    assert sum(foretold) > 200


@tries(20)
@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 90), min_size=1, max_size=5), st.integers(1, 90)), min_size=1, max_size=6
    )
)
def test_any_rhythms_after_one_another(parts: list[tuple[list[int], int]]) -> None:
    bodies = [size for sizes, count in parts for size in sizes * count]
    log = written(bodies[:4000])
    starts = [0, *accumulate(PLAIN + size for size in bodies[:4000])]
    assert found_in(log) == (starts[:-1], Stop.EMPTY)


def test_a_window_that_cuts_the_rhythm(foretold: list[int]) -> None:
    log = written([10] * 500)
    size = len(next(iter(log.records.values())))
    for cut in (300 * size - 1, 300 * size, 300 * size + 1, 300 * size + 8, 301 * size - 1):
        step = walk(np.frombuffer(log.segments[0], np.uint8)[:cut], 0, SEGMENT)
        assert step.records.offsets.tolist() == list(log.records)[: cut // size]
        assert (step.stop, step.at) == (Stop.MORE, cut // size * size)
    assert all(foretold)


def test_a_body_that_looks_like_the_next_record_of_the_rhythm(foretold: list[int]) -> None:
    """Where the rhythm would go on lies a body with a whole record in it, which states that very place."""
    log = written([50] * 100)
    size = len(next(iter(log.records.values())))
    fake = Chunk("record", bytes(size - len(Chunk("record", b"", 0).at(0, SEGMENT))), 0)
    filler = Chunk("bytes", bytes(size - BODY_AT[False, False]))
    hostile = log.append(Wanted(chunks=(filler, fake, fake, fake)))
    for _ in range(100):
        log.append(Wanted(chunks=(Chunk("bytes", bytes(50)),)))
    deceived = np.frombuffer(log.segments[0], np.uint8)[hostile + size :]
    assert walk(deceived[: 3 * size], hostile + size, SEGMENT).records.offsets.tolist() == [
        hostile + number * size for number in (1, 2, 3)
    ]  # from there on, the fakes are as good as records
    assert found_in(log) == (list(log.records), Stop.EMPTY)
    assert foretold[0] == 100 - 64  # up to the hostile record, and no further


@pytest.mark.parametrize("field", ["magic", "commitlog_offset"])
def test_a_size_that_fits_the_rhythm_is_no_proof(field: str, foretold: list[int]) -> None:
    log = written([10] * 300)
    victim = list(log.records)[200]
    log.segments[0][victim + {"magic": 7, "commitlog_offset": 35}[field]] ^= 1
    assert found_in(log) == (list(log.records)[:200], Stop.BAD)
    assert sum(foretold) > 200
