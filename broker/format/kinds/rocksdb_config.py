"""The RocksDB that holds topics, groups and positions together (`config/rdb`): what its keys and values are.

    1, number of the table, 2, length of a name, name                                -> 1, JSON
    1, 1, 2, length of the group, group, 1, length of the topic, topic, 1, queue id  -> queue offset

RocketMQ: ConfigHelper, TopicConfigManagerV2, ConsumerOffsetManagerV2 (5.4.0).
"""

from __future__ import annotations

import struct

from broker.errors import CorruptRecord

POSITIONS, TOPICS, GROUPS = 1, 3, 4  # the numbers of the tables
_TABLE, _DATA, _JSON = 1, 2, b"\x01"
_ROW, _SHORT, _INT, _LONG = struct.Struct(">bhb"), struct.Struct(">h"), struct.Struct(">i"), struct.Struct(">q")


def table_prefix(table: int) -> bytes:
    """How the keys of all rows of a table begin."""
    return _ROW.pack(_TABLE, table, _DATA)


def decode_name(key: bytes) -> str:
    """The name of a topic or a group. Raises CorruptRecord."""
    return _text(key, _ROW.size)[0]


def decode_position_key(key: bytes) -> tuple[str, str, int]:
    """(topic, group, queue id). Raises CorruptRecord."""
    group, end = _text(key, _ROW.size)
    topic, end = _text(key, end + 1)
    if len(key) != end + 1 + _INT.size:
        raise CorruptRecord(f"{key!r:.80} is not the key of a position")
    return topic, group, int(_INT.unpack_from(key, end + 1)[0])


def decode_position(value: bytes) -> int:
    """The queue offset to be consumed next. Raises CorruptRecord."""
    if len(value) != _LONG.size:
        raise CorruptRecord(f"a position has {len(value)} bytes, not {_LONG.size}")
    return int(_LONG.unpack(value)[0])


def json_of(value: bytes) -> bytes:
    """The JSON of a topic or a group. Raises CorruptRecord where it was written in another form."""
    if value[:1] != _JSON:
        raise CorruptRecord(f"the configuration holds a value of form {value[:1]!r}, not JSON")
    return value[1:]


def _text(key: bytes, at: int) -> tuple[str, int]:
    """A text behind its length, and where it ends."""
    if len(key) < at + _SHORT.size:
        raise CorruptRecord(f"{key!r:.80} is not a key of the configuration")
    end = at + _SHORT.size + int(_SHORT.unpack_from(key, at)[0])
    return key[at + _SHORT.size : end].decode("utf-8", "replace"), end
