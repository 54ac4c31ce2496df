"""Frames and headers: what RocketMQ writes is read, what is written is read again, and any other bytes are refused."""

from __future__ import annotations

import json
import string

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from broker.errors import ProtocolError
from broker.remoting import command
from broker.remoting.codes import LanguageCode
from broker.remoting.command import HEADER_BYTES_MAX, RemotingCommand
from broker.remoting.frames import FRAME_BYTES_MAX, FrameSplitter

I32 = st.integers(-(1 << 31), (1 << 31) - 1)
TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
COMMANDS = st.builds(
    RemotingCommand,
    code=st.integers(-(1 << 15), (1 << 15) - 1),
    opaque=I32,
    flag=I32,
    ext=st.dictionaries(TEXT, TEXT.filter(bool), max_size=5),
    body=st.binary(max_size=50),
    remark=st.none() | TEXT.filter(bool),
    language=st.sampled_from([code.name for code in LanguageCode]),
    version=st.integers(0, (1 << 15) - 1),
)


def framed(header: bytes, body: bytes = b"", kind: int = 0) -> bytes:
    """A frame without its length."""
    return (kind << 24 | len(header)).to_bytes(4, "big") + header + body


@given(COMMANDS)
def test_what_is_written_is_read_again(made: RemotingCommand) -> None:
    assert command.decode(made.encode()[4:]) == made
    assert command.decode(made.encode_binary()[4:]) == made


@given(st.binary(max_size=200))
@example(framed(b'{"code":1e999}'))
@example(framed(b'{"extFields":{"a":[1]}}'))
@example(framed(b'{"remark":"\\ud800"}'))
@example(framed(b"[" * 100_000))
@example(framed(b'{"opaque":' + b"9" * 5000 + b"}"))
@example(framed(b"\0" * 21, kind=1))
@example(framed(b"x", kind=2))
@example(b"\x7f\xff\xff\xff")
def test_any_bytes_are_a_command_or_refused(raw: bytes) -> None:
    for kind in (b"", b"\0\0\0\x20", b"\x01\0\0\x20"):
        try:
            found = command.decode(kind + raw)
        except ProtocolError:
            continue
        found.encode()


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.integers() | TEXT, lambda x: st.dictionaries(TEXT, x)))
def test_any_json_is_a_header_or_refused(value: object) -> None:
    raw = json.dumps({"code": 11, "extFields": value, "language": value}).encode()
    try:
        found = command.decode(framed(raw))
    except ProtocolError:
        return
    assert all(isinstance(one, str) for one in found.ext.values())


def test_clients_write_more_and_less_than_the_fields() -> None:
    """The Go client writes an empty remark, others numbers as values, and what is missing is zero or absent."""
    raw = b'{"code":14,"remark":"","extFields":{"queueId":3,"x":true,"y":null},"later":[1],"language":"COBOL"}'
    found = command.decode(framed(raw, b"body"))
    assert (found.code, found.ext, found.body) == (14, {"queueId": "3", "x": "true"}, b"body")
    assert (found.opaque, found.flag, found.is_response, found.is_oneway) == (0, 0, False, False)


def test_a_header_has_a_limit() -> None:
    whole = framed(b'{"remark":"' + b"x" * HEADER_BYTES_MAX + b'"}')
    with pytest.raises(ProtocolError, match="at most"):
        command.decode(whole)


@given(st.lists(COMMANDS, max_size=4), st.data())
def test_frames_arrive_in_any_pieces(made: list[RemotingCommand], data: st.DataObject) -> None:
    stream, splitter, found = b"".join(one.encode() for one in made), FrameSplitter(), []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        found += splitter.feed(stream[:size])
        stream = stream[size:]
    assert [command.decode(frame) for frame in found] == made
    assert not splitter.held_bytes


@given(st.lists(st.binary(max_size=40), max_size=5))
def test_any_stream_is_frames_or_refused(pieces: list[bytes]) -> None:
    splitter = FrameSplitter()
    try:
        for piece in pieces:
            splitter.feed(piece)
    except ProtocolError:
        return
    assert splitter.held_bytes <= sum(map(len, pieces))


@pytest.mark.parametrize("length", [-1, 0, 3, FRAME_BYTES_MAX, 16 << 20, 0x47455420])  # the last: "GET "
def test_a_length_out_of_range_is_refused_before_its_bytes_arrive(length: int) -> None:
    with pytest.raises(ProtocolError):
        FrameSplitter().feed(length.to_bytes(4, "big", signed=length < 0))


def test_an_unknown_language_has_no_number() -> None:
    with pytest.raises(ProtocolError):
        RemotingCommand(1, language=string.ascii_letters).encode_binary()
