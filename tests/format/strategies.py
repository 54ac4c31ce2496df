"""Hypothesis strategies for what the store holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from broker.format import config, properties
from broker.format.checkpoint import Checkpoint
from broker.format.commitlog import MAGIC_V2, Record, RecordBorn, RecordHead, RecordMiddle, RecordStore, make_record
from broker.format.consumequeue import BatchUnit, ExtUnit, Unit
from broker.format.index import IndexHeader, IndexItem
from broker.format.java import Host
from broker.format.kinds.rocksdb_queue import OffsetValue, QueueValue
from broker.format.kinds.timer import TimerCheck, TimerSlot, TimerUnit
from broker.format.layout import Layout
from broker.format.record import body
from broker.format.record.innerbatch import InnerHead, InnerTail
from broker.format.statetable import Slot
from broker.format.sysflag import Compression, TransactionType, with_compression, with_transaction_type

BITS = {"i8": 8, "i16": 16, "i32": 32, "i64": 64}


def integers(type_name: str) -> st.SearchStrategy[int]:
    """Any value of i8, i16, i32 or i64."""
    half = 1 << BITS[type_name] - 1
    return st.integers(-half, half - 1)


def layouts(layout: type[Layout]) -> st.SearchStrategy[Any]:
    """Any value of a layout."""
    return st.builds(layout, **{name: integers(kind) for name, kind in layout.TYPE.items()})


hosts = st.builds(Host, st.binary(min_size=4, max_size=4) | st.binary(min_size=16, max_size=16), integers("i32"))
words = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=12)
property_maps = st.dictionaries(words, words, max_size=6)


@st.composite
def records(draw: st.DrawFn) -> Record:
    """Any record that RocketMQ could have written: V1 and V2, both address families, each compression."""
    kind = draw(st.sampled_from(Compression))
    record = make_record(
        draw(st.text(st.characters(codec="utf-8"), max_size=30)) * draw(st.sampled_from((1, 1, 1, 9))),
        body.compress(draw(st.binary(max_size=40)), kind),
        properties.encode(draw(property_maps)),
        born_host=draw(hosts),
        store_host=draw(hosts),
        born_timestamp_ms=draw(integers("i64")),
        store_timestamp_ms=draw(integers("i64")),
        queue_id=draw(integers("i32")),
        queue_offset=draw(integers("i64")),
        commitlog_offset=draw(integers("i64")),
        flag=draw(integers("i32")),
        sys_flag=with_transaction_type(with_compression(0, kind), draw(st.sampled_from(TransactionType))),
        reconsume_times=draw(integers("i32")),
        prepared_transaction_offset=draw(integers("i64")),
    )
    return replace(record, magic=MAGIC_V2) if draw(st.booleans()) else record


Codec = tuple[Callable[[bytes], Any], Callable[[Any], bytes]]
CODECS: dict[str, Codec] = {
    "topics.json": (config.decode_topics, config.encode_topics),
    "subscriptionGroup.json": (config.decode_subscription_groups, config.encode_subscription_groups),
    "consumerOffset.json": (config.decode_consumer_offsets, config.encode_consumer_offsets),
    "delayOffset.json": (config.decode_delay_offsets, config.encode_delay_offsets),
}

LAYOUTS: list[type[Layout]] = [
    *(RecordHead, RecordBorn, RecordStore, RecordMiddle, InnerHead, InnerTail),
    *(Unit, BatchUnit, ExtUnit, QueueValue, OffsetValue, TimerSlot, TimerUnit, TimerCheck),
    *(Slot, IndexHeader, IndexItem, Checkpoint),
]
