"""`checkback find` and `export`: one damaged record stands in the way of no other."""

from __future__ import annotations

from pathlib import Path

from broker.format.commitlog import RecordHead
from broker.format.sysflag import INNER_BATCH
from recovery.views.messages.export import export, exported
from recovery.views.messages.find import Query, find
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
