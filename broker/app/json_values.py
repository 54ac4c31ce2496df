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
import contextlib
import dataclasses
import enum
import inspect
import json
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal, DecimalException
from functools import lru_cache, partial
from typing import Any, Literal, Union
from uuid import UUID

from broker.app.type_hints import alternatives, fields_of, is_alias, is_typed_dict, resolved
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


def to_json(value: Any, *, round_trip: bool = False) -> bytes:
    """The JSON of a value. Raises MessageRejected for what JSON cannot hold.

    `round_trip`: without what pydantic computes and does not read.
    """
    try:
        kind: Any = type(value)
        if is_pydantic(kind):
            return value.model_dump_json(by_alias=_reads_aliases(kind), round_trip=round_trip).encode()  # type: ignore[no-any-return]
        if is_msgspec(kind):
            import msgspec

            return msgspec.json.encode(value)
        return (_ROUND_TRIP if round_trip else _ENCODER).encode(value).encode()
    except (TypeError, ValueError, OverflowError, AttributeError, RecursionError) as error:
        raise MessageRejected(f"the body {_in_short(value)} cannot be written as JSON: {error}") from None


def _in_short(value: Any) -> str:
    try:
        return f"{value!r:.60}"
    except Exception:  # noqa: BLE001 - an object that was not filled has no repr either
        return f"of {type(value).__name__}"


def _plain(value: Any, *, round_trip: bool) -> Any:
    """What JSON can hold of a value that it does not know; called again for what is inside."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    kind: Any = type(value)
    if is_pydantic(kind):
        return value.model_dump(mode="json", by_alias=_reads_aliases(kind), round_trip=round_trip)
    if is_msgspec(kind):
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


# Made once: json.dumps would make one for each body.
_ENCODER, _ROUND_TRIP = (
    json.JSONEncoder(
        default=partial(_plain, round_trip=one), ensure_ascii=False, allow_nan=False, separators=(",", ":")
    )
    for one in (False, True)
)


def is_pydantic(kind: Any) -> bool:
    """Whether a type is a model of pydantic's."""
    return isinstance(kind, type) and hasattr(kind, "model_validate_json")


@lru_cache(maxsize=1024)
def _reads_aliases(model: Any) -> bool:
    """Whether a model and those in its fields read what they write under aliases: a `serialization_alias` is not read.

    Else the names of the fields are written.
    """
    models: set[Any] = set()
    _models_in(model, models, set())
    return all(
        field.serialization_alias is None or field.serialization_alias in _names_read(name, field.validation_alias)
        for one in models
        for name, field in one.model_fields.items()
    )


def _models_in(hint: Any, found: set[Any], aliases: set[Any]) -> None:
    if is_pydantic(hint) and hint not in found:
        found.add(hint)
        for field in hint.model_fields.values():
            _models_in(field.annotation, found, aliases)
    if is_alias(hint) and hint not in aliases:
        aliases.add(hint)
        with contextlib.suppress(NameError):  # of a function: pydantic knows where its models were defined
            _models_in(resolved(hint), found, aliases)
    for one in typing.get_args(hint):
        _models_in(one, found, aliases)


def _names_read(name: str, alias: Any) -> list[Any]:
    return [name, alias, *getattr(alias, "choices", ())]  # pydantic's AliasChoices


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
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if is_alias(hint) or is_alias(origin):
        return _by_alias(hint)
    if (below := resolved(hint)) is not hint:
        return builder(below)
    if origin in (Union, types.UnionType):
        return _union(alternatives(hint))
    if origin is Literal:
        return _exactly(
            f"one of {', '.join(map(repr, arguments))}",
            lambda value: any(value == one and type(value) is type(one) for one in arguments),
        )
    return _container(hint, origin or hint, arguments) or _class(hint)


def _by_alias(hint: Any) -> Build:
    """A builder of what an alias stands for, which is read at first use, since it may contain the alias itself."""

    def build(value: Any, where: str) -> Any:
        return builder(resolved(hint))(value, where)

    return build


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
    if is_typed_dict(kind):
        return _fields(hint, dict)
    if dataclasses.is_dataclass(kind):
        return _fields(hint, kind)
    if is_msgspec(kind):
        import msgspec

        return _by_library(lambda value: msgspec.convert(value, type=hint, str_keys=True))
    return None


def _class(hint: Any) -> Build:
    if not isinstance(hint, type):
        raise BrokerError(
            f"a body cannot be decoded as {hint!r:.80}: use a dataclass, a model, or a type that JSON has"
        )
    if is_pydantic(hint):
        return _by_library(_validate(hint))
    if issubclass(hint, enum.Enum):
        return _from_value(hint)
    raise BrokerError(f"a body cannot be decoded as {hint.__name__}: use a dataclass, a model, or a type that JSON has")


def _by_library(validate: Callable[[Any], Any]) -> Build:
    def build(value: Any, where: str) -> Any:
        try:
            return validate(value)
        except Exception as error:  # noqa: BLE001 - a validator is the application's
            raise BodyError(f"{where}: {_in_one_line(error)}") from None

    return build


def _validate(model: Any) -> Callable[[Any], Any]:
    """Makes a model of a value from JSON, whose keys are aliases, or names of fields as older messages have them.

    As JSON: of a union `UUID | str` pydantic takes the UUID for such a text from JSON, and the text from Python.
    """
    accepted = inspect.signature(model.model_validate_json).parameters  # pydantic before 2.11 has no such parameter
    keys = {"by_alias": True, "by_name": True} if "by_name" in accepted else {}

    def validate(value: Any) -> Any:
        try:
            text = json.dumps(value)
        except (TypeError, ValueError):  # what an `upgrade` made, as with a Decimal or a model in it
            return model.model_validate(value, **keys)
        return model.model_validate_json(text, **keys)

    return validate


def _in_one_line(error: Exception) -> str:
    if not hasattr(error, "errors") or not hasattr(error, "title"):  # not pydantic's
        return str(error)
    found = error.errors(include_url=False, include_context=False, include_input=False)
    reasons = [f"{'.'.join(map(str, one['loc'])) or 'it'}: {one['msg']}" for one in found]
    return f"{len(found)} validation error{'s' * (len(found) > 1)} for {error.title}: {'; '.join(reasons)}"


def _fields(hint: Any, make: Any) -> Build:
    """A builder of what has named fields. Their types are read at first use, since they may refer to `hint` itself."""
    known: dict[str, tuple[Build, bool]] = {}

    def build(value: Any, where: str) -> Any:
        _check(isinstance(value, dict), value, "an object", where)
        if not known:
            try:
                known.update({name: (builder(one), needed) for name, (one, needed) in fields_of(hint).items()})
            except (NameError, TypeError, BrokerError) as error:
                raise BodyError(f"{where}: the fields of {hint.__name__} cannot be read: {error}") from None
        missing = [name for name, (_, needed) in known.items() if needed and name not in value]
        if missing:
            raise BodyError(f"{where}: the field {missing[0]!r} of {hint.__name__} is missing")
        built = {
            name: make_one(value[name], f"{where}.{name}") for name, (make_one, _) in known.items() if name in value
        }
        try:
            return make(**built)
        except Exception as error:  # noqa: BLE001 - __post_init__ refuses it
            raise BodyError(f"{where}: {_in_one_line(error)}") from None

    return build


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
        except (ValueError, TypeError):
            written = to_json(value)
        for one in kind:  # a value that JSON has in another form, as a tuple or a date
            with contextlib.suppress(MessageRejected):
                if to_json(one.value) == written:
                    return one
        raise BodyError(f"{where} is {value!r:.40}, which is not a {kind.__name__}")

    return build


def _exactly(what: str, fits: Callable[[Any], bool]) -> Build:
    def build(value: Any, where: str) -> Any:
        _check(fits(value), value, what, where)
        return value

    return build


def _union(arguments: list[Any]) -> Build:
    """The first type that fits; of those that fit an object, the one whose fields differ least from its own.

    One error is reported: that of the last, which is the only one of `T | None`.
    """
    ordered = sorted(arguments, key=lambda one: one is not type(None))
    builders = [(one, builder(one)) for one in ordered]

    def build(value: Any, where: str) -> Any:
        fitting: list[tuple[Any, Any]] = []
        for kind, make in builders:
            try:
                fitting.append((kind, make(value, where)))
                if not isinstance(value, dict):
                    break
            except BodyError:
                if kind is ordered[-1] and not fitting:
                    raise
        return min(fitting, key=lambda one: _differences(one[0], one[1], value) if len(fitting) > 1 else 0)[1]

    return build


def _differences(hint: Any, made: Any, value: dict[str, Any]) -> int:
    """How many fields an object has and a type of a union has not, or the other way round."""
    below = resolved(hint)
    kind = typing.get_origin(below) or below
    if is_pydantic(kind):
        read = len(made.model_fields_set)
        return len(value) - read + abs(len(kind.model_fields) - read)
    is_ours = is_typed_dict(kind) or dataclasses.is_dataclass(kind)
    names = fields_of(kind) if is_ours else getattr(kind, "__struct_encode_fields__", ())
    return len(value.keys() ^ set(names))


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
