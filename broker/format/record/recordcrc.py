"""RocketMQ's CRC of a whole record: the property `__CRC32#`, always the last 20 bytes of the record that carries it.

It covers every byte of the record before itself, the body's CRC and the final offsets and store time included. RocketMQ
writes it only with `enabledAppendPropCRC` (off by default, since 5.2.0) and compares it only with `forceVerifyPropCRC`.
Our own records always carry it, so that any flipped bit in them is found.
"""

from __future__ import annotations

from broker.errors import CorruptRecord
from broker.format import properties as names

RECORD_CRC_SIZE = 20  # `__CRC32#`, 0x01, ten digits, 0x02
RECORD_CRC_MARK = names.CRC32.encode() + b"\x01"
"""How the item begins."""
_ZERO = RECORD_CRC_MARK + b"0" * 10 + b"\x02"


def record_crc_item(crc: int) -> bytes:
    """The property that states a record's CRC.

    Quirk (5.2.0+): the ten digits stand in reverse, the least significant first, filled up with zeros.
    RocketMQ: MessageDecoder.createCrc32 (5.3.3).
    """
    return RECORD_CRC_MARK + f"{crc:010d}"[::-1].encode() + b"\x02"


def record_crc_reserve(properties: bytes) -> bytes:
    """Properties with room for the record's CRC as the last item, after any older one was taken out.

    RocketMQ: MessageUtils.deleteProperty, MessageExtEncoder.encode (5.3.3).
    """
    kept = b"\x02".join(item for item in properties.split(b"\x02") if not item.startswith(RECORD_CRC_MARK))
    if kept and not kept.endswith(b"\x02"):
        kept += b"\x02"
    return kept + _ZERO


def sound_record_crc(properties: bytes) -> int | None:
    """The CRC that the last property states for the record; None when there is none, or a damaged one."""
    if properties[-RECORD_CRC_SIZE:-11] == RECORD_CRC_MARK:
        digits = properties[-11:-1]
        if digits.isdigit() and properties.endswith(b"\x02"):
            return int(digits[::-1])
    return None


def stated_record_crc(properties: bytes) -> int | None:
    """The CRC that the last property states for the record; None when there is none.

    Raises CorruptRecord when that property is damaged.
    """
    crc = sound_record_crc(properties)
    if crc is not None:
        return crc
    if fault := record_crc_fault(properties):
        raise CorruptRecord(fault)
    return None


def record_crc_fault(properties: bytes) -> str | None:
    """A sentence when the last property is a damaged record CRC; None when it is a sound one or something else.

    An item with one wrong byte is a damaged CRC, not another property: else a flipped bit in its name would switch the
    check off.
    """
    item = properties[-RECORD_CRC_SIZE:]
    if (item[:4] != _ZERO[:4] and item[4:8] != _ZERO[4:8]) or len(item) != RECORD_CRC_SIZE:
        return None
    wrong = sum(byte != zero for byte, zero in zip(item[:9] + item[19:], RECORD_CRC_MARK + b"\x02", strict=True))
    wrong += sum(not 48 <= digit <= 57 for digit in item[9:19])
    return "the property that holds the record's CRC is damaged" if wrong == 1 else None
