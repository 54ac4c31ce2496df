"""Everything of a fixed size, and the small files: units, slots, checkpoint, op messages, names, flags."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import CorruptRecord, MessageRejected
from broker.format import checkpoint, consumequeue, redolog, statetable, sysflag, topics
from broker.format.checkpoint import Checkpoint
from broker.format.consumequeue import Unit
from broker.format.layout import Layout
from broker.format.record import opmessage
from broker.format.statetable import Slot
from broker.format.sysflag import Compression, TransactionType
from tests.format.strategies import LAYOUTS, integers, layouts

by_layout = pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__)


@by_layout
@given(data=st.data())
def test_layouts_round_trip(layout: type[Layout], data: st.DataObject) -> None:
    """By struct, by iteration and by NumPy, the value is the same."""
    value: Any = data.draw(layouts(layout))
    raw = value.pack()
    assert len(raw) == layout.SIZE == np.dtype(layout.DTYPE).itemsize
    assert layout.unpack_from(b"abc" + raw, 3) == value
    assert list(layout.iter_unpack(raw + raw + b"rest"[: layout.SIZE - 1])) == [value, value]
    row = np.frombuffer(raw, layout.DTYPE)[0]
    assert {name: int(row[name]) for name in layout.OFFSET} == {name: getattr(value, name) for name in layout.OFFSET}


@by_layout
@given(raw=st.binary(max_size=60), at=st.integers(-3, 60))
def test_any_bytes_hold_a_layout_or_are_corrupt(layout: type[Layout], raw: bytes, at: int) -> None:
    if 0 <= at <= len(raw) - layout.SIZE:
        assert layout.unpack_from(raw, at) == next(layout.iter_unpack(raw[at:]))
    else:
        with pytest.raises(CorruptRecord):
            layout.unpack_from(raw, at)


def test_a_layout_of_another_size_is_refused() -> None:
    with pytest.raises(TypeError, match="takes 20 bytes"):
        type("Wrong", (Layout,), {"__annotations__": Unit.__annotations__, "__module__": Unit.__module__}, size=19)


def test_golden_units() -> None:
    """A.7 and A.8 of the facts."""
    assert consumequeue.FILLER.pack().hex() == "00000000000000007fffffff0000000000000000"
    assert consumequeue.FILLER.is_filler
    assert not consumequeue.FILLER.is_end
    assert consumequeue.END.is_end
    redo = [redolog.prepared_unit(0, 614), redolog.end_unit(614, 177, 0), redolog.end_unit(791, 221, 0)]
    assert [unit.pack().hex() for unit in redo] == [
        "000000000000000000000266ffffffffffffffff",
        "0000000000000266000000b10000000000000000",
        "0000000000000317000000dd0000000000000000",
    ]
    assert [redolog.is_prepared(unit) for unit in redo] == [True, False, False]


def test_golden_slot() -> None:
    slot = Slot.unpack_from(bytes.fromhex("0000000000000000000002666b01015a7767d1630000000c"))
    assert slot == Slot(0, 614, 0x6B01015A, 2003292515, TransactionType.ROLLBACK)
    made = statetable.prepared_slot(0, 614, 0x6B01015A * 1000 + 999, "order_producer")
    assert made == Slot(0, 614, 0x6B01015A, 2003292515, TransactionType.PREPARED)
    assert not slot.is_end
    assert all(unused.is_end for unused in (Slot(0, 0, 0, 0, 0), Slot(-1, 5, 0, 0, 4), Slot(5, 5, 0, 0, 0)))
    assert statetable.prepared_slot(0, 91, (1 << 31) * 1000, "").store_time_s == -(1 << 31)


def test_default_file_sizes() -> None:
    sizes = (consumequeue.FILE_SIZE, redolog.FILE_SIZE, statetable.FILE_SIZE, checkpoint.FILE_SIZE)
    assert sizes == (6_000_000, 40_000_000, 48_000_000, 4096)
    assert [consumequeue.file_size(wanted) for wanted in (1, 20, 21, 6_000_000)] == [20, 20, 40, 6_000_000]


@given(integers("i64"))
def test_ext_addresses(code: int) -> None:
    """A hash is never an address; an address gives a position that is not negative."""
    if consumequeue.is_ext_address(code):
        assert consumequeue.ext_position(code) >= 0
        assert not -(1 << 31) <= code < 1 << 31
    assert not consumequeue.is_ext_address(consumequeue.tags_code("TagA"))
    assert consumequeue.tags_code("") == consumequeue.tags_code(None) == 0


def test_checkpoint() -> None:
    value = Checkpoint(10_000, 8_000, 7, 0, 99)
    raw = checkpoint.encode(value)
    assert len(raw) == 4096
    assert checkpoint.decode(raw) == value
    for size in (0, 24, 40, 4095, 4097):
        with pytest.raises(CorruptRecord):
            checkpoint.decode(bytes(size))


def test_op_messages() -> None:
    assert opmessage.decode(b"4,7,10,") == opmessage.decode(b"4,7,10") == (4, 7, 10)
    assert opmessage.decode(b"12") == (12,)
    assert opmessage.encode([4, 7, 10]) == b"4,7,10,"
    assert opmessage.encode([12], batched=False) == b"12"
    for wrong in ([], [-1]):
        with pytest.raises(ValueError):
            opmessage.encode(wrong)
    with pytest.raises(ValueError):
        opmessage.encode([1, 2], batched=False)


@given(st.lists(st.integers(0, (1 << 63) - 1), min_size=1))
def test_op_messages_round_trip(numbers: list[int]) -> None:
    assert opmessage.decode(opmessage.encode(numbers)) == tuple(numbers)
    assert opmessage.decode(opmessage.encode(numbers[:1], batched=False)) == (numbers[0],)


@given(st.binary(max_size=30) | st.text("0123456789,-+ ", max_size=30).map(str.encode))
def test_any_bytes_are_an_op_message_or_corrupt(raw: bytes) -> None:
    try:
        assert all(0 <= number < 1 << 63 for number in opmessage.decode(raw))
    except CorruptRecord:
        pass


@pytest.mark.parametrize("raw", [b"", b",", b"1,,2", b"-1", b"+1", b" 1", b"9223372036854775808", b"\xd9\xa1"])
def test_what_no_op_message_says(raw: bytes) -> None:
    with pytest.raises(CorruptRecord):
        opmessage.decode(raw)


@given(integers("i32"), st.sampled_from(TransactionType), st.sampled_from(Compression))
def test_flags(sys_flag: int, kind: TransactionType, compressed: Compression) -> None:
    with_type = sysflag.with_transaction_type(sys_flag, kind)
    assert sysflag.transaction_type(with_type) is kind
    assert with_type & ~0xC == sys_flag & ~0xC
    with_both = sysflag.with_compression(with_type, compressed)
    assert sysflag.compression(with_both) is compressed
    assert sysflag.transaction_type(with_both) is kind
    try:
        sysflag.compression(sys_flag)
    except CorruptRecord:
        assert sys_flag & 0x400


@pytest.mark.parametrize("name", ["T", "%RETRY%group-1_a|b", "x" * 127, "%RETRY%" + "x" * 248])
def test_legal_topics(name: str) -> None:
    topics.check_send_topic(name)


@pytest.mark.parametrize("name", ["", " ", "a b", "a/b", "..", "\xe9", "x\n", "x" * 128, "%RETRY%" + "x" * 249])
def test_illegal_topics(name: str) -> None:
    with pytest.raises(MessageRejected):
        topics.check_topic_name(name)


def test_system_topics() -> None:
    with pytest.raises(MessageRejected, match="the broker's own"):
        topics.check_send_topic(topics.HALF_TOPIC)
    assert topics.is_system_topic(topics.TIMER_TOPIC)
    assert not topics.is_system_topic("orders")
    assert (topics.retry_topic("g"), topics.dlq_topic("g")) == ("%RETRY%g", "%DLQ%g")


def test_delay_levels() -> None:
    delays_ms = topics.parse_delay_levels()
    assert (len(delays_ms), delays_ms[0], delays_ms[-1]) == (18, 1000, 7_200_000)
    assert topics.parse_delay_levels("2d") == [172_800_000]
    assert [topics.deliver_time_ms(level, 5) for level in (-1, 0, 1, 18, 19)] == [
        1005,
        1005,
        1005,
        7_200_005,
        7_200_005,
    ]
    for text in ("", "1", "s", "1x", "1s  2s", "\xb2s"):
        with pytest.raises(ValueError):
            topics.parse_delay_levels(text)
