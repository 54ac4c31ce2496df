"""`checkback find` and `export`: one damaged record stands in the way of no other."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import broker
from broker.format.commitlog import Record, RecordHead
from broker.format.index import IndexHeader
from broker.format.sysflag import INNER_BATCH
from broker.message import ReceivedMessage
from recovery.cli.terminal import output
from recovery.views.messages.export import export, exported
from recovery.views.messages.find import Progress, Query, find
from tests.cli.command import command
from tests.scan.small_broker import V5
from tests.scan.small_stores import TOPIC, build


def test_a_record_that_only_claims_to_be_a_batch_is_one_message(tmp_path: Path) -> None:
    """No CRC covers its sys_flag: a single bit there once ended every query of the store, whatever it asked for."""
    made, store = build(V5, tmp_path / "store"), str(tmp_path / "store")
    before = [(one.commitlog_offset, one.body) for one in find(store, Query(topic=TOPIC))]
    count = export(store, Query(topic=TOPIC), f"{tmp_path}/before.jsonl")
    plain = next(one for one in made.records if one.topic == TOPIC and one.sys_flag == 0)
    low_byte = plain.commitlog_offset + RecordHead.OFFSET["sys_flag"] + 3
    segment = tmp_path / "store" / "commitlog" / f"{low_byte // V5.segment_size * V5.segment_size:020}"
    raw = bytearray(segment.read_bytes())
    raw[low_byte % V5.segment_size] ^= INNER_BATCH
    segment.write_bytes(raw)
    assert [(one.commitlog_offset, one.body) for one in find(store, Query(topic=TOPIC))] == before
    assert not list(find(store, Query(topic="other")))
    assert export(store, Query(topic=TOPIC), f"{tmp_path}/after.jsonl") == count
    assert len(list(exported(f"{tmp_path}/after.jsonl"))) == count


def test_a_message_that_waits_for_its_delay_is_not_exported(tmp_path: Path) -> None:
    """It is in the broker's own topic, to which nothing is sent: replay refused the whole file for it."""
    build(V5, tmp_path / "store")
    lines = f"{tmp_path}/lines.jsonl"
    export(str(tmp_path / "store"), Query(topic=TOPIC), lines)
    messages = [one.message.topic for one in exported(lines)]
    assert messages
    assert set(messages) == {TOPIC}


def test_what_the_index_does_not_reach_is_found(tmp_path: Path) -> None:
    """A broker that was killed leaves the end of its log out of the index; a living one writes it a moment later."""
    path = tmp_path / "store"
    with broker.open(path, sync="os") as store:
        store.append(broker.Message(TOPIC, b"old", keys=["4711"]))
    (index,) = (path / "index").iterdir()
    behind = index.read_bytes()
    with broker.open(path, sync="os") as store:
        store.append(broker.Message(TOPIC, b"new", keys=["4711"]))
        store.append(broker.Message(TOPIC, b"another", keys=["4712"]))
    index.write_bytes(behind)
    assert [one.body for one in find(str(path), Query(key="4711"))] == [b"old", b"new"]
    assert [one.body for one in find(str(path), Query(key="4711", topic=TOPIC), limit=1)] == [b"old"]
    end = IndexHeader.OFFSET["end_commitlog_offset"] + 7
    index.write_bytes(behind[:end] + bytes([behind[end] ^ 1]) + behind[end + 1 :])
    assert [one.body for one in find(str(path), Query(key="4711"))] == [b"old", b"new"], "a flipped bit in its header"


def test_a_million_messages_of_one_key_are_not_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With their bodies they took as much memory as the log; what is printed first needs only the first."""
    with broker.open(tmp_path / "store", sync="os") as store:
        for number in range(6):
            store.append(broker.Message(TOPIC, b"%d" % number, keys=["hot"]))
    read: list[int] = []

    def counted(self: broker.Store, commitlog_offset: int) -> Record | None:
        read.append(commitlog_offset)
        return self.commitlog.read(commitlog_offset)

    monkeypatch.setattr(broker.Store, "record", counted)
    assert [one.body for one in find(f"{tmp_path}/store", Query(key="hot"), limit=2)] == [b"0", b"1"]
    assert len(set(read)) <= 4, "two, the next, and the last that the index reaches"


def test_json_is_printed_message_by_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A list of them was made first: of a million small messages it took 2 GB."""
    build(V5, tmp_path / "store")
    printed: list[str] = []

    def watched(path: str, query: Query, limit: int | None, progress: Progress) -> Iterator[ReceivedMessage]:
        for message in find(path, query, limit, progress):
            printed.append(capsys.readouterr().out)
            yield message

    monkeypatch.setattr("recovery.views.messages.find.find", watched)
    ran = command(capsys, "find", tmp_path / "store", "--topic", TOPIC, "--json")
    assert ran.code == 0
    assert all(printed[1:]), "each before the next was read"
    assert len(json.loads("".join([*printed, ran.out]))) == len(printed)


@pytest.mark.parametrize(
    "words", [("find", "--topic", TOPIC), ("export", "--topic", TOPIC), ("dump", "--key", "no such")]
)
def test_a_long_search_shows_how_far_it_is(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing was seen for minutes, on a log of some gigabytes. The bar is away wherever a line is printed."""
    build(V5, tmp_path / "store")
    verb, *options = words
    out = [tmp_path / "out"] if verb == "export" else []
    shown = io.StringIO()
    monkeypatch.setattr(shown, "isatty", lambda: True)
    monkeypatch.setattr(output, "_BAR_AFTER_S", -1)
    monkeypatch.setattr(output, "_BAR_EVERY_S", 0)
    monkeypatch.setattr(sys, "stderr", shown)
    found = command(capsys, verb, tmp_path / "store", *out, *options)
    assert "\x1b" not in found.out
    bars = shown.getvalue().split("\r\x1b[2K")
    assert "Reading" in bars[1]
    assert bars[-1] == ""
