"""RocketMQ's JSON: what fastjson writes is not always JSON.

    {0:"127.0.0.1:10911"}                                      integer keys without quotes
    {{"brokerName":"b","queueId":0,"topic":"t"}:{...}}         keys that are objects

RocketMQ: RemotingSerializable (5.3.3).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from broker.errors import CorruptRecord, ProtocolError
from broker.format import config

BODY_BYTES_MAX = 4 << 20
DEPTH_MAX = 64
MARKS_MAX = 1 << 17  # quotes, commas, brackets, signs, escapes and numbers: a body is read in some 50 ms
_MARKS = (b'"', b",", b"[", b"{", b"-", b"\\")
_DIGITS = bytes(48 if 48 <= byte <= 57 else 32 for byte in range(256))


class ObjectMap(list[tuple[Mapping[str, Any], Any]]):
    """Pairs of a key, which is an object, and a value: written as fastjson writes a map with such keys."""


def dumps(value: Any, *, quote_numbers: bool = False) -> bytes:
    """A value as fastjson writes it; `quote_numbers` gives integer keys quotes, as JSON demands."""
    return _text(value, quote_numbers=quote_numbers).encode("utf-8", "replace")


def _text(value: Any, *, quote_numbers: bool) -> str:
    if isinstance(value, ObjectMap):
        pairs = ((_text(key, quote_numbers=True), inner) for key, inner in value)
    elif isinstance(value, Mapping):
        pairs = (
            (str(key) if isinstance(key, int) and not quote_numbers else json.dumps(str(key), ensure_ascii=False), one)
            for key, one in value.items()
        )
    elif isinstance(value, list | tuple):
        return "[" + ",".join(_text(one, quote_numbers=quote_numbers) for one in value) + "]"
    else:
        return json.dumps(value, ensure_ascii=False)
    return "{" + ",".join(f"{key}:{_text(inner, quote_numbers=quote_numbers)}" for key, inner in pairs) + "}"


def loads(body: bytes) -> Any:
    """The value of a JSON body; unquoted integer keys become text. Raises ProtocolError for anything else."""
    if len(body) > BODY_BYTES_MAX:
        raise ProtocolError(f"a JSON body has at most {BODY_BYTES_MAX} bytes, not {len(body)}")
    numbers = body.translate(_DIGITS).count(b" 0")
    if numbers + sum(map(body.count, _MARKS)) > MARKS_MAX:
        raise ProtocolError(f"a JSON body has at most {MARKS_MAX} quotes, commas, brackets and numbers")
    try:
        value = config.loads(body)
        if b"\\u" in body:  # half a surrogate pair is legal JSON, and no text
            json.dumps(value, ensure_ascii=False).encode()
    except CorruptRecord as error:
        raise ProtocolError(f"the body is {error.reason}") from None
    except UnicodeError:
        raise ProtocolError("the body holds half a surrogate pair, which UTF-8 cannot write") from None
    except RecursionError:
        raise ProtocolError(f"the body is nested more than {DEPTH_MAX} deep") from None
    if not _is_flat(value, DEPTH_MAX):
        raise ProtocolError(f"the body is nested more than {DEPTH_MAX} deep")
    return value


def _is_flat(value: Any, depth: int) -> bool:
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, list):
        return True
    return depth > 0 and all(_is_flat(one, depth - 1) for one in value)


def loads_object(body: bytes) -> dict[str, Any]:
    """The same for a body that must be an object."""
    value = loads(body)
    if not isinstance(value, dict):
        raise ProtocolError("the body is not a JSON object")
    return value
