"""What an annotation says of the form of a value: the type below it, and the fields of a class with their types."""

from __future__ import annotations

import dataclasses
import types
import typing
from functools import lru_cache
from typing import Annotated, Any, NotRequired, Required, TypeVar, Union

from broker.errors import BrokerError


def resolved(hint: Any) -> Any:
    """The type below a NewType, Annotated, `type Event = ...` and the like, which say nothing of the form of a value.

    Raises NameError for an alias of what is not defined, and what an alias in quotes raises.
    """
    return _below(hint, ())[0]


def _below(hint: Any, aliases: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    """The same, and the aliases on the way to it, behind these: `type Order = Order | None` has no end."""
    while True:
        origin = typing.get_origin(hint)
        if hint in aliases:
            raise NameError(f"{hint} stands for itself")
        if is_alias(origin):
            aliases, given = (*aliases, hint), dict(zip(origin.__type_params__, typing.get_args(hint), strict=False))
            hint = _replaced(_meant(origin), given)
        elif is_alias(hint):
            aliases, hint = (*aliases, hint), _meant(hint)
        elif hasattr(hint, "__supertype__"):
            hint = hint.__supertype__
        elif origin in (Annotated, Required, NotRequired) or getattr(origin, "_name", None) == "ReadOnly":
            hint = typing.get_args(hint)[0]
        else:
            return hint, aliases


def is_alias(hint: Any) -> bool:
    """Whether a type is an alias as `type Event = Paid | Refunded` makes one: of Python 3.12, or `typing_extensions`.

    What it stands for is read when it is asked for, and may contain the alias itself.
    """
    return type(hint).__name__ == "TypeAliasType"


@lru_cache
def _meant(alias: Any) -> Any:
    """What an alias stands for. Names in quotes are those of its module: so one of Python 3.11 contains itself."""
    names = {"__module__": alias.__module__, "__annotations__": {"value": alias.__value__}}
    return typing.get_type_hints(type("Named", (), names), include_extras=True)["value"]


def alternatives(hint: Any, aliases: tuple[Any, ...] = ()) -> list[Any]:
    """The types of a union, and of the unions in it that have a name; of another type itself.

    `aliases` are those that it is in. Raises NameError as `resolved` does.
    """
    below, aliases = _below(hint, aliases)
    is_union = typing.get_origin(below) in (Union, types.UnionType)
    return [other for one in typing.get_args(below) for other in alternatives(one, aliases)] if is_union else [below]


def is_typed_dict(kind: Any) -> bool:
    """Whether a class is a TypedDict, also one of `typing_extensions`, which pydantic asks for before Python 3.12."""
    return isinstance(kind, type) and issubclass(kind, dict) and hasattr(kind, "__required_keys__")


@lru_cache(maxsize=1024)
def fields_of(hint: Any) -> dict[str, tuple[Any, bool]]:
    """The fields that a dataclass or a TypedDict reads: (type, whether it must be there).

    Of `Page[Order]` those of the generic class, with its type variables replaced. Raises NameError, and BrokerError for
    a variable that means two things.
    """
    kind = typing.get_origin(hint) or hint
    given = _variables(hint)
    hints = {name: _replaced(one, given) for name, one in typing.get_type_hints(kind, include_extras=True).items()}
    if not dataclasses.is_dataclass(kind):
        # `__required_keys__` does not see what annotations that are text say of a field.
        by_field, others = {Required: True, NotRequired: False}, kind.__required_keys__
        return {name: (one, by_field.get(typing.get_origin(one), name in others)) for name, one in hints.items()}
    missing = dataclasses.MISSING
    return {
        field.name: (hints[field.name], field.default is missing and field.default_factory is missing)
        for field in dataclasses.fields(kind)
        if field.init
    }


def _variables(hint: Any) -> dict[Any, Any]:
    """The type variables of a generic class and of its bases, with what stands for each. Raises BrokerError."""
    kind = typing.get_origin(hint) or hint
    names, given = getattr(kind, "__parameters__", ()), typing.get_args(hint)
    if not _are_types(names) or len(given) not in (0, len(names)):  # collections.abc.Sequence names no variable
        return {}
    found = dict(zip(names, given or map(_default, names), strict=True))
    for base in getattr(kind, "__orig_bases__", ()):
        if not typing.get_args(base) or typing.get_origin(base) in (typing.Generic, typing.Protocol):
            continue
        for name, one in _variables(_replaced(base, found)).items():
            if found.setdefault(name, one) != one:
                text = f"{kind.__name__} and its base {base} use the type variable {name} for different types"
                raise BrokerError(f"{text}: take another one in {kind.__name__}")
    return found


def _replaced(hint: Any, given: dict[Any, Any]) -> Any:
    """A type with its variables replaced: by what is given, else by what they are bound to, else by anything."""
    if isinstance(hint, TypeVar):
        return given.get(hint, _default(hint))
    variables = getattr(hint, "__parameters__", ())
    return hint[tuple(_replaced(one, given) for one in variables)] if variables and _are_types(variables) else hint


def _are_types(variables: tuple[Any, ...]) -> bool:
    """Whether each variable stands for one type, as no TypeVarTuple and no ParamSpec does."""
    return all(isinstance(one, TypeVar) for one in variables)


def _default(variable: TypeVar) -> Any:
    if getattr(variable, "has_default", bool)():  # Python 3.13, or `typing_extensions`
        return variable.__default__  # type: ignore[attr-defined]
    kinds = variable.__constraints__
    return Union[kinds] if kinds else variable.__bound__ or Any  # noqa: UP007 - of any number of types
