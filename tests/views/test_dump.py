"""Dumps: every record in its place, every byte with its name, damage shown and passed over."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from broker.format.commitlog import encode
from broker.format.statetable import Slot
from recovery.humanize import count, moment, printable, size, span
from recovery.views.dump_commitlog import DumpSelection, dump_commitlog
from recovery.views.hexdump import lines, record_fields
from tests.cli.command import command
from tests.scan.small_broker import V3, V5, V5_CRC, SmallBroker
from tests.scan.small_stores import build

Capture = pytest.CaptureFixture[str]


def dump(capsys: Capture, store: Path, *words: Any) -> list[dict[str, Any]]:
    found = json.loads(command(capsys, "dump", store, *words, "--json").out)
    assert isinstance(found, list)
    return found


@pytest.fixture(params=[V3, V5, V5_CRC], ids=lambda kind: kind.name)
def made(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[SmallBroker, Path]:
    return build(request.param, tmp_path / "store"), tmp_path / "store"


def test_every_record_is_there(made: tuple[SmallBroker, Path], capsys: Capture) -> None:
    """In order, with what it holds; blanks between the segments."""
    broker, store = made
    found = dump(capsys, store, "--hex")
    records = [entry for entry in found if entry["kind"] == "record"]
    assert [entry["commitlog_offset"] for entry in records] == [one.commitlog_offset for one in broker.records]
    for entry, one in zip(records, broker.records, strict=True):
        assert entry["topic"] == one.topic
        assert one.property_map.items() <= entry["properties"].items()  # a record CRC comes on top
        raw = bytes.fromhex(entry["hex"])
        assert raw == broker.log[one.commitlog_offset : one.commitlog_offset + len(raw)]
    assert [entry["commitlog_offset"] for entry in found if entry["kind"] == "blank"] == broker.blanks


def test_what_each_record_says(tmp_path: Path, capsys: Capture) -> None:
    """The event of each, with the half message that it means."""
    build(V3, tmp_path / "three")
    found = dump(capsys, tmp_path / "three")
    ends = {entry["half_offset"]: entry["says"] for entry in found if "half_offset" in entry}
    prepared = {entry["commitlog_offset"] for entry in found if entry.get("says") == "prepared"}
    assert set(ends) <= prepared
    assert ends[0] == "committed"
    assert "redelivered" in {entry.get("says") for entry in found}  # they say 0, as the commit of the first does
    build(V5, tmp_path / "five")
    said = {entry.get("says") for entry in dump(capsys, tmp_path / "five")}
    assert {"half", "op", "committed", "parked", "plain"} <= said


def test_selections(made: tuple[SmallBroker, Path], capsys: Capture) -> None:
    """From, to, limit, topic and key."""
    broker, store = made
    offsets = [one.commitlog_offset for one in broker.records]

    def chosen(*words: Any) -> list[int]:
        return [entry["commitlog_offset"] for entry in dump(capsys, store, *words) if entry["kind"] == "record"]

    assert chosen("--from", offsets[3], "--to", offsets[6]) == offsets[3:6]
    assert chosen("--from", offsets[3] + 1, "--limit", 2) == offsets[4:6]
    assert chosen("--limit", 0) == []
    assert chosen("--from", broker.records[-1].commitlog_offset + 1) == []
    keyed = [one.commitlog_offset for one in broker.records if "k-1" in one.property_map.get("KEYS", "").split()]
    assert chosen("--key", "k-1") == keyed
    topic = broker.records[-1].topic
    wanted = [one for one in broker.records if topic in (one.topic, one.property_map.get("REAL_TOPIC"))]
    assert set(chosen("--topic", topic)) <= {one.commitlog_offset for one in wanted}
    assert {one.commitlog_offset for one in broker.records if one.topic == topic} <= set(chosen("--topic", topic))
    assert chosen("--key", "no such key") == []


def test_damage_stands_in_its_place(tmp_path: Path, capsys: Capture) -> None:
    """A record that is none, one with a wrong CRC, a torn tail: each shown where it lies, and all the rest."""
    broker = build(V5, tmp_path / "store")
    none, wrong, torn = (broker.records[number] for number in (2, 5, -1))
    for one, at in ((none, 4), (wrong, 88), (torn, 0)):
        position = one.commitlog_offset + at
        path = tmp_path / "store" / "commitlog" / f"{position // 4096 * 4096:020}"
        raw = bytearray(path.read_bytes())
        raw[position % 4096] ^= 0xFF
        path.write_bytes(raw)
    found = dump(capsys, tmp_path / "store")
    offsets = [entry["commitlog_offset"] for entry in found]
    assert offsets == sorted(offsets)
    by_offset = {entry["commitlog_offset"]: entry for entry in found}
    assert by_offset[none.commitlog_offset]["kind"] == "corrupt-region"
    assert "CRC" in by_offset[wrong.commitlog_offset]["damage"]
    assert by_offset[torn.commitlog_offset]["kind"] == "torn-tail"
    assert len([entry for entry in found if entry["kind"] == "record"]) == len(broker.records) - 2
    text = command(capsys, "dump", tmp_path / "store", "--hex").out
    assert f"{none.commitlog_offset:>12}  !! corrupt-region: no record begins here" in text


@pytest.mark.parametrize("kind", [V3, V5, V5_CRC], ids=lambda kind: kind.name)
def test_hex_names_every_byte_once(kind: Any, tmp_path: Path) -> None:
    """The fields of a record, laid side by side, are the record."""
    for one in build(kind, tmp_path / "store").records:
        raw = encode(one)
        fields = list(record_fields(raw, one.commitlog_offset))
        assert b"".join(field.raw for field in fields) == raw
        assert [field.at for field in fields] == list(
            itertools.accumulate((len(field.raw) for field in fields[:-1]), initial=one.commitlog_offset)
        )
        names = [field.name for field in fields]
        assert names[:3] == ["total_size", "magic", "body_crc"]
        assert names.count("property") == raw.count(2, fields[names.index("property")].at - one.commitlog_offset)


def test_hex_looks_as_documented(tmp_path: Path) -> None:
    """Place, bytes, name, meaning."""
    one = build(V5, tmp_path / "store").records[0]
    shown = list(lines(record_fields(encode(one), 0)))
    length = len(encode(one))
    assert shown[0].split() == ["0", *length.to_bytes(4, "big").hex(" ").split(), "total_size", str(length)]
    assert shown[1] == "           4  da a3 20 a7              magic                        V1"
    assert any(line.endswith(f"{one.store_timestamp_ms}  {moment(one.store_timestamp_ms)}") for line in shown)
    assert any("store_address                10.0.3.4" in line for line in shown)


def test_queues_tables_and_logs(tmp_path: Path, capsys: Capture) -> None:
    """The units and slots are those that the broker wrote, with their numbers."""
    broker = build(V3, tmp_path / "store")
    for (topic, queue_id), units in broker.queues.items():
        found = dump(capsys, tmp_path / "store", "consumequeue", f"{topic}/{queue_id}")
        assert [entry["number"] for entry in found] == list(range(len(units)))
        assert [entry["commitlog_offset"] for entry in found] == [unit.commitlog_offset for unit in units]
    redo = dump(capsys, tmp_path / "store", "redolog")
    assert [entry["tags_code"] for entry in redo] == [unit.tags_code for unit in broker.redo_log]
    table = dump(capsys, tmp_path / "store", "statetable", "--from", 1, "--limit", 2)
    assert [(entry["number"], entry["state"]) for entry in table] == [(n, broker.table[n].state) for n in (1, 2)]
    items = [entry for entry in dump(capsys, tmp_path / "store", "index") if entry["kind"] == "item"]
    assert sorted(entry["key_hash"] for entry in items) == sorted(code for code, _, _ in broker.indexed)
    keyed = dump(capsys, tmp_path / "store", "index", "--topic", "Orders", "--key", "k-1")
    assert [entry["commitlog_offset"] for entry in keyed if entry["kind"] == "item"]


def test_holes_in_a_table_are_shown(tmp_path: Path, capsys: Capture) -> None:
    """Unused slots between used ones, and a state that there is none of."""
    build(V3, tmp_path / "store")
    path = next((tmp_path / "store" / "transaction" / "statetable").iterdir())
    raw = bytearray(path.read_bytes())
    raw[24:48] = bytes(24)
    raw[2 * 24 + Slot.OFFSET["state"] + 3] = 99
    path.write_bytes(raw)
    kinds = [entry["kind"] for entry in dump(capsys, tmp_path / "store", "statetable")]
    assert kinds[:3] == ["slot", "unused", "damaged"]
    assert "!! 1 unused value" in command(capsys, "dump", tmp_path / "store", "statetable").out


def test_small_files(golden: Callable[[str], Path], capsys: Capture) -> None:
    store = golden("rocketmq-5.3.3-clean")
    offsets = json.loads(command(capsys, "dump", store, "config", "consumerOffset", "--json").out)
    assert "offsetTable" in offsets
    assert "topics.json" in json.loads(command(capsys, "dump", store, "config", "--json").out)
    names = [next(iter(entry)) for entry in dump(capsys, store, "checkpoint")]
    assert names[0] == "commitlog_timestamp_ms"
    text = command(capsys, "dump", store, "config", "topics").out
    assert json.loads(text.partition("\n")[2])


def test_a_dump_reads_no_more_than_it_shows(golden: Callable[[str], Path]) -> None:
    """Entries come one by one: the first does not wait for the last."""
    entries = dump_commitlog(golden("rocketmq-5.3.3-clean"), DumpSelection(limit=1))
    assert next(entries).values["commitlog_offset"] == 0
    assert next(entries, None) is None


def test_foreign_text_cannot_act_on_the_terminal(tmp_path: Path, capsys: Capture) -> None:
    """Escape sequences, line feeds and text that turns around are shown, not obeyed."""
    broker = SmallBroker(V5)
    broker.append("plain", "Orders", b"x", {"KEYS": "\x1b[2J\u202egnorw\n\x07", "TAGS": "[red]"})
    (tmp_path / "store").mkdir()
    broker.write(tmp_path / "store")
    for words in ((), ("--hex",)):
        out = command(capsys, "dump", tmp_path / "store", *words).out
        assert not {"\x1b", "\x07", "\u202e"} & set(out)
        assert "\\x1b[2J\\u202egnorw\\x0a\\x07" in out
        assert "[red]" in out


def test_wording() -> None:
    assert [size(n) for n in (0, 1023, 1024, 3 << 30, 5 << 40, 5000 << 40)] == [
        "0 B", "1,023 B", "1.0 KiB", "3.0 GiB", "5.0 TiB", "5000.0 TiB",
    ]  # fmt: skip
    assert [span(s) for s in (0.0123, 1, 61, 3600, 90000)] == ["12 ms", "1.0 s", "1 min 1 s", "1 h 0 min", "1 d 1 h"]
    assert (count(1, "copy", "copies"), count(2, "copy", "copies"), count(0, "unit")) == (
        "1 copy",
        "2 copies",
        "0 units",
    )
    assert moment(0) == "1970-01-01 00:00:00.000"
    assert moment(1 << 62) == f"{1 << 62} ms"
    assert printable("a\tb\x7f\udcff\u2028\u061cé") == "a\\x09b\\x7f\\udcff\\u2028\\u061cé"
