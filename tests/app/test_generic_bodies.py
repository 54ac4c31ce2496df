"""Generic classes as bodies, with what stands for their type variables; TypedDicts of `typing_extensions`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from typing import Any, Generic, Optional, ParamSpec, Protocol, TypedDict, TypeVar, TypeVarTuple

import msgspec
import pytest
import typing_extensions

from broker.app.bodies import JSON, TopicBody
from broker.app.cloud_events import CONTENT_TYPE
from broker.errors import BrokerError, MessageRejected


@dataclass
class Price:
    amount: Decimal


T = TypeVar("T")
U = TypeVar("U")
Priced = TypeVar("Priced", bound=Price)
Parameters = ParamSpec("Parameters")
Several = TypeVarTuple("Several")


@dataclass
class Page(Generic[T]):
    items: list[T]
    first: Optional[T] = None  # noqa: UP045 - another kind of union than `T | None`
    following: Page[T] | None = None


@dataclass
class Prices(Page[Price]):
    currency: str = "EUR"


@dataclass
class Indexed(Page[T], Generic[T, U]):
    by_name: dict[str, U] = field(default_factory=dict)


@dataclass
class Tag(Generic[Priced]):
    price: Priced


@dataclass
class Swapped(Page[int], Generic[T]):
    last: T | None = None


class Event(Protocol[T]):
    """What has a time, say."""


@dataclass
class Order(Sequence[int], Event[str]):
    ids: list[int]

    def __getitem__(self, place: Any) -> Any:
        return self.ids[place]

    def __len__(self) -> int:
        return len(self.ids)


@dataclass
class Job(Generic[Parameters]):
    name: str


@dataclass
class Row(Generic[*Several]):
    name: str


class Envelope(TypedDict, Generic[T]):
    data: T


class Late(typing_extensions.TypedDict, total=False):
    price: typing_extensions.Required[Price]
    note: typing_extensions.ReadOnly[str]


class Packed(msgspec.Struct, Generic[T]):
    data: T


PRICE = Price(Decimal("1.10"))


@pytest.mark.parametrize(
    ("body_type", "value"),
    [
        (Page[Price], Page([PRICE], PRICE, Page([]))),
        (Page[Page[int]], Page([Page([1])])),
        (Page, Page([1, "a"])),
        (Page[Price] | Price, Page([PRICE])),
        (Prices, Prices([PRICE], currency="USD")),
        (Indexed[int, Price], Indexed([1], by_name={"a": PRICE})),
        (Tag, Tag(PRICE)),
        (Order, Order([1, 2])),
        (Job, Job("x")),
        (Row, Row("x")),
        (Row[int, str], Row("x")),
        (Envelope[Price], {"data": PRICE}),
        (Late, {"price": PRICE, "note": "x"}),
        (Packed[int], Packed(1)),
        (Packed[timedelta], Packed(timedelta(1))),
    ],
    ids=str,
)
def test_what_was_sent_is_read(body_type: Any, value: Any) -> None:
    declared = TopicBody(body_type)
    body, media_type = declared.encode(value)
    assert media_type == JSON
    assert declared.decode(body, {CONTENT_TYPE: media_type}, body_type) == value


@pytest.mark.parametrize(
    ("body_type", "value", "reason"),
    [
        (Page[int], Page(["a"]), r"body\.items\[0\] is text, and must be int"),
        (Page[Price], Page([1]), r"body\.items\[0\] is a number, and must be an object"),
        (Late, {"note": "x"}, "the field 'price' of Late is missing"),
    ],
    ids=["int", "object", "required"],
)
def test_what_does_not_fit_is_refused_at_the_send(body_type: Any, value: Any, reason: str) -> None:
    with pytest.raises(MessageRejected, match=reason):
        TopicBody(body_type).encode(value)


@pytest.mark.parametrize(
    ("body_type", "reason"),
    [
        (Page[complex], "a body cannot be decoded as complex"),
        (Page[list[complex]], "a body cannot be decoded as complex"),
        (Swapped[str], r"Swapped and its base .*Page\[int\] use the type variable ~T for different types"),
    ],
    ids=["argument", "inner", "variable"],
)
def test_what_cannot_be_read_is_refused_when_it_is_declared(body_type: Any, reason: str) -> None:
    with pytest.raises(BrokerError, match=reason):
        TopicBody(body_type)
