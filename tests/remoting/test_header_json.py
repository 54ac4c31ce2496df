"""Headers by msgspec and by json: the same commands, the same bytes, the same refusals."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from broker.errors import ProtocolError
from broker.remoting import header_json
from broker.remoting.command import EXT_FIELDS_MAX, RemotingCommand, decode

TEXT = st.text(max_size=8) | st.sampled_from(["a\x01b\x02", '\x7f\u2028/\\"', "\U0001f600", "\ud800", "\n\t\b\f\r\0"])
VALUES = st.one_of(
    TEXT, st.none(), st.booleans(), st.integers(-(1 << 33), 1 << 33), st.floats(), st.just([]), st.just({})
)
NAMES = ["code", "opaque", "flag", "version", "language", "remark", "serializeTypeCurrentRPC"]
HEADERS = st.fixed_dictionaries(
    {},
    optional={
        **{name: st.one_of(st.integers(-5, 400), VALUES) for name in NAMES[:4]},
        **dict.fromkeys(NAMES[4:], VALUES),
        "extFields": st.one_of(st.dictionaries(TEXT, TEXT), st.dictionaries(TEXT, VALUES), VALUES),
        "unknown": VALUES,
    },
)


def read(raw: bytes) -> RemotingCommand | str:
    try:
        return decode(struct.pack(">i", len(raw)) + raw + b"body")
    except ProtocolError:
        return "refused"


def both(raw: bytes) -> tuple[Any, Any]:
    fast = read(raw)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(header_json, "_decode", None)
        return fast, read(raw)


@given(header=HEADERS, is_ascii=st.booleans())
def test_both_read_the_same(header: dict[str, Any], is_ascii: bool) -> None:
    fast, slow = both(json.dumps(header, ensure_ascii=is_ascii).encode("utf-8", "surrogatepass"))
    assert fast == slow


@given(
    raw=st.binary(max_size=40)
    | st.text(alphabet='{}[]",:\\u0123456789truefalsn.e-+ codfg\x01', max_size=60).map(str.encode)
)
@example(raw=b'{"code":1.0}')
@example(raw=b'{"code":01}')
@example(raw=b'{"code":1,"code":2}')
@example(raw=b'{"x":"\xff"}')
@example(raw=b'{"extFields":{"a":"1","a":"2"}}')
@example(raw=b'{"c\\u006fde":5}')
@example(raw=b'{"remark":"\\ud800"}')
@example(raw=b'\xef\xbb\xbf{"code":1}')
@example(raw=b'{"x":' + b"[" * 5000 + b"]" * 5000 + b"}")
def test_both_refuse_the_same(raw: bytes) -> None:
    fast, slow = both(raw)
    assert fast == slow


def test_too_many_fields_are_refused_by_both() -> None:
    raw = json.dumps({"extFields": {str(number): "x" for number in range(EXT_FIELDS_MAX + 1)}}).encode()
    assert both(raw) == ("refused", "refused")


@given(ext=st.dictionaries(TEXT, TEXT), remark=st.none() | TEXT, code=st.integers(-(1 << 31), (1 << 31) - 1))
def test_both_write_the_same(ext: dict[str, str], remark: str | None, code: int) -> None:
    command = RemotingCommand(code, 7, 1, ext, b"body", remark)
    fast = command.encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(header_json, "_encode", None)
        assert fast == command.encode()


def test_a_plain_header_is_read_by_msgspec() -> None:
    """Else the comparisons would compare json with itself."""
    pytest.importorskip("msgspec")
    made = RemotingCommand(10, 7, ext={"a": "ü\x01"}).encode()
    (length,) = struct.unpack(">i", made[4:8])
    plain = header_json.read_header(made[8 : 8 + length])
    assert plain is not None
    assert (plain.code, plain.opaque, plain.ext_fields) == (10, 7, {"a": "ü\x01"})
    assert header_json.write_header({"code": 1}) == b'{"code":1}'
