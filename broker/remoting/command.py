"""One request or response, and its bytes.

    i32 length of what follows | i32: serialize type in the top byte, header length below | header | body

A header is JSON (type 0), or RocketMQ's binary form (type 1); both are read, JSON is written, as every client reads it.
RocketMQ: RemotingCommand, RocketMQSerializable (5.3.3).
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from typing import Any, NoReturn

from broker.errors import ProtocolError
from broker.remoting.codes import VERSION, LanguageCode
from broker.remoting.header_json import read_header, write_header

RESPONSE, ONEWAY = 1, 2  # bits of `flag`
JSON, BINARY = 0, 1  # serialize types
HEADER_BYTES_MAX = 256 << 10  # properties of 32 KiB, each character escaped, and the other fields
EXT_FIELDS_MAX = 512

_I32 = struct.Struct(">i")
_MARKS = struct.Struct(">ii")
_FIXED = struct.Struct(">hbhiii")  # code, language, version, opaque, flag, length of the remark
_I16 = struct.Struct(">h")
_INT_MIN, _INT_MAX = -(1 << 31), (1 << 31) - 1
_LANGUAGES = {code.value: code.name for code in LanguageCode}


@dataclass(slots=True)
class RemotingCommand:
    """A request or a response: its header, and its body as bytes."""

    code: int
    opaque: int = 0  # the requester's number of the request, which its response repeats
    flag: int = 0
    ext: dict[str, str] = field(default_factory=dict)
    body: bytes = field(default=b"", repr=False)
    remark: str | None = None
    language: str = "PYTHON"
    version: int = VERSION

    @property
    def is_response(self) -> bool:
        return bool(self.flag & RESPONSE)

    @property
    def is_oneway(self) -> bool:
        """Whether no response is wanted. Quirk (Go client 2.1): its one-way requests lack the bit."""
        return bool(self.flag & ONEWAY)

    def answer(
        self, code: int, remark: str | None = None, ext: dict[str, str] | None = None, body: bytes = b""
    ) -> RemotingCommand:
        """The response to this request."""
        return RemotingCommand(int(code), self.opaque, RESPONSE, ext or {}, body, remark)

    def encode(self) -> bytes:
        """The frame, with a JSON header."""
        header: dict[str, Any] = {
            "code": int(self.code), "extFields": self.ext, "flag": self.flag, "language": self.language,
            "opaque": self.opaque, "serializeTypeCurrentRPC": "JSON", "version": self.version,
        }  # fmt: skip
        if self.remark is not None:
            header["remark"] = self.remark
        raw = write_header(header) or _write(header).encode("utf-8", "replace")
        return _MARKS.pack(4 + len(raw) + len(self.body), JSON << 24 | len(raw)) + raw + self.body

    def encode_binary(self) -> bytes:
        """The frame, with a binary header. Raises ProtocolError for a language that has no number there."""
        if self.language not in LanguageCode.__members__:
            _bad(f"the language {self.language!r:.40} has no number in a binary header")
        remark = (self.remark or "").encode()
        items = b"".join(
            _I16.pack(len(name.encode())) + name.encode() + _I32.pack(len(value.encode())) + value.encode()
            for name, value in self.ext.items()
        )
        fixed = _FIXED.pack(
            self.code, LanguageCode[self.language], self.version, self.opaque, self.flag, len(remark)
        )  # fmt: skip
        raw = b"".join((fixed, remark, _I32.pack(len(items)), items))
        return _MARKS.pack(4 + len(raw) + len(self.body), BINARY << 24 | len(raw)) + raw + self.body


def decode(frame: bytes) -> RemotingCommand:
    """The command in a frame without its first four bytes, the length. Raises ProtocolError for any other bytes."""
    if len(frame) < 4:
        _bad(f"a frame of {len(frame)} bytes has no header")
    (mark,) = _I32.unpack_from(frame)
    kind, length = (mark >> 24) & 0xFF, mark & 0xFFFFFF
    if length > len(frame) - 4:
        _bad(f"a header of {length} bytes does not fit in a frame of {len(frame)}")
    if length > HEADER_BYTES_MAX:
        _bad(f"a header has at most {HEADER_BYTES_MAX} bytes, not {length}")
    header, body = frame[4 : 4 + length], frame[4 + length :]
    if kind == JSON:
        return _from_json(header, body)
    if kind == BINARY:
        return _from_binary(header, body)
    return _bad(f"serialize type {kind} is unknown")


def _from_json(header: bytes, body: bytes) -> RemotingCommand:
    plain = read_header(header)
    if plain is not None and len(plain.ext_fields or ()) <= EXT_FIELDS_MAX:
        return RemotingCommand(
            plain.code, plain.opaque, plain.flag, plain.ext_fields or {}, body, plain.remark, plain.language,
            plain.version,
        )  # fmt: skip
    try:
        root = _read(header.decode())
    except RecursionError:
        _bad("the header is nested too deeply")
    except ValueError:
        _bad("the header is not JSON")
    if not isinstance(root, dict):
        _bad("the header is not a JSON object")
    remark, language = root.get("remark"), root.get("language", "OTHER")
    made = RemotingCommand(
        _number(root, "code"), _number(root, "opaque"), _number(root, "flag"), _ext(root.get("extFields")), body,
        remark if isinstance(remark, str) else None, language if isinstance(language, str) else "OTHER",
        _number(root, "version"),
    )  # fmt: skip
    if b"\\u" in header:  # half a surrogate pair is legal JSON, and no text
        _check_encodable(made)
    return made


def _number(root: dict[str, Any], name: str) -> int:
    value = root.get(name, 0)
    if type(value) is not int or not _INT_MIN <= value <= _INT_MAX:
        _bad(f"{name} in the header is not an int")
    return int(value)


def _ext(fields: Any) -> dict[str, str]:
    """The extension fields as text: clients send numbers, too."""
    if fields is None:
        return {}
    if not isinstance(fields, dict) or len(fields) > EXT_FIELDS_MAX:
        _bad("extFields is not an object, or has too many members")
    found: dict[str, str] = {}
    for name, value in fields.items():
        if type(value) is str:
            found[name] = value
        elif isinstance(value, bool):
            found[name] = "true" if value else "false"
        elif isinstance(value, int | float):
            found[name] = str(value)
        elif value is not None:
            _bad("a member of extFields is neither text nor a number")
    return found


def _check_encodable(made: RemotingCommand) -> None:
    try:
        "".join((*made.ext, *made.ext.values(), made.remark or "", made.language)).encode()
    except UnicodeEncodeError:
        _bad("the header holds half a surrogate pair, which UTF-8 cannot write")


def _from_binary(header: bytes, body: bytes) -> RemotingCommand:
    try:
        code, language, version, opaque, flag, length = _FIXED.unpack_from(header)
        remark, at = _text(header, _FIXED.size, length)
        (length,) = _I32.unpack_from(header, at)
        end = at + 4 + length
        if length < 0 or end > len(header):
            _bad(f"{length} bytes of extension fields do not fit in the header")
        ext: dict[str, str] = {}
        at, number, items = at + 4, 0, header[:end]
        while at < end:
            number += 1  # those without a value, too
            if number > EXT_FIELDS_MAX:
                _bad("the header has too many extension fields")
            name, at = _text(items, at + 2, *_I16.unpack_from(items, at))
            value, at = _text(items, at + 4, *_I32.unpack_from(items, at))
            if value:  # Quirk: an empty value is read as none
                ext[name] = value
    except struct.error:
        _bad("the binary header ends too early")
    except UnicodeDecodeError:
        _bad("the binary header is not UTF-8")
    return RemotingCommand(code, opaque, flag, ext, body, remark or None, _LANGUAGES.get(language, "OTHER"), version)


def _text(header: bytes, at: int, length: int) -> tuple[str, int]:
    """A text of a length, and where it ends."""
    if length < 0 or at + length > len(header):
        _bad(f"a text of {length} bytes does not fit in the header")
    return header[at : at + length].decode(), at + length


def _bad(reason: str) -> NoReturn:
    raise ProtocolError(reason)


# Made once: json.loads and json.dumps make one for each call that has options.
_read = json.JSONDecoder(parse_constant=_bad).decode
_write = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
