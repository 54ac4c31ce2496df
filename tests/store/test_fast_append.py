"""The compiled, the fast and the general append store the same bytes: random histories by each, every file compared."""

from __future__ import annotations

import contextlib
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import broker
from broker import compiled
from broker.format.java import Host
from broker.store.write import appender
from broker.store.write.appender import Appender
from broker.store.write.compose import Origin
from broker.store.write.fast_append import FastAppend
from broker.store.write.pending_record import Appended, PendingRecord
from tests.compiled_module import use

SMALL = broker.StoreLayout(
    segment_bytes=8192,
    consume_queue_bytes=400,
    state_table_bytes=240,
    redo_log_bytes=200,
    index_slots=16,
    index_items=24,
)
LOCAL = Origin(0)
# Who sends a message, and what it has besides: this process, and others.
SENDERS: list[tuple[dict[str, str] | None, Origin | None]] = [
    (None, None),
    ({"CLUSTER": "c", "WAIT": "true"}, Origin(5, Host(b"\x0a\0\0\7", 4711), Host(b"\x0a\0\0\1", 10911), 3, 0x105, 2)),
    ({"MSG_REGION": "grün", "UNIQ_KEY": "7F"}, None),
    ({"CLUSTER": "c"}, Origin(6, Host(b"\xff\0\0\7", 65535), flag=-1, sys_flag=-1, reconsume_times=16)),
]
DERIVED = ("commitlog", "consumequeue", "index", "transaction", "checkback/halfstates")
ENGINES = ("state-table", "half-op")
WAYS = ("compiled", "fast", "general")

# A move: what happens, the number of keys, the size of the body; with "end", which half message in doubt, and how.
MOVES = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["send", "half", "later"]), st.integers(0, 3), st.integers(1, 1200)),
        st.tuples(st.just("end"), st.integers(0, 5), st.integers(0, 1)),
    ),
    max_size=40,
)


class Moment:
    """Which move is made: it is the time, and in the unique keys, however often a way asks for them."""

    number = 0

    @classmethod
    def now_ns(cls) -> int:
        return (1_700_000_000_000 + cls.number) * 1_000_000

    @classmethod
    def unique_key(cls, _now_ms: int) -> str:
        return f"KEY{cls.number}"


@contextlib.contextmanager
def way(name: str) -> Iterator[None]:
    """Inside, stores are written this way, and every run of the same moves sees the same times and unique keys."""
    with pytest.MonkeyPatch.context() as patch:
        for module in ("appender", "fast_append"):
            patch.setattr(f"broker.store.write.{module}._now_ns", Moment.now_ns)
        patch.setattr("broker.store.clock.StoreClock.now_ms", lambda _self, _at_least_ms=0: 0)  # it knows the real time
        for module in ("store.write.compose", "transaction.preparing", "writable_store"):
            patch.setattr(f"broker.{module}.new_unique_key", Moment.unique_key)
            patch.setattr(f"broker.{module}.time", SimpleNamespace(time_ns=Moment.now_ns))
        patch.setattr("broker.transaction.statetable.time", SimpleNamespace(time_ns=Moment.now_ns))
        if name != "compiled":
            use(patch, None)
        if name == "general":
            for method in ("append", "append_pair"):
                patch.setattr(FastAppend, method, lambda *_: None)
        yield


def run(path: Path, moves: list[tuple[str, int, int]], engine: str) -> None:
    """Make the moves in a new store."""
    with broker.open(path, sync="os", layout=SMALL, transactions=engine) as store:
        halves: list[broker.Half] = []
        for number, (verb, a, b) in enumerate(moves):
            Moment.number = number
            if verb == "end":
                if halves:
                    half = halves.pop(a % len(halves))
                    store.transactions.commit(half) if b else store.transactions.rollback(half)
                continue
            keys, tag = [f"{number}-{key}" for key in range(a)], ("t", "", "schräg", "a b")[number % 4]
            properties = {"colour": "grün"} if number % 3 else {}
            topic = "halves" if verb == "half" else verb
            message = broker.Message(topic, bytes(b % 7 + 1) * b, tag, keys, properties)
            extra, origin = SENDERS[number % len(SENDERS)]
            if verb == "half":
                half = store.transactions.prepare(message, "shop", extra_properties=extra, origin=origin)
                assert half.properties["UNIQ_KEY"] == half.unique_key
                assert half.store_host == (origin or LOCAL).store_host
                halves.append(half)
            else:
                extra = {**(extra or {}), "DELAY": "2"} if verb == "later" else extra
                store.append(message, queue_id=b % 4, extra_properties=extra, origin=origin)


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


@pytest.mark.parametrize("engine", ENGINES)
@settings(max_examples=15, deadline=None)
@given(moves=MOVES)
@example(moves=[("send", 1, 8), ("half", 2, 9), ("end", 0, 1), ("later", 0, 3), ("half", 0, 500), ("end", 0, 0)] * 20)
def test_each_way_stores_the_same_bytes(engine: str, moves: list[tuple[str, int, int]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        stored = []
        for name in WAYS:
            with way(name):
                run(Path(directory, name), moves, engine)
            stored.append(files(Path(directory, name)))
        assert stored[0] == stored[1]
        assert stored[1] == stored[2]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", WAYS[:2])
def test_the_fast_ways_are_taken(name: str, engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the comparison would compare the general way with itself."""
    if name == "compiled" and compiled.fast is None:
        pytest.skip("there is no C module")
    general: list[int] = []
    append_locked = Appender.append_locked

    def counted(self: Appender, drafts: Sequence[PendingRecord]) -> list[Appended]:
        general.append(len(drafts))
        return append_locked(self, drafts)

    monkeypatch.setattr(Appender, "append_locked", counted)
    fast, compiled_calls = count_fast(monkeypatch), count_compiled(monkeypatch)
    moves = [("send", 1, 8), ("half", 1, 8), ("end", 0, 1), ("half", 1, 8), ("end", 0, 0)] * 20
    with way(name):
        run(tmp_path / "store", moves, engine)
    assert len(general) < 40
    assert len(fast) == sum(fast) + len(general)
    assert name == "fast" or sum(fast) < 10  # ends of half messages in another file of the table
    assert name == "fast" or min(compiled_calls[one] for one in ("send", "prepare", "append", "end_kept")) > 1


def count_fast(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """A list that gets, for each call of a fast append in Python, whether it did the work."""
    taken: list[bool] = []

    def counting(real: Callable[..., Appended | None]) -> Callable[..., Appended | None]:
        def counted(*arguments: Any) -> Appended | None:
            done = real(*arguments)
            taken.append(done is not None)
            return done

        return counted

    for method in ("append", "append_pair"):
        monkeypatch.setattr(FastAppend, method, counting(getattr(FastAppend, method)))
    return taken


def count_compiled(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each method of the C module did the work."""
    made_by, taken = appender.compiled_append, Counter[str]()

    def counting(*arguments: Any) -> Any:
        made = made_by(*arguments)

        def counted(name: str, *given: Any) -> Any:
            done = getattr(made, name)(*given)
            taken[name] += done is not None
            return done

        names = ("append", "send", "prepare", "end_kept", "end")
        return made and SimpleNamespace(**{name: partial(counted, name) for name in names})

    monkeypatch.setattr(appender, "compiled_append", counting)
    return taken
