"""From a value to the body of a message and back: by the topic's declaration, or by a handler's type hint.

    bytes                                   application/octet-stream
    str                                     text/plain; charset=utf-8
    dataclasses, pydantic, msgspec, dict …  application/json

A body that does not decode raises BodyError with the reason, and never reaches a handler.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import json
import math
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast, get_origin

from broker.app.cloud_events import content_type, schema_version
from broker.app.json_values import Build, builder, is_msgspec, is_pydantic, to_json
from broker.app.type_hints import alternatives, fields_of, is_alias, is_typed_dict, resolved
from broker.errors import BodyError, BrokerError, MessageRejected, shown

_STARS = b"*****"
OCTETS, TEXT, JSON = "application/octet-stream", "text/plain; charset=utf-8", "application/json"


@dataclass(frozen=True)
class BodyCodec:
    """How the values of a topic become bytes: for formats that checkback does not bring, such as Protocol Buffers.

    What `decode` raises goes to the dead letters with the message. Raises BrokerError for what is not a media type and
    two functions.
    """

    content_type: str
    """The media type that goes with each message, as application/x-protobuf; bodies of another are not decoded."""
    encode: Callable[[Any], bytes]
    """Makes the body of a value. What it raises comes out of the send."""
    decode: Callable[[bytes], Any]
    """Makes the value of a body."""

    def __post_init__(self) -> None:
        if not isinstance(cast(object, self.content_type), str) or not self.content_type:
            raise BrokerError(f"the content_type of a codec is a media type, as text, not {shown(self.content_type)}")
        for name in ("encode", "decode"):
            if not callable(getattr(self, name)):
                raise BrokerError(f"{name} of a codec is a function, not {shown(getattr(self, name))}")


@dataclass(frozen=True)
class TopicBody:
    """What the bodies of one topic are. `None` as the type: whatever is sent.

    `version` is that of the schema. A message of an older version goes through `upgrade(version, value)`, which returns
    the value (from JSON) as the current version has it; one of a newer version does not decode.
    """

    body_type: Any = None
    event_type: str = ""
    version: int | None = None
    upgrade: Callable[[int, Any], Any] | None = None
    codec: BodyCodec | None = None

    def __post_init__(self) -> None:
        if self.version is not None and (type(self.version) is not int or self.version < 1):
            raise BrokerError(f"the version of a schema is a whole number from 1 on, not {self.version!r:.60}")
        if not isinstance(self.event_type, str):
            raise BrokerError(f"the event_type of a topic is text, not {shown(self.event_type)}")
        if self.codec is not None and not isinstance(self.codec, BodyCodec):
            raise BrokerError(f"codec= takes a broker.BodyCodec(...), not {shown(self.codec)}")
        if self.upgrade is not None and not callable(self.upgrade):
            raise BrokerError(f"upgrade= takes a function upgrade(version, value), not {shown(self.upgrade)}")
        if self.upgrade is not None and (self.version is None or self.codec is not None):
            raise BrokerError("upgrade= goes with version=, and with bodies in JSON")
        if self.body_type is not None and self.codec is None:
            check_body_type(self.body_type)

    def encode(self, value: Any) -> tuple[bytes, str]:
        """(body, content type) of a value.

        Raises MessageRejected for a value of another type than the topic's, and for one that its handlers could not
        read: a field that is None where it must be a number, for example.
        """
        wanted, kind = self._wanted
        is_whole = kind is float and type(value) is int and self.codec is None  # as fields take it
        if kind is not None and not (is_whole or isinstance(value, kind)):
            raise MessageRejected(f"the topic takes {kind.__name__}, and this is {_other(kind, value)}: {value!r:.60}")
        if self.codec is not None:
            return self.codec.encode(value), self.codec.content_type
        if wanted is str or wanted is bytes:  # an enum of texts, too
            return encode(str.__str__(value) if wanted is str else bytes(value))
        body, media_type = encode(value)
        wanted = type(value) if wanted is None and is_pydantic(type(value)) else wanted
        if wanted is None:
            return body, media_type
        try:
            self._check_readable(value, body, media_type, wanted)
        except BodyError as error:
            again = to_json(value, round_trip=True) if media_type == JSON else body
            if again != body:
                with contextlib.suppress(BodyError):
                    self._check_readable(value, again, media_type, wanted)
                    return again, media_type
            if self.body_type is not None:
                text = f"the topic takes {_name(wanted)}, and its handlers could not read this one"
                raise MessageRejected(f"{text}: {error}") from None
        return body, media_type

    @functools.cached_property
    def _wanted(self) -> tuple[Any, type | None]:
        """The declared type, and the class that its values have; None where they may have several, or any."""
        wanted = resolved(self.body_type)
        if wanted is Any or wanted is object:
            return None, None
        kind = get_origin(wanted) or wanted
        if is_typed_dict(kind):
            return wanted, dict
        return wanted, kind if isinstance(kind, type) and kind is not types.UnionType else None

    def decode(self, body: bytes, properties: Mapping[str, str], hint: Any) -> Any:
        """The value in a body: of a handler's type, else of the topic's, else by its content type. Raises BodyError."""
        hint = resolved(hint)
        if hint is bytes:
            return body
        self._check_version(schema_version(properties))
        if self.codec is not None:
            return self._by_codec(self.codec, body, properties, hint)
        wanted = self._wanted[0] if hint is None else hint
        value, is_made = _read(body, content_type(properties), wanted)
        version = schema_version(properties)
        if self.upgrade is not None and version is not None and self.version is not None and version < self.version:
            try:
                value = self.upgrade(version, value)
            except Exception as error:
                raise BodyError(f"the body of version {version} was not upgraded: {_named(error)}") from error
        return value if is_made else _made(wanted, value)

    @staticmethod
    def _check_readable(value: Any, body: bytes, media_type: str, wanted: Any) -> None:
        """Raises BodyError for a body that does not decode, MessageRejected for one that lost a part of its value."""
        read, is_made = _read(body, media_type.partition(";")[0], wanted)
        found = read if is_made else _made(wanted, read)
        is_hidden = _STARS in body
        may_be_unlike = is_hidden or (is_pydantic(type(value)) and b"null" in body)
        if may_be_unlike and list(_unlike_json(value)) != list(_unlike_json(found)):
            lost = "a secret, for which pydantic writes stars" if is_hidden else "a float that JSON has not, as NaN"
            step = "let a field_serializer write get_secret_value(), or leave it out" if is_hidden else "send None"
            raise MessageRejected(f"the body of {type(value).__name__} has {lost}: {step}")
        if misread := _misread(wanted, value, found):
            step = "let the types of a union differ in JSON, as by a field kind: Literal['paid']"
            raise MessageRejected(f"the topic takes {_name(wanted)}, and its handlers would read {misread}: {step}")

    def _check_version(self, version: int | None) -> None:
        if version is not None and self.version is not None and version > self.version:
            raise BodyError(f"the body has schema version {version}, and this application knows up to {self.version}")

    def _by_codec(self, codec: BodyCodec, body: bytes, properties: Mapping[str, str], hint: Any) -> Any:
        found, wanted = content_type(properties), codec.content_type.partition(";")[0].strip().lower()
        if found and found != wanted:
            raise BodyError(f"the body is {found}, and the topic's codec reads {wanted}")
        try:
            value = codec.decode(body)
        except Exception as error:
            raise BodyError(f"the body is not {wanted}: {_named(error)}") from error
        kind = get_origin(hint) or hint
        if isinstance(kind, type) and not isinstance(value, kind):
            raise BodyError(f"the codec returned {type(value).__name__}, and the handler takes {kind.__name__}")
        return value


def encode(value: Any) -> tuple[bytes, str]:
    """(body, content type) of a value, by its type. Raises MessageRejected."""
    if isinstance(value, enum.Enum):  # one of texts is a str, too
        return to_json(value), JSON
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value), OCTETS
    if isinstance(value, str):
        try:
            return value.encode(), TEXT
        except UnicodeEncodeError as error:
            raise MessageRejected(f"the body cannot be written in UTF-8: {error}") from None
    if isinstance(value, type) and dataclasses.is_dataclass(value):
        raise MessageRejected(f"the body is the class {value.__name__}, not an object of it")
    return to_json(value), JSON


def from_json(body: bytes) -> Any:
    """The value in a JSON text. Raises BodyError."""
    try:
        return _DECODER.decode(body.decode())
    except (ValueError, RecursionError) as error:
        raise BodyError(f"the body is not JSON: {error}") from None


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON value")


_DECODER = json.JSONDecoder(parse_constant=_no_constant)  # made once: json.loads would make one for each body


def check_body_type(hint: Any) -> None:
    """Raises BrokerError for what is not a type that bodies can have."""
    try:
        _check_type(hint)
    except TypeError:  # it cannot be hashed, so it is an object and no type
        raise BrokerError(f"a body is made of a type, as a dataclass, not of {shown(hint)}") from None


def _check_type(hint: Any, seen: frozenset[Any] = frozenset()) -> None:
    """Raises BrokerError for a type that has no form in JSON, also that of a field in it.

    What is defined later than it is declared is read at first use.
    """
    try:
        kind, _ = resolved(hint), alternatives(hint)
    except Exception as error:  # noqa: BLE001 - an alias in quotes is any expression
        raise BrokerError(f"the alias {hint} cannot be read ({error}): define what it names before its use") from None
    builder(kind)
    if is_alias(hint):
        if hint in seen:
            return
        seen |= {hint}
    of_fields = get_origin(kind) or kind
    is_checked = of_fields is typing.Literal or is_msgspec(of_fields)  # msgspec has types of its own
    for one in () if is_checked else typing.get_args(kind):
        if one is not Ellipsis:
            _check_type(one, seen)
    if kind in seen or not (is_typed_dict(of_fields) or dataclasses.is_dataclass(of_fields)):
        return
    try:
        named = fields_of(kind)
    except (NameError, TypeError):
        return
    for name, (one, _) in named.items():
        try:
            _check_type(one, seen | {kind})
        except BrokerError as error:
            raise BrokerError(f"the field {name!r} of {kind.__name__}: {error}") from None


def decoder(hint: Any) -> Build:
    """What makes a value of a type that was checked; `bytes` and `str` are taken as they are."""
    return _as_is if hint is bytes or hint is str else builder(hint)


def _made(wanted: Any, value: Any) -> Any:
    """The value of a type. Raises BodyError, whatever a type raises: another error would end each worker in turn."""
    try:
        return decoder(wanted)(value, "body")
    except BodyError:
        raise
    except Exception as error:
        raise BodyError(f"the body cannot be read as {_name(wanted)}: {_named(error)}") from error


def _as_is(value: Any, _: str) -> Any:
    return value


def _read(body: bytes, media_type: str, wanted: Any) -> tuple[Any, bool]:
    """(bytes, text or what the JSON holds, whether it is the value of the type that is wanted)."""
    if media_type and (wanted is Any or wanted is object):
        wanted = None
    is_json = media_type == JSON or media_type.endswith("+json")
    is_text = media_type.startswith("text/")
    if wanted is bytes or (wanted is None and not is_json and not is_text):
        return body, True
    if media_type == OCTETS and bytes in alternatives(wanted):
        return body, True
    if wanted is str and is_json and body.startswith(b'"'):  # an enum, a date: the text, without its quotation marks
        return from_json(body), True
    if wanted is str or (is_text and (wanted is None or any(map(_is_textual, alternatives(wanted))))):
        try:
            return body.decode(), wanted is None or str in alternatives(wanted)
        except UnicodeDecodeError as error:
            raise BodyError(f"the body is not text in UTF-8: {error}") from None
    if media_type and not is_json:
        raise BodyError(f"the body is {media_type}, and the handler takes {_name(wanted)}, which is read from {JSON}")
    return from_json(body), wanted is None


def _is_textual(hint: Any) -> bool:
    """Whether plain text may be a value of a type."""
    return (isinstance(hint, type) and issubclass(hint, str)) or get_origin(hint) is typing.Literal


def _misread(hint: Any, value: Any, found: Any) -> str:
    """What a value of a union would be read as: another of its types, of the same form in JSON. Empty: as itself."""
    if found == value:
        return ""
    options = alternatives(hint)
    kinds = [get_origin(one) or one for one in options]
    if type(found) is not type(value):
        return f"this {type(value).__name__} as {type(found).__name__}" if type(value) in kinds else ""
    pairs: Iterable[tuple[Any, Any, Any]] = ()
    if dataclasses.is_dataclass(value):
        of_fields = fields_of(cast(Any, type(value))).items()
        pairs = [(one, getattr(value, name), getattr(found, name)) for name, (one, _) in of_fields]
    elif is_pydantic(type(value)):
        fields = type(value).model_fields.items()
        pairs = [(one.annotation, getattr(value, name, None), getattr(found, name, None)) for name, one in fields]
    elif isinstance(value, list | tuple | dict):
        kept = [one for one in options if get_origin(one) is not typing.Literal]
        inner = [one for option in kept for one in typing.get_args(option) if one is not Ellipsis]
        item = typing.Union[tuple(inner)] if inner else Any  # noqa: UP007 - of any number of types
        both = [list(one.values()) if isinstance(one, dict) else one for one in (value, found)]
        pairs = [(item, *pair) for pair in zip(*both, strict=False)]
    return next(filter(None, (_misread(*pair) for pair in pairs)), "")


def _unlike_json(value: Any) -> Iterator[str]:
    """What pydantic writes something else for: stars for a secret, null for a float that is not a number."""
    if isinstance(value, float):
        if not math.isfinite(value):
            yield repr(value)
    elif hasattr(value, "get_secret_value"):
        yield repr(value.get_secret_value())
    elif isinstance(value, Mapping):
        yield from _unlike_json(list(value.values()))
    elif isinstance(value, list | tuple | set | frozenset):
        for one in value:
            yield from _unlike_json(one)
    elif is_pydantic(type(value)):
        yield from _unlike_json(vars(value))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from _unlike_json([getattr(value, field.name, None) for field in dataclasses.fields(value)])


def _name(hint: Any) -> str:
    return getattr(hint, "__name__", None) or repr(hint)


def _other(kind: type, value: object) -> str:
    """What a value is that is none of a class."""
    found = type(value)
    if found.__qualname__ != kind.__qualname__:
        return found.__name__
    modules = " and ".join(sorted({kind.__module__, found.__module__}))
    return f"one of another class {found.__name__}: its module or cell ran twice ({modules})"


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
