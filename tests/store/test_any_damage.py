"""Whatever happens to the bytes of a store: values or a BrokerError with a sentence, never anything else."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import broker
from broker.format import checkpoint
from broker.format.checkpoint import Checkpoint
from broker.format.statetable import Slot
from broker.store.read import commitlog, index
from tests.store.build import START_MS, Log, units_of, write_index, write_queue

SEGMENT_SIZE = 1024


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a file of each kind."""
    log = Log(segment_size=SEGMENT_SIZE)
    log.append(20)
    path = log.write(tmp_path_factory.mktemp("small"), spare=True)
    write_queue(path, units_of(log.records))
    write_index(path, log.records, slots=5, items=30)
    (path / "checkpoint").write_bytes(checkpoint.encode(Checkpoint(START_MS)))
    slots = b"".join(Slot(record.commitlog_offset, 100, 1, 2, 4).pack() for record in log.records)
    for directory, raw in (
        ("transaction/statetable", slots),
        ("transaction/redolog/TRANSACTION_REDOLOG_TOPIC_XXXX/0", b"".join(u.pack() for u in units_of(log.records))),
    ):
        (path / directory).mkdir(parents=True)
        (path / directory / f"{0:020}").write_bytes(raw.ljust(480, b"\0"))
    (path / "config").mkdir()
    (path / "config/topics.json").write_text('{"topicConfigTable":{"orders":{"topicName":"orders"}}}')
    (path / "config/consumerOffset.json").write_text('{"offsetTable":{"orders@group":{0:5}}}')
    return path


def everything(store: broker.Store) -> Iterator[Callable[[], object]]:
    """Each way of reading."""
    yield lambda: list(store.records())
    yield lambda: store.end_offset
    yield lambda: store.damages
    yield lambda: list(store.records_between(START_MS + 3000, START_MS + 9000))
    yield from (lambda at=at: store.record(at) for at in range(0, 3 * SEGMENT_SIZE, 97))  # type: ignore[misc]
    yield from (lambda n=n: store.message("orders", 0, n) for n in range(22))  # type: ignore[misc]
    yield from (lambda n=n: store.by_key("orders", f"key-{n}") for n in range(21))  # type: ignore[misc]
    yield lambda: store.by_unique_key("orders", "UNIQUE3")
    yield lambda: store.queue_range("orders", 0)
    yield lambda: store.offset_at_time("orders", 0, START_MS + 7000)
    yield lambda: list(store.state_table.walk())
    yield lambda: list(store.redo_log.walk())
    yield lambda: (store.state_table.end, store.redo_log.end)
    yield lambda: (store.topics(), store.queues("orders"))
    yield store.topic_configs
    yield store.consumer_offsets
    yield store.checkpoint


def check(error: broker.StoreError) -> None:
    """One line that names the file and the next step."""
    text = str(error)
    assert "\n" not in text
    assert error.path is not None, text
    assert any(step in text for step in ("Run: ", ".bak beside it", "See that it is a readable file")), text


@given(data=st.data())
def test_any_damage(small: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """A byte changed, a file cut, extended, removed, or replaced by another file of the store or by a directory."""
    path = tmp_path_factory.mktemp("damaged") / "store"
    shutil.copytree(small, path)
    files = sorted(item for item in path.rglob("*") if item.is_file())
    for _ in range(data.draw(st.integers(1, 2))):
        victim = data.draw(st.sampled_from([item for item in files if not item.is_dir()]))
        raw = bytearray(victim.read_bytes()) if victim.is_file() else bytearray()
        match data.draw(st.sampled_from(["byte", "byte", "bytes", "cut", "extend", "remove", "swap", "directory"])):
            case "byte" if raw:
                raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
            case "bytes" if raw:
                at = data.draw(st.integers(0, len(raw) - 1))
                raw[at : at + 8] = data.draw(st.binary(max_size=20))
            case "cut":
                del raw[data.draw(st.integers(0, len(raw))) :]
            case "extend":
                raw += data.draw(st.binary(max_size=3000))
            case "swap":
                other = data.draw(st.sampled_from(files))
                raw = bytearray(other.read_bytes()) if other.is_file() else raw
            case kind:
                victim.unlink(missing_ok=True)
                if kind == "directory":
                    victim.mkdir()
                continue
        victim.write_bytes(raw)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commitlog, "_PAUSES_S", (0.0,))
        patch.setattr(index, "_PAUSES_S", (0.0,))
        try:
            with broker.open(path, read_only=True) as store:
                for read in everything(store):
                    try:
                        read()
                    except broker.StoreError as error:
                        check(error)
        except broker.NotAStore:
            pass
