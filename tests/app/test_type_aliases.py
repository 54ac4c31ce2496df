"""`type Event = Paid | Refunded` of Python 3.12, here by `typing_extensions`, as the type of a body or in one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import pytest
import typing_extensions
from pydantic import BaseModel, Field
from sqlalchemy.orm import Session

from broker.app.bodies import JSON, TopicBody, check_body_type
from broker.app.cloud_events import CONTENT_TYPE
from broker.app.handlers import parameters_of
from broker.errors import BrokerError, MessageRejected
from broker.receiving import ReceivedMessage


@dataclass
class Paid:
    id: int


@dataclass
class Refunded:
    id: int
    why: str


@dataclass
class Lost:
    id: int
    why: str = ""
    where: str = ""


class TypeAliasType:
    """An alias as the statement makes it, whose value is read late; Python 3.11 does not read that statement."""

    __type_params__ = ()

    def __init__(self, name: str, read: Callable[[], Any]) -> None:
        self._name, self._read = name, read

    @property
    def __value__(self) -> Any:
        return self._read()

    def __repr__(self) -> str:
        return self._name


K = TypeVar("K")
V = TypeVar("V")
Later = typing_extensions.TypeVar("Later", default=Paid)  # type: ignore[misc]

Event = typing_extensions.TypeAliasType("Event", Paid | Refunded)
Turned = typing_extensions.TypeAliasType("Turned", dict[str, list[V] | K], type_params=(K, V))
Json = typing_extensions.TypeAliasType("Json", "dict[str, Json] | list[Json] | str | int | None")
Ordered = typing_extensions.TypeAliasType("Ordered", list["Paid | Refunded"])
Itself = typing_extensions.TypeAliasType("Itself", "Itself")
Round = typing_extensions.TypeAliasType("Round", "list[Round] | Around")
Around = typing_extensions.TypeAliasType("Around", "Round | int")
Tree: Any = TypeAliasType("Tree", lambda: dict[str, Tree] | int)


@dataclass
class Envelope:
    event: Event | None
    tree: Tree = 0


@dataclass
class Page(Generic[Later]):
    items: list[Later]


class Inner(BaseModel):
    when: int = Field(serialization_alias="at")


class Outer(BaseModel):
    inner: typing_extensions.TypeAliasType("Inners", list[Inner])  # type: ignore[valid-type]


@pytest.mark.parametrize(
    ("body_type", "value"),
    [
        (Event, Refunded(1, "late")),
        (Event | Lost, Refunded(1, "late")),
        (Event | Lost, Lost(1, "late", "sea")),
        (list[Event], [Paid(1), Refunded(2, "")]),
        (Turned[int, Paid], {"a": [Paid(1)], "b": 2}),
        (Tree, {"a": {"b": 1}, "c": 2}),
        (Json, {"a": [{"b": None}, "c", 1]}),
        (Ordered, [Refunded(1, "late"), Paid(2)]),
        (Envelope, Envelope(Paid(1), {"a": 1})),
        (Page, Page([Paid(1)])),
        (Outer, Outer(inner=[Inner(when=1)])),
    ],
    ids=str,
)
def test_what_was_sent_is_read(body_type: Any, value: Any) -> None:
    declared = TopicBody(body_type)
    body, media_type = declared.encode(value)
    assert media_type == JSON
    assert declared.decode(body, {CONTENT_TYPE: media_type}, body_type) == value


def test_what_does_not_fit_is_refused() -> None:
    """At the declaration what has no form in JSON, at the send a value of another type."""
    with pytest.raises(MessageRejected, match=r"body\.event is text, and must be an object"):
        TopicBody(Envelope).encode(Envelope("paid"))  # type: ignore[arg-type]
    with pytest.raises(BrokerError, match="a body cannot be decoded as complex"):
        check_body_type(typing_extensions.TypeAliasType("Complex", list[complex]))


def test_an_alias_of_what_is_not_defined_is_refused_when_it_is_declared() -> None:
    event: Any = TypeAliasType("Event", lambda: Missing)  # type: ignore[name-defined]  # noqa: F821
    text = r"the alias Event cannot be read \(name 'Missing' is not defined\): define what it names before its use"
    with pytest.raises(BrokerError, match=text):
        TopicBody(list[event])


def test_an_alias_in_quotes_that_cannot_be_read_is_one_sentence() -> None:
    """A model of pydantic reads its own: it knows the function in which an alias was defined."""

    class Local(BaseModel):
        id: int

    locals_ = typing_extensions.TypeAliasType("locals_", "list[Local]")

    class Page(BaseModel):
        items: locals_  # type: ignore[valid-type]

    for text in ("Missing | None", "list[", "dataclass.missing", "Itself", "dict[str, int] | Itself", "int | Round"):
        with pytest.raises(BrokerError, match="the alias Event cannot be read"):
            TopicBody(list[typing_extensions.TypeAliasType("Event", text)])  # type: ignore[misc]
    assert TopicBody(Page).encode(Page(items=[Local(id=1)])) == (b'{"items":[{"id":1}]}', JSON)


def test_a_handler_takes_aliases() -> None:
    """Of a session and of the message too: they are not taken for the body."""
    database = typing_extensions.TypeAliasType("database", Session)
    received = typing_extensions.TypeAliasType("received", ReceivedMessage)

    def handle(event: Any, session: Any, message: Any) -> None:
        """Annotated below: a name of this function is unknown to `get_type_hints`."""

    handle.__annotations__ = {"event": Event, "session": database, "message": received}
    found = parameters_of(handle, "handle")
    assert (found.body, found.body_type, found.session, found.message) == ("event", Event, "session", "message")
    assert found.session_type is Session
