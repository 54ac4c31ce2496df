"""A value of a union is read as the type that it was sent as, or refused at the send."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Literal, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest

from broker.app.bodies import TopicBody
from broker.app.cloud_events import CONTENT_TYPE
from broker.errors import MessageRejected


@dataclass
class Begun:
    order_id: int


@dataclass
class Cancelled:
    order_id: int
    reason: str = ""


@dataclass
class Closed:
    order_id: int


@dataclass
class Tagged:
    order_id: int
    kind: Literal["tagged"] = "tagged"


@dataclass
class AlsoTagged:
    order_id: int
    kind: Literal["also"] = "also"


@dataclass
class HoldsEvents:
    events: list[Begun | Cancelled] = field(default_factory=list)
    octets: bytes | str = b""


class BegunModel(pydantic.BaseModel):
    order_id: int


class CancelledModel(pydantic.BaseModel):
    order_id: int
    reason: str = pydantic.Field("", alias="why")


class HasUnions(pydantic.BaseModel):
    id: UUID | str = ""
    at: datetime | date | str = ""
    amount: int | Decimal = 0
    below: list[UUID | str] = []


class BegunStruct(msgspec.Struct):
    order_id: int


class CancelledStruct(msgspec.Struct):
    order_id: int
    reason: str = ""


class BegunDict(TypedDict):
    order_id: int


class CancelledDict(TypedDict):
    order_id: int
    reason: str


KEPT: list[tuple[Any, Any]] = [
    (Begun | Cancelled, Cancelled(1, "late")),
    (Cancelled | Begun, Begun(1)),
    (Begun | Cancelled | None, Cancelled(1)),
    (BegunModel | CancelledModel, CancelledModel(order_id=1, why="late")),
    (CancelledModel | BegunModel, BegunModel(order_id=1)),
    (BegunStruct | CancelledStruct, CancelledStruct(1, "late")),
    (CancelledStruct | BegunStruct, BegunStruct(1)),
    (BegunDict | CancelledDict, {"order_id": 1, "reason": "late"}),
    (Begun | dict[str, Any], Begun(1)),
    (dict[str, Any] | Begun, Begun(1)),
    (Tagged | AlsoTagged, AlsoTagged(1)),
    (list[Begun | Cancelled], [Begun(1), Cancelled(2, "late")]),
    (HoldsEvents, HoldsEvents([Begun(1), Cancelled(2)])),
    (float | int, 1),
    (Any, [Begun(1)]),
]


@pytest.mark.parametrize(("declared", "value"), KEPT)
def test_it_is_read_as_what_it_was_sent_as(declared: Any, value: Any) -> None:
    topic = TopicBody(declared)
    body, content_type = topic.encode(value)
    read = topic.decode(body, {CONTENT_TYPE: content_type}, declared)
    assert read == value or declared is Any


@pytest.mark.parametrize(
    "value",
    [
        HasUnions(id=UUID(int=1), at=date(2026, 1, 2), amount=Decimal(2)),
        HasUnions(id="o-1", at=datetime(2026, 1, 2, tzinfo=UTC), amount=2, below=[UUID(int=1), "o-1"]),
        HasUnions(at="soon", amount=Decimal("2.5")),
    ],
    ids=["typed", "mixed", "text"],
)
def test_unions_in_a_model_of_pydantic(value: HasUnions) -> None:
    """Its JSON is read as JSON: from Python objects pydantic would take the text `2026-01-02` for text."""
    topic = TopicBody(list[HasUnions])
    body, content_type = topic.encode([value])
    read = topic.decode(body, {CONTENT_TYPE: content_type}, None)
    assert read == [value]
    assert [type(one) for _, one in read[0]] == [type(one) for _, one in value], "2 is equal to Decimal(2)"


def test_a_field_that_a_newer_sender_added_does_not_hide_the_type() -> None:
    topic = TopicBody(Begun | Cancelled | dict[str, Any])
    assert topic.decode(b'{"order_id":1,"reason":"late","by":"me"}', {}, None) == Cancelled(1, "late")


REFUSED: list[tuple[Any, Any, str]] = [
    (Begun | Closed, Closed(1), "would read this Closed as Begun: let the types of a union differ in JSON"),
    (list[Begun | Closed], [Begun(1), Closed(2)], "this Closed as Begun"),
    (dict[str, Begun | Closed], {"a": Closed(2)}, "this Closed as Begun"),
    (list[Begun] | list[Cancelled], [Cancelled(2)], "this Cancelled as Begun"),
    (HoldsEvents, HoldsEvents(octets="abcd"), "this str as bytes"),
    (HasUnions, HasUnions(below=["o-1", str(UUID(int=1))]), "this str as UUID"),
    (list[datetime | date], [date(2026, 1, 2)], "this date as datetime"),
    (tuple[str | Decimal, int], (Decimal(1), 1), "this Decimal as str"),
]


@pytest.mark.parametrize(("declared", "value", "sentence"), REFUSED)
def test_what_would_be_read_as_another_type_is_refused(declared: Any, value: Any, sentence: str) -> None:
    with pytest.raises(MessageRejected, match=sentence):
        TopicBody(declared).encode(value)
