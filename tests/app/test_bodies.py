"""Bodies: each type goes out and comes back as it was, and what does not fit says where and why."""

from __future__ import annotations

import contextlib
import enum
import json
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Literal, NewType, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.app.bodies import JSON, OCTETS, TEXT, BodyCodec, TopicBody, encode
from broker.app.cloud_events import CONTENT_TYPE, SCHEMA_VERSION
from broker.app.json_values import builder
from broker.errors import BodyError, BrokerError, MessageRejected


class Size(enum.Enum):
    SMALL = "s"
    LARGE = "l"


OrderId = NewType("OrderId", int)


@dataclass(frozen=True)
class Line:
    item: str
    count: int = 1
    price: Decimal = Decimal(0)


@dataclass
class Order:
    id: OrderId
    lines: list[Line]
    placed: datetime
    size: Size | None = None
    parent: Order | None = None
    notes: dict[str, str] = field(default_factory=dict)
    kind: Literal["new", "again"] = "new"


class PydanticOrder(pydantic.BaseModel):
    id: int
    when: date
    lines: list[Line] = []


class StructOrder(msgspec.Struct):
    id: int
    tags: list[str] = []


class Dict(TypedDict):
    id: int
    names: list[str]


NOW = datetime(2026, 11, 22, 8, 30, tzinfo=UTC)
ORDER = Order(OrderId(7), [Line("lamp", 2, Decimal("9.90")), Line("pen")], NOW, Size.LARGE, Order(OrderId(6), [], NOW))

VALUES = [
    (b"\x00\xff", bytes, OCTETS),
    ("größer", str, TEXT),
    ({"a": [1, 2.5, None, True]}, dict, JSON),
    ([1, 2], list[int], JSON),
    (ORDER, Order, JSON),
    (PydanticOrder(id=1, when=date(2026, 1, 2), lines=[Line("x")]), PydanticOrder, JSON),
    (StructOrder(3, ["a"]), StructOrder, JSON),
    ({"id": 1, "names": ["a"]}, Dict, JSON),
    ({1: UUID(int=5)}, dict[int, UUID], JSON),
    ((1, "a"), tuple[int, str], JSON),
    ({b"ab"}, set[bytes], JSON),
    (3, int | str, JSON),
    ([PydanticOrder(id=1, when=date(2026, 1, 2))], list[PydanticOrder], JSON),
    ([StructOrder(3)], list[StructOrder], JSON),
]


@pytest.mark.parametrize(("value", "hint", "content_type"), VALUES)
def test_what_is_sent_is_received(value: Any, hint: Any, content_type: str) -> None:
    body, said = encode(value)
    assert said == content_type
    assert TopicBody().decode(body, {CONTENT_TYPE: said}, hint) == value
    if hint is not str:
        assert TopicBody().decode(body, {}, hint) == value, "a message of another producer says nothing of its type"


def test_without_a_hint_the_topic_and_then_the_content_type_decide() -> None:
    body, said = encode(Line("lamp"))
    assert TopicBody(Line).decode(body, {}, None) == Line("lamp")
    assert TopicBody().decode(body, {CONTENT_TYPE: said}, None) == {"item": "lamp", "count": 1, "price": "0"}
    assert TopicBody().decode(b"a", {CONTENT_TYPE: "text/plain; charset=utf-8"}, None) == "a"
    assert TopicBody().decode(b"a", {}, None) == b"a"


BAD = [
    (b"{", Line, r"not JSON"),
    (b'{"item": NaN}', Line, r"NaN is not a JSON value"),
    (b"\xff", Line, r"not JSON"),
    (b"\xff", str, r"not text in UTF-8"),
    (b"[]", Line, r"body is a list, and must be an object"),
    (b"{}", Line, r"the field 'item' of Line is missing"),
    (b'{"item": 1}', Line, r"body\.item is a number, and must be str"),
    (b'{"item": "a", "count": "3"}', Line, r"body\.count is text, and must be int"),
    (b'{"item": "a", "count": true}', Line, r"body\.count is true or false, and must be int"),
    (b'{"item": "a", "price": "x"}', Line, r"body\.price is 'x', and must be a Decimal"),
    (b'{"item": null}', Line, r"body\.item is null, and must be str"),
    (b'[{"item": "a"}, {"item": 2}]', list[Line], r"body\[1\]\.item is a number"),
    (b'{"a": "b"}', dict[str, int], r"body\.a is text"),
    (b'"x"', Size, r"'x', which is not a Size"),
    (b'"x"', Literal["a", "b"], r"must be one of 'a', 'b'"),
    (b'{"id": "x", "when": "2026-01-01"}', PydanticOrder, r"body: 1 validation error"),
    (b'{"id": "x"}', StructOrder, r"body: Expected `int`, got `str`"),
    (b"[1]", tuple[int, str], r"must be 2 values"),
    (b"[" * 100_000, list, r"not JSON"),
]


@pytest.mark.parametrize(("body", "hint", "reason"), BAD)
def test_what_does_not_decode_says_where_and_why(body: bytes, hint: Any, reason: str) -> None:
    with pytest.raises(BodyError, match=reason):
        TopicBody().decode(body, {}, hint)


@given(st.binary(max_size=60) | st.text(max_size=40).map(str.encode), st.sampled_from([hint for _, hint, _ in VALUES]))
def test_any_bytes_decode_or_raise_a_body_error(body: bytes, hint: Any) -> None:
    with contextlib.suppress(BodyError):
        TopicBody().decode(body, {CONTENT_TYPE: JSON}, hint)


def test_other_content_types_are_refused() -> None:
    with pytest.raises(BodyError, match=r"is application/avro, and the handler takes Line"):
        TopicBody().decode(b"{}", {CONTENT_TYPE: "application/avro"}, Line)
    assert TopicBody().decode(b'{"item":"a"}', {CONTENT_TYPE: "Application/CloudEvent+json; a=b"}, Line) == Line("a")


@pytest.mark.parametrize("value", [float("nan"), {"a": object()}, {("a",): 1}, "\ud800", {"a": "\ud800"}, Line])
def test_what_cannot_be_written_is_refused_before_anything_is_sent(value: Any) -> None:
    with pytest.raises(MessageRejected, match="body"):
        encode(value)


@pytest.mark.parametrize("hint", [complex, dict[float, int], type, list[range], "Order"])
def test_a_type_without_json_is_refused_when_it_is_declared(hint: Any) -> None:
    with pytest.raises(BrokerError, match="cannot be decoded"):
        TopicBody(hint)


def test_a_topic_takes_its_type_only() -> None:
    twin = type("Line", (), {"__module__": "__main__"})  # as of a module that is the program, too
    with pytest.raises(
        MessageRejected, match=r"this is one of another class Line: .* ran twice \(__main__ and tests\."
    ):
        TopicBody(Line).encode(twin())
    with pytest.raises(MessageRejected, match="the topic takes Line, and this is dict"):
        TopicBody(Line).encode({"item": "a"})
    with pytest.raises(MessageRejected, match="takes list"):
        TopicBody(list[Line]).encode("a")


def test_a_whole_number_is_a_float() -> None:
    """As a field of a dataclass takes it: `app.send("prices", 2)` was refused, which a type checker lets pass."""
    body, media_type = TopicBody(float).encode(2)
    found = TopicBody(float).decode(body, {CONTENT_TYPE: media_type}, float)
    assert (found, type(found)) == (2.0, float)
    for value in (True, "2", 10**400):
        with pytest.raises(MessageRejected):
            TopicBody(float).encode(value)


def test_versions() -> None:
    """An older one is upgraded, a newer one is not guessed at."""

    def upgrade(version: int, value: Any) -> Any:
        assert version == 1
        return {"item": value["name"]}

    topic = TopicBody(Line, version=2, upgrade=upgrade)
    assert topic.decode(b'{"name": "a"}', {SCHEMA_VERSION: "1"}, Line) == Line("a")
    assert topic.decode(b'{"item": "a"}', {SCHEMA_VERSION: "2"}, Line) == Line("a")
    assert topic.decode(b'{"item": "a"}', {}, Line) == Line("a")
    with pytest.raises(BodyError, match="schema version 3, and this application knows up to 2"):
        topic.decode(b'{"item": "a"}', {SCHEMA_VERSION: "3"}, Line)
    with pytest.raises(BodyError, match="of version 1 was not upgraded: KeyError"):
        topic.decode(b"{}", {SCHEMA_VERSION: "1"}, Line)
    for wrong in ({"version": 0}, {"upgrade": upgrade}, {"version": True}):
        with pytest.raises(BrokerError, match="version"):
            TopicBody(Line, **wrong)  # type: ignore[arg-type]


def test_an_upgrade_may_return_what_json_does_not_have() -> None:
    class Priced(pydantic.BaseModel):
        amount: Decimal

    def upgrade(version: int, value: Any) -> Any:
        return {"amount": Decimal(value["euros"])} if version == 1 else Priced(amount=Decimal(value["euros"]))

    topic = TopicBody(Priced, version=3, upgrade=upgrade)
    for version in "12":
        assert topic.decode(b'{"euros": 2}', {SCHEMA_VERSION: version}, Priced) == Priced(amount=Decimal(2))


def test_a_codec_of_the_application() -> None:
    reverse = BodyCodec("application/x-reversed", lambda text: text[::-1].encode(), lambda body: body.decode()[::-1])
    topic = TopicBody(str, codec=reverse)
    assert topic.encode("abc") == (b"cba", "application/x-reversed")
    assert topic.decode(b"cba", {CONTENT_TYPE: "application/x-reversed"}, None) == "abc"
    assert topic.decode(b"cba", {}, bytes) == b"cba"
    for body, said, hint, reason in (
        (b"\xff", "", None, "is not application/x-reversed: UnicodeDecodeError"),
        (b"a", JSON, None, "is application/json, and the topic's codec reads application/x-reversed"),
        (b"a", "", int, "returned str, and the handler takes int"),
    ):
        with pytest.raises(BodyError, match=reason):
            topic.decode(body, {CONTENT_TYPE: said}, hint)


def test_pydantic_and_msgspec_agree_with_the_dataclass() -> None:
    """The same JSON, whichever library made it."""
    assert json.loads(encode(StructOrder(1, ["a"]))[0]) == {"id": 1, "tags": ["a"]}
    assert json.loads(encode(PydanticOrder(id=1, when=date(2026, 1, 2)))[0]) == {
        "id": 1,
        "when": "2026-01-02",
        "lines": [],
    }
    assert builder(Line)({"item": "a", "later": "a field of tomorrow"}, "body") == Line("a")


class Rate(enum.Enum):
    FULL = 1.0


@dataclass
class Nested:
    below: list[Nested | None]


ODD: list[tuple[Any, bytes, str]] = [
    (float, b"1" + b"0" * 400, "OverflowError"),
    (Rate, b"1e999", "MessageRejected"),
    (set[Any], b"[[1]]", "TypeError: .*unhashable type: 'list'"),
    (Nested, b'{"below":[' * 400 + b"]}" * 400, "RecursionError"),
]


@pytest.mark.parametrize(("kind", "body", "reason"), ODD, ids=["too large", "no number", "no set", "too deep"])
def test_whatever_a_type_raises_is_a_body_that_does_not_decode(kind: Any, body: bytes, reason: str) -> None:
    """Another error would end the worker, and the next one would get the same message."""
    with pytest.raises(BodyError, match=f"the body cannot be read as {kind.__name__}: {reason}"):
        TopicBody().decode(body, {CONTENT_TYPE: JSON}, kind)


def test_a_set_of_lists_is_refused_at_the_send() -> None:
    with pytest.raises(MessageRejected, match=r"its handlers could not read this one: .*unhashable"):
        TopicBody(set[Any]).encode({(1,)})
