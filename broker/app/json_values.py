"""Typed values to JSON and back: dataclasses, models of pydantic and msgspec, and the types that JSON lacks.

    builder(list[Order])([{"id": 1}], "body")    →  [Order(id=1)]

A builder is made once for each type, when a handler is declared, so that a type that cannot be decoded is refused then.
Values are not converted: text is never taken for a number. A field that a class does not have is ignored, so that
producers may add fields; a field without a default that is missing is an error. Neither pydantic nor msgspec is
imported before a class of theirs is used.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import enum
import json
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal, DecimalException
from functools import lru_cache
from typing import Annotated, Any, Literal, NotRequired, Required, Union
from uuid import UUID

from broker.errors import BodyError, BrokerError, MessageRejected

Build = Callable[[Any, str], Any]  # (value from JSON, where it is) → the typed value

_SCALARS: dict[type, tuple[type, ...]] = {bool: (bool,), int: (int,), float: (float, int), str: (str,)}
_NAMES = {dict: "an object", list: "a list", str: "text", bool: "true or false", int: "a number", float: "a number"}
_FROM_TEXT: dict[type, Callable[[str], Any]] = {
    datetime: datetime.fromisoformat,
    date: date.fromisoformat,
    time: time.fromisoformat,
    UUID: UUID,
    Decimal: Decimal,
    bytes: lambda text: base64.b64decode(text, validate=True),
}


def to_json(value: Any) -> bytes:
    """The JSON of a value. Raises MessageRejected for what JSON cannot hold."""
    try:
        return json.dumps(
            value, default=_plain, ensure_ascii=False, allow_nan=False, separators=(",", ":")
        ).encode()  # fmt: skip
    except (TypeError, ValueError, RecursionError) as error:
        raise MessageRejected(f"the body {value!r:.60} cannot be written as JSON: {error}") from None


def from_json(body: bytes) -> Any:
    """The value in a JSON text. Raises BodyError."""
    try:
        return json.loads(body.decode(), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise BodyError(f"the body is not JSON: {error}") from None


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON value")


def _plain(value: Any) -> Any:
    """What JSON can hold of a value that it does not know; called again for what is inside."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if is_pydantic(type(value)):
        return value.model_dump(mode="json")
    if is_msgspec(type(value)):
        import msgspec

        return msgspec.to_builtins(value)
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, UUID | Decimal):
        return str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode()
    if isinstance(value, set | frozenset):
        return list(value)
    raise TypeError(f"{type(value).__name__} is not a type that JSON can hold")


def is_pydantic(kind: Any) -> bool:
    """Whether a type is a model of pydantic's."""
    return isinstance(kind, type) and hasattr(kind, "model_validate_json")


def is_msgspec(kind: Any) -> bool:
    """Whether a type is a Struct of msgspec's."""
    return isinstance(kind, type) and hasattr(kind, "__struct_fields__")


@lru_cache(maxsize=1024)
def builder(hint: Any) -> Build:
    """What makes a value of a type from JSON. Raises BrokerError for a type that has no form in JSON."""
    if hint is Any or hint is object:
        return lambda value, _: value
    if hint is None or hint is type(None):
        return _exactly("null", lambda value: value is None)
    if hint in _SCALARS:
        return _scalar(hint)
    if hint in _FROM_TEXT:
        return _from_text(hint, _FROM_TEXT[hint])
    if hasattr(hint, "__supertype__"):  # NewType
        return builder(hint.__supertype__)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Annotated, Required, NotRequired):
        return builder(arguments[0])
    if origin in (Union, types.UnionType):
        return _union(arguments)
    if origin is Literal:
        return _exactly(
            f"one of {', '.join(map(repr, arguments))}",
            lambda value: any(value == one and type(value) is type(one) for one in arguments),
        )
    return _container(hint, origin or hint, arguments) or _class(hint)


def _container(hint: Any, kind: Any, arguments: tuple[Any, ...]) -> Build | None:
    if kind in (dict, Mapping, typing.Mapping):
        return _mapping(*(arguments or (str, Any)))
    if kind is tuple and arguments and arguments[-1] is not Ellipsis:
        return _fixed_tuple([builder(one) for one in arguments])
    if kind in (list, tuple, set, frozenset, Sequence):
        item = builder(arguments[0] if arguments else Any)
        make: Any = list if kind is Sequence else kind

        def build(value: Any, where: str) -> Any:
            _check(isinstance(value, list), value, "a list", where)
            return make([item(one, f"{where}[{number}]") for number, one in enumerate(value)])

        return build
    if typing.is_typeddict(hint):
        return _fields(hint, dict, _typed_dict_fields(hint))
    return None


def _class(hint: Any) -> Build:
    if not isinstance(hint, type):
        raise BrokerError(
            f"a body cannot be decoded as {hint!r:.80}: use a dataclass, a model, or a type that JSON has"
        )
    if is_pydantic(hint):
        return _by_library(hint.model_validate)  # type: ignore[attr-defined]
    if is_msgspec(hint):
        import msgspec

        return _by_library(lambda value: msgspec.convert(value, type=hint))
    if dataclasses.is_dataclass(hint):
        return _fields(hint, hint, None)
    if issubclass(hint, enum.Enum):
        return _from_value(hint)
    raise BrokerError(f"a body cannot be decoded as {hint.__name__}: use a dataclass, a model, or a type that JSON has")


def _by_library(validate: Callable[[Any], Any]) -> Build:
    def build(value: Any, where: str) -> Any:
        try:
            return validate(value)
        except ValueError as error:  # pydantic.ValidationError and msgspec.ValidationError are
            raise BodyError(f"{where}: {error}") from None

    return build


def _fields(hint: Any, make: Any, fields: dict[str, tuple[Any, bool]] | None) -> Build:
    """A builder of what has named fields: (type, whether it must be there). Those of a dataclass are read at first
    use, since it may refer to itself."""
    known: dict[str, tuple[Build, bool]] = {}
    named = fields

    def build(value: Any, where: str) -> Any:
        nonlocal named
        _check(isinstance(value, dict), value, "an object", where)
        if not known:
            named = _dataclass_fields(hint) if named is None else named
            known.update({name: (builder(one), needed) for name, (one, needed) in named.items()})
        missing = [name for name, (_, needed) in known.items() if needed and name not in value]
        if missing:
            raise BodyError(f"{where}: the field {missing[0]!r} of {hint.__name__} is missing")
        built = {
            name: make_one(value[name], f"{where}.{name}") for name, (make_one, _) in known.items() if name in value
        }
        try:
            return make(**built)
        except (TypeError, ValueError) as error:  # __post_init__ refuses it
            raise BodyError(f"{where}: {error}") from None

    return build


def _dataclass_fields(hint: Any) -> dict[str, tuple[Any, bool]]:
    hints = typing.get_type_hints(hint, include_extras=True)
    missing = dataclasses.MISSING
    return {
        field.name: (hints[field.name], field.default is missing and field.default_factory is missing)
        for field in dataclasses.fields(hint)
        if field.init
    }


def _typed_dict_fields(hint: Any) -> dict[str, tuple[Any, bool]]:
    hints = typing.get_type_hints(hint, include_extras=True)
    return {name: (one, name in hint.__required_keys__) for name, one in hints.items()}


def _scalar(kind: type) -> Build:
    allowed = _SCALARS[kind]

    def build(value: Any, where: str) -> Any:
        _check(type(value) in allowed, value, kind.__name__, where)
        return kind(value)

    return build


def _from_text(kind: type, make: Callable[[str], Any]) -> Build:
    def build(value: Any, where: str) -> Any:
        _check(isinstance(value, str), value, f"text with a {kind.__name__}", where)
        try:
            return make(value)
        except (ValueError, DecimalException, binascii.Error):
            raise BodyError(f"{where} is {value!r:.40}, and must be a {kind.__name__}") from None

    return build


def _from_value(kind: type[enum.Enum]) -> Build:
    def build(value: Any, where: str) -> Any:
        try:
            return kind(value)
        except ValueError:
            raise BodyError(f"{where} is {value!r:.40}, which is not a {kind.__name__}") from None

    return build


def _exactly(what: str, fits: Callable[[Any], bool]) -> Build:
    def build(value: Any, where: str) -> Any:
        _check(fits(value), value, what, where)
        return value

    return build


def _union(arguments: tuple[Any, ...]) -> Build:
    """The first type that fits. One error is reported: that of the last, which is the only one of `T | None`."""
    ordered = sorted(arguments, key=lambda one: one is not type(None))
    builders = [builder(one) for one in ordered]

    def build(value: Any, where: str) -> Any:
        for make in builders[:-1]:
            try:
                return make(value, where)
            except BodyError:
                continue
        return builders[-1](value, where)

    return build


def _mapping(key: Any, item: Any) -> Build:
    if key not in (str, int, Any):
        raise BrokerError(f"the keys of a JSON object are text: a body cannot be decoded as dict[{key!r:.40}, ...]")
    make = builder(item)

    def build(value: Any, where: str) -> Any:
        _check(isinstance(value, dict), value, "an object", where)
        return {
            (_int_key(name, where) if key is int else name): make(one, f"{where}.{name}") for name, one in value.items()
        }

    return build


def _int_key(name: str, where: str) -> int:
    try:
        return int(name)
    except ValueError:
        raise BodyError(f"{where} has the key {name!r:.40}, which is not a number") from None


def _fixed_tuple(builders: list[Build]) -> Build:
    def build(value: Any, where: str) -> Any:
        _check(isinstance(value, list) and len(value) == len(builders), value, f"{len(builders)} values", where)
        return tuple(
            [make(one, f"{where}[{number}]") for number, (make, one) in enumerate(zip(builders, value, strict=True))]
        )

    return build


def _check(is_right: bool, value: Any, what: str, where: str) -> None:
    if not is_right:
        found = "null" if value is None else _NAMES.get(type(value), type(value).__name__)
        raise BodyError(f"{where} is {found}, and must be {what}")
