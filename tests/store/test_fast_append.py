"""The fast append and the general one store the same bytes: random histories by both, every file compared."""

from __future__ import annotations

import contextlib
import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import broker
from broker.store.write.fast_append import FastAppend
from broker.store.write.pending_record import Appended, PendingRecord

SMALL = broker.StoreLayout(
    segment_bytes=8192,
    consume_queue_bytes=400,
    state_table_bytes=240,
    redo_log_bytes=200,
    index_slots=16,
    index_items=24,
)
DERIVED = ("commitlog", "consumequeue", "index", "transaction")

# A move: what happens, the number of keys, the size of the body; with "end", which half message in doubt, and how.
MOVES = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["send", "half", "later"]), st.integers(0, 3), st.integers(1, 1200)),
        st.tuples(st.just("end"), st.integers(0, 5), st.integers(0, 1)),
    ),
    max_size=40,
)


@contextlib.contextmanager
def same_times_and_keys() -> Iterator[pytest.MonkeyPatch]:
    """Inside, every run of the same moves sees the same times and unique keys."""
    numbers = itertools.count()

    def now_ns() -> int:
        return (1_700_000_000_000 + next(numbers)) * 1_000_000

    with pytest.MonkeyPatch.context() as patch:
        for module in ("appender", "fast_append"):
            patch.setattr(f"broker.store.write.{module}._now_ns", now_ns)
        patch.setattr("broker.store.clock.StoreClock.now_ms", lambda _self, _at_least_ms=0: 0)  # it knows the real time
        patch.setattr("broker.store.write.compose.new_unique_key", lambda _now_ms: f"KEY{next(numbers)}")
        patch.setattr("broker.store.write.compose.time", SimpleNamespace(time_ns=now_ns))
        yield patch


def run(path: Path, moves: list[tuple[str, int, int]]) -> None:
    """Make the moves in a new store."""
    with broker.open(path, sync="os", layout=SMALL) as store:
        halves: list[broker.Half] = []
        for number, (verb, a, b) in enumerate(moves):
            if verb == "end":
                if halves:
                    half = halves.pop(a % len(halves))
                    store.transactions.commit(half) if b else store.transactions.rollback(half)
                continue
            keys = [f"{number}-{key}" for key in range(a)]
            message = broker.Message("halves" if verb == "half" else verb, bytes(b % 7 + 1) * b, tag="t", keys=keys)
            if verb == "half":
                halves.append(store.transactions.prepare(message, "shop"))
            else:
                store.append(message, queue_id=b % 4, extra_properties={"DELAY": "2"} if verb == "later" else None)


def files(path: Path) -> dict[str, bytes]:
    """All that was stored, by name; an index file is named by the time when it was made, here by its turn.

    A file of zeros was made ahead, by a thread that may or may not have had its turn.
    """
    stored = {}
    for part in DERIVED:
        for number, file in enumerate(sorted(file for file in (path / part).rglob("*") if file.is_file())):
            if any(data := file.read_bytes()):
                stored[str(number) if part == "index" else str(file.relative_to(path))] = data
    return stored


@settings(max_examples=30, deadline=None)
@given(moves=MOVES)
def test_both_ways_store_the_same_bytes(moves: list[tuple[str, int, int]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        with same_times_and_keys():
            run(Path(directory, "fast"), moves)
        with same_times_and_keys() as patch:
            patch.setattr(FastAppend, "append", lambda _self, _draft: None)
            run(Path(directory, "general"), moves)
        assert files(Path(directory, "fast")) == files(Path(directory, "general"))


def test_the_fast_way_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the comparison would compare the general way with itself."""
    taken = []
    real = FastAppend.append

    def counted(self: FastAppend, draft: PendingRecord) -> Appended | None:
        appended = real(self, draft)
        taken.append(appended is not None)
        return appended

    monkeypatch.setattr(FastAppend, "append", counted)
    run(tmp_path / "store", [("send", 1, 8), ("half", 1, 8), ("end", 0, 1)] * 20)
    assert len(taken) == 60
    assert sum(taken) > 40
