"""Lookup by key, in index files whose numbers of slots and items nobody tells."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import broker
from broker.format.commitlog import encode
from broker.format.index import IndexItem, file_size, item_at, key_hash_3_0
from broker.store.disk.files import Disk, Entry
from broker.store.read.directory import StoreDirectory
from broker.store.read.index import Index
from tests.store.build import START_MS, Log, write_index


@pytest.mark.parametrize(
    ("slots", "items"), [(1, 61), (7, 100), (10, 4000), (1000, 62), (1000, 4000), (4001, 77), (5000, 61)]
)
def test_slots_and_items_are_worked_out(tmp_path: Path, slots: int, items: int) -> None:
    log = Log()
    log.append(60)
    path = log.write(tmp_path)
    write_index(path, log.records, slots=slots, items=items)
    with broker.open(path, read_only=True) as store:
        assert [(file.slots, file.items) for file in store.index.files()] == [(slots, items)]
        for number in range(60):
            assert [message.queue_offset for message in store.by_key("orders", f"key-{number}")] == [number]
        assert store.by_key("orders", "key-60") == []
        assert store.by_key("others", "key-1") == []


@given(used=st.integers(1, 30), slots=st.integers(1, 400), spare=st.integers(1, 400))
def test_any_numbers_are_worked_out(
    tmp_path_factory: pytest.TempPathFactory, used: int, slots: int, spare: int
) -> None:
    """Of all pairs that give the same size, the one that finds every key."""
    log = Log()
    log.append(used)
    path = log.write(tmp_path_factory.mktemp("store"))
    write_index(path, log.records, slots=slots, items=used + spare)
    with broker.open(path, read_only=True) as store:
        for number in range(used):
            assert [message.queue_offset for message in store.by_key("orders", f"key-{number}")] == [number]


def test_a_file_without_items(tmp_path: Path) -> None:
    path = Log().write(tmp_path)
    write_index(path, [], slots=3, items=5)
    (path / "index" / "20231114221320001").touch()
    (path / "index" / "notes").touch()
    with broker.open(path, read_only=True) as store:
        assert store.by_key("orders", "key-0") == []


class _ListedBefore(Disk):
    """A directory that was listed when its files had just been created, and were empty."""

    def entries(self, path: str) -> list[Entry]:
        return [replace(entry, size=0) for entry in super().entries(path)]


def test_a_file_that_was_put_to_use_since_it_was_listed(tmp_path: Path) -> None:
    """It was reported as an index that RocketMQ did not write."""
    log = Log()
    log.append(20)
    path = log.write(tmp_path)
    write_index(path, log.records, slots=5, items=20)
    with broker.open(path, read_only=True) as store:
        store.index = Index(StoreDirectory(str(path), _ListedBefore()))
        assert [message.queue_offset for message in store.by_key("orders", "key-7")] == [7]


def test_a_file_of_the_default_size(tmp_path: Path) -> None:
    """420 MB, nearly all of it a hole: nothing but the header, a slot and the chain is read."""
    path = Log().write(tmp_path)
    index = path / "index" / "20231114221320000"
    index.parent.mkdir()
    with index.open("wb") as file:
        file.truncate(file_size())
    with broker.open(path, read_only=True) as store:
        assert store.by_key("orders", "key-0") == []


def test_several_files_and_a_window_of_time(tmp_path: Path) -> None:
    """Newest first; the window is half open."""
    log = Log()
    log.append(20)
    path = log.write(tmp_path)
    write_index(path, log.records[:10], slots=5, items=20, name="20231114221320000")
    write_index(path, log.records[10:], slots=5, items=20, name="20231114221330000")
    with broker.open(path, read_only=True) as store:
        for number in (0, 9, 10, 19):
            stored_ms = START_MS + 1000 * number
            key = f"key-{number}"
            assert len(store.by_key("orders", key)) == 1
            assert len(store.by_key("orders", key, stored_ms, stored_ms + 1)) == 1
            assert store.by_key("orders", key, stored_ms + 1) == []
            assert store.by_key("orders", key, None, stored_ms) == []


def test_a_lookup_that_finds_its_file_whole_does_not_sleep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for a moment of length zero either: Linux takes up to a tenth of a millisecond for it, for each file."""
    log = Log()
    log.append(20)
    path = log.write(tmp_path)
    write_index(path, log.records, slots=5, items=20)
    monkeypatch.setattr("broker.store.read.index.time.sleep", lambda _s: pytest.fail("it slept"))
    with broker.open(path, read_only=True) as store:
        assert len(store.by_key("orders", "key-7")) == 1


def test_a_key_that_only_shares_the_hash(tmp_path: Path) -> None:
    """ "Aa" and "BB" have one hash in Java: the record decides."""
    log = Log()
    for key in ("Aa", "BB"):
        (made,) = log.append(1)
        changed = replace(made, properties=b"KEYS\x01%s\x02UNIQ_KEY\x01xxxx\x02" % key.encode())
        del log.data[made.commitlog_offset :]
        log.data += encode(changed)
        log.records[-1] = changed
    path = log.write(tmp_path)
    write_index(path, log.records, slots=5, items=20)
    with broker.open(path, read_only=True) as store:
        assert [message.commitlog_offset for message in store.by_key("orders", "Aa")] == [0]
        assert [message.keys for message in store.by_key("orders", "BB")] == [("BB",)]


def test_the_signed_hash_of_3_0(tmp_path: Path) -> None:
    log = Log()
    log.append(40)
    path = log.write(tmp_path)
    index = write_index(path, log.records, slots=5, items=60)
    raw = bytearray(index.read_bytes())
    negative = 0
    for number in range(40):
        at = item_at(number + 1, 5)
        raw[at : at + 4] = key_hash_3_0("orders", f"key-{number}").to_bytes(4, "big", signed=True)
        negative += IndexItem.unpack_from(raw, at).key_hash < 0
    assert 0 < negative < 40
    index.write_bytes(raw)
    with broker.open(path, read_only=True) as store:
        for number in range(40):
            assert len(store.by_key("orders", f"key-{number}")) == 1


def test_a_chain_that_runs_wild_ends(tmp_path: Path) -> None:
    """An item that names itself or a newer one ends the chain, as in RocketMQ."""
    log = Log()
    log.append(3)
    path = log.write(tmp_path)
    index = write_index(path, log.records, slots=1, items=20)
    raw = bytearray(index.read_bytes())
    at = item_at(2, 1) + 16
    raw[at : at + 4] = (3).to_bytes(4, "big")
    index.write_bytes(raw)
    with broker.open(path, read_only=True) as store:
        assert len(store.by_key("orders", "key-2")) == 1
        assert store.by_key("orders", "key-0") == []
