"""Declare the extension fields of a request or a response once: names, types and defaults come from it.

    @dataclass(frozen=True)
    class GetMaxOffsetRequestHeader(Header, codes=(RequestCode.GET_MAX_OFFSET,)):
        topic: text
        queue_id: i32

A field's name on the wire is its name here in camel case, or what a `Wire` says. All values are text on the wire.
RocketMQ: CommandCustomHeader, RemotingCommand.decodeCommandCustomHeader (5.3.3).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING
from typing import Annotated, Any, ClassVar, NamedTuple, Self, get_type_hints

from broker.errors import ProtocolError
from broker.remoting.codes import RequestCode

_NUMBER = re.compile(r"-?[0-9]{1,19}")


def _integer(bits: int) -> Callable[[str], int]:
    least, most = -(1 << bits - 1), (1 << bits - 1) - 1
    fitting = len(str(most)) - 1  # so many digits always fit

    def parse(value: str) -> int:
        if len(value) <= fitting and value.isascii() and value.isdigit():  # nearly all are
            return int(value)
        if not _NUMBER.fullmatch(value) or not least <= (number := int(value)) <= most:
            raise ValueError(f"{value!r:.40} is not a number of {bits} bits")
        return number

    return parse


def _truth(value: str) -> bool:
    """Quirk: anything but `true` is false, as for Java's Boolean.parseBoolean."""
    return value.lower() == "true"


text = Annotated[str, str]
i32 = Annotated[int, _integer(32)]
i64 = Annotated[int, _integer(64)]
boolean = Annotated[bool, _truth]


class Wire(NamedTuple):
    """In a field's type: its name on the wire where it is another, and its letter in SEND_MESSAGE_V2."""

    name: str = ""
    short: str = ""


class _HeaderField(NamedTuple):
    name: str
    wire: str
    short: str
    parse: Callable[[str], Any]
    default: Any


class Header:
    """The extension fields of one kind of command: subclasses are frozen dataclasses of text, i32, i64 and boolean."""

    CODES: ClassVar[tuple[RequestCode, ...]]  # the requests that have it; none for a response

    def __init_subclass__(cls, *, codes: tuple[RequestCode, ...] = ()) -> None:
        cls.CODES = codes

    @classmethod
    def decode(cls, ext: Mapping[str, str], *, short: bool = False) -> Self:
        """The fields of a command; `short`: by names of one character. Raises ProtocolError for a missing one."""
        made = object.__new__(cls)  # as cls(...) does, in a third of the time: a frozen dataclass sets field by field
        values = made.__dict__
        for name, wired, letter, parse, default in _fields(cls):
            key = letter if short else wired
            value = ext.get(key)
            if value is None or (value == "" and parse is not str):
                if default is MISSING:
                    raise ProtocolError(f"{cls.__name__} lacks the field {key}")
                values[name] = default
            elif parse is str:
                values[name] = value
            else:
                try:
                    values[name] = parse(value)
                except ValueError as error:
                    raise ProtocolError(f"the field {key} of {cls.__name__}: {error}") from None
        return made

    def encode(self, *, short: bool = False) -> dict[str, str]:
        """The fields as a command carries them; what is None is left out."""
        found = {}
        for name, wired, letter, _, _ in _fields(type(self)):
            value = getattr(self, name)
            if value is not None:
                shown = str(value).lower() if isinstance(value, bool) else str(value)
                found[letter if short else wired] = shown
        return found


_known: dict[type[Header], tuple[_HeaderField, ...]] = {}


def _fields(kind: type[Header]) -> tuple[_HeaderField, ...]:
    known = _known.get(kind)
    if known is None:
        known = _known[kind] = _declared(kind)
    return known


def _declared(kind: Any) -> tuple[_HeaderField, ...]:
    hints, found = get_type_hints(kind, include_extras=True), []
    for one in dataclasses.fields(kind):
        hint = hints[one.name]
        options = [hint, *getattr(hint, "__args__", ())]  # `text | None` is a union
        parse, *names = next(option.__metadata__ for option in options if hasattr(option, "__metadata__"))
        named = names[0] if names else Wire()
        found.append(_HeaderField(one.name, named.name or _camel(one.name), named.short, parse, one.default))
    return tuple(found)


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)
