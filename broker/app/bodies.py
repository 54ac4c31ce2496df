"""From a value to the body of a message and back: by the topic's declaration, or by a handler's type hint.

    bytes                                   application/octet-stream
    str                                     text/plain; charset=utf-8
    dataclasses, pydantic, msgspec, dict …  application/json

A body that does not decode raises BodyError with the reason, and never reaches a handler.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast, get_origin

from broker.app.cloud_events import content_type, schema_version
from broker.app.json_values import Build, builder, from_json, is_msgspec, is_pydantic, to_json
from broker.errors import BodyError, BrokerError, MessageRejected, shown

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
            decoder(self.body_type)

    def encode(self, value: Any) -> tuple[bytes, str]:
        """(body, content type) of a value. Raises MessageRejected for a value of another type than the topic's."""
        kind = get_origin(self.body_type) or self.body_type
        if isinstance(kind, type) and not isinstance(value, kind):
            raise MessageRejected(f"the topic takes {kind.__name__}, and this is {type(value).__name__}: {value!r:.60}")
        if self.codec is not None:
            return self.codec.encode(value), self.codec.content_type
        return encode(value)

    def decode(self, body: bytes, properties: Mapping[str, str], hint: Any) -> Any:
        """The value in a body: of a handler's type, else of the topic's, else by its content type. Raises BodyError."""
        if hint is bytes:
            return body
        self._check_version(schema_version(properties))
        if self.codec is not None:
            return self._by_codec(self.codec, body, properties, hint)
        wanted = self.body_type if hint is None else hint
        value = _read(body, content_type(properties), wanted)
        version = schema_version(properties)
        if self.upgrade is not None and version is not None and self.version is not None and version < self.version:
            try:
                value = self.upgrade(version, value)
            except Exception as error:
                raise BodyError(f"the body of version {version} was not upgraded: {_named(error)}") from error
        return value if wanted is None else decoder(wanted)(value, "body")

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
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value), OCTETS
    if isinstance(value, str):
        try:
            return value.encode(), TEXT
        except UnicodeEncodeError as error:
            raise MessageRejected(f"the body cannot be written in UTF-8: {error}") from None
    if is_pydantic(type(value)):
        return value.model_dump_json().encode(), JSON
    if is_msgspec(type(value)):
        import msgspec

        return msgspec.json.encode(value), JSON
    if isinstance(value, type) and dataclasses.is_dataclass(value):
        raise MessageRejected(f"the body is the class {value.__name__}, not an object of it")
    return to_json(value), JSON


def decoder(hint: Any) -> Build:
    """What makes a value of a type; `bytes` and `str` are taken as they are. Raises BrokerError."""
    if hint is bytes or hint is str:
        return _as_is
    try:
        return builder(hint)
    except TypeError:  # it cannot be hashed, so it is an object and no type
        raise BrokerError(f"a body is made of a type, as a dataclass, not of {shown(hint)}") from None


def _as_is(value: Any, _: str) -> Any:
    return value


def _read(body: bytes, media_type: str, wanted: Any) -> Any:
    """The untyped value: bytes, text, or what the JSON holds."""
    is_json = media_type == JSON or media_type.endswith("+json")
    if wanted is bytes or (wanted is None and not is_json and not media_type.startswith("text/")):
        return body
    if wanted is str or (wanted is None and media_type.startswith("text/")):
        try:
            return body.decode()
        except UnicodeDecodeError as error:
            raise BodyError(f"the body is not text in UTF-8: {error}") from None
    if media_type and not is_json:
        name = getattr(wanted, "__name__", repr(wanted))
        raise BodyError(f"the body is {media_type}, and the handler takes {name}, which is read from {JSON}")
    return from_json(body)


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
