"""What tells an end from a true copy of its half message, and what does not."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from broker.format import properties
from broker.format.commitlog import Record, encode, make_record
from broker.format.java import Host
from broker.format.topics import HALF_TOPIC
from broker.transaction.events import EventKind
from recovery.scan.records import Records
from recovery.transactions.fingerprint import difference, fingerprints

SAID = {"KEYS": "k", "PGROUP": "payer", "REAL_TOPIC": "Orders", "REAL_QID": "3", "orderId": "o1"}
HALF = make_record(
    HALF_TOPIC,
    b"body",
    properties.encode(SAID),
    born_host=Host.parse("192.168.7.21:40392"),
    store_host=Host.parse("10.0.3.4:10911"),
    born_timestamp_ms=1_795_245_196_254,
    store_timestamp_ms=1_795_245_196_300,
    flag=77,
)
END = dataclasses.replace(
    HALF, topic="Orders", queue_id=3, queue_offset=9, sys_flag=8, store_timestamp_ms=1_795_245_199_000
)


def both(half: Record, end: Record, *, record_crc: tuple[bool, bool] = (False, False)) -> tuple[Records, Records]:
    parts = [encode(record, record_crc=crc) for record, crc in zip((half, end), record_crc, strict=True)]
    window = np.frombuffer(b"".join(parts), np.uint8)
    records = Records(window, 0, np.array([0, len(parts[0])]))
    return records.take(slice(0, 1)), records.take(slice(1, 2))


def prints(half: Records, end: Records) -> tuple[int, int]:
    kinds = (EventKind.HALF, EventKind.COMMITTED)
    numbers = [fingerprints(part, np.array([kind], np.uint8))[0] for part, kind in zip((half, end), kinds, strict=True)]
    return int(numbers[0]), int(numbers[1])


@pytest.mark.parametrize("record_crc", [(False, False), (True, True), (True, False), (False, True)])
def test_a_copy_has_the_same_number(record_crc: tuple[bool, bool]) -> None:
    half, end = both(HALF, END, record_crc=record_crc)
    first, second = prints(half, end)
    assert first == second
    assert difference(half, end) == ""


@pytest.mark.parametrize(
    "stored",
    [
        properties.encode(dict(reversed(SAID.items())), java_order_capacity=None),
        properties.encode(SAID).removesuffix(b"\x02"),  # 4.9.1 to 5.1
    ],
)
def test_another_spelling_is_the_same_copy(stored: bytes) -> None:
    half, end = both(HALF, dataclasses.replace(END, properties=stored))
    first, second = prints(half, end)
    assert first == second
    assert difference(half, end) == ""


def test_an_item_without_value_is_no_difference() -> None:
    """The broker drops it from the copy; the numbers differ, what both records mean does not."""
    half, end = both(dataclasses.replace(HALF, properties=HALF.properties + b"empty\x01\x02"), END)
    assert difference(half, end) == ""


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("flag", 78),
        ("born_timestamp_ms", 1_795_245_196_255),
        ("born_host", Host.parse("192.168.7.20:40392")),
        ("store_host", Host.parse("10.0.3.4:10910")),
        ("reconsume_times", 1),
        ("queue_id", 2),
        ("sys_flag", 9),
    ],
)
def test_a_changed_field_is_named(field: str, value: object) -> None:
    half, end = both(HALF, dataclasses.replace(END, **{field: value}))  # type: ignore[arg-type]
    first, second = prints(half, end)
    assert first != second
    assert field.removesuffix("_host") in difference(half, end)


def test_every_flipped_bit_of_the_properties_changes_the_number() -> None:
    for at in range(len(END.properties)):
        for bit in range(8):
            changed = bytearray(END.properties)
            changed[at] ^= 1 << bit
            first, second = prints(*both(HALF, dataclasses.replace(END, properties=bytes(changed))))
            assert first != second, (at, bit)


def test_a_delayed_commit_is_a_copy_of_its_half() -> None:
    """It lies in the schedule topic, in the queue of its level; where consumers will find it is the same."""
    half = dataclasses.replace(HALF, topic="Orders", queue_id=3, sys_flag=4, queue_offset=7)
    end = dataclasses.replace(half, topic="SCHEDULE_TOPIC_XXXX", queue_id=2, sys_flag=8)
    for number, fields in ((3, ""), (1, "queue_id")):
        said = properties.encode({**SAID, "REAL_TOPIC": "Orders", "REAL_QID": str(number)})
        pair = both(dataclasses.replace(half, properties=said), dataclasses.replace(end, properties=said))
        kinds = (EventKind.PREPARED, EventKind.COMMITTED)
        first, second = (
            fingerprints(part, np.array([kind], np.uint8))[0] for part, kind in zip(pair, kinds, strict=True)
        )
        assert bool(first == second) is (fields == "")
        assert difference(*pair) == fields
