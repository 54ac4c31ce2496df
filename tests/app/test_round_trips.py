"""What a topic takes can be read by its handlers; what they could not read is refused at the send, with the field."""

from __future__ import annotations

import contextlib
import enum
import math
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Any, Literal, NewType, NotRequired, Required, TypedDict

import msgspec
import pydantic
import pytest
from pydantic.alias_generators import to_camel

import broker
from broker.app.bodies import JSON, OCTETS, TEXT, TopicBody, encode
from broker.app.cloud_events import CONTENT_TYPE
from broker.errors import BodyError, BrokerError, MessageRejected, TransactionError
from tests.app.shop import Order, Placed, count, received


class Color(enum.StrEnum):
    RED = "red"


class Corner(enum.Enum):
    LEFT = (0, 0)
    DAY = date(2026, 1, 2)


class Way(enum.Flag):
    IN = 1
    OUT = 2


class Counted(TypedDict):
    id: int


class Noted(TypedDict):
    id: int
    note: NotRequired[str]


class NeedsId(TypedDict, total=False):
    id: Required[int]


class Tree(TypedDict, total=False):
    below: list[Tree]


OrderNo = NewType("OrderNo", str)


@dataclass
class Painted:
    color: Color
    corner: Corner | None = None


@dataclass
class Positive:
    amount: int

    def __post_init__(self) -> None:
        if self.amount < 0:
            raise self.Wrong("amount is below 0")

    class Wrong(Exception):
        pass


@dataclass
class Unfilled:
    id: int
    total: int = field(init=False)


class Aliased(pydantic.BaseModel):
    order_id: int = pydantic.Field(alias="orderId")


class ReadUnder(pydantic.BaseModel):
    order_id: int = pydantic.Field(validation_alias=pydantic.AliasChoices("orderId", "id"))


class WrittenUnder(pydantic.BaseModel):
    order_id: int = pydantic.Field(serialization_alias="orderId")
    item: str = pydantic.Field("", serialization_alias="Item")


class Camel(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(alias_generator=to_camel, extra="forbid", serialize_by_alias=False)
    order_id: int
    first_line: Aliased


class HoldsWritten(pydantic.BaseModel):
    line: list[WrittenUnder] = pydantic.Field(alias="Line")


class Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)
    at: datetime
    pair: tuple[int, ...] = ()


class Computed(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    net: int

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def gross(self) -> int:
        return self.net * 2


class Excluded(pydantic.BaseModel):
    id: int
    note: str = pydantic.Field(exclude=True)


class Written(pydantic.BaseModel):
    id: int

    @pydantic.field_serializer("id")
    def number(self, value: int) -> str:
        return f"#{value}"


class Floats(pydantic.BaseModel):
    value: float | None


class Octets(pydantic.BaseModel):
    value: bytes


class Secret(pydantic.BaseModel):
    id: int
    hidden: pydantic.SecretStr


class Revealed(pydantic.BaseModel):
    hidden: pydantic.SecretStr

    @pydantic.field_serializer("hidden", when_used="json")
    def reveal(self, value: pydantic.SecretStr) -> str:
        return value.get_secret_value()


class Root(pydantic.RootModel[list[Aliased]]):
    pass


class Struct(msgspec.Struct):
    id: int


class Shelf(msgspec.Struct):
    places: dict[int, str]


@dataclass
class Holding:
    strict: Strict
    aliased: list[Aliased] = field(default_factory=list)


AT = datetime(2026, 11, 22, 8, 30, tzinfo=UTC)
LINE = Aliased(orderId=3)

# (type of the topic, value, what is written)
KEPT: list[tuple[Any, Any, bytes]] = [
    (Color, Color.RED, b'"red"'),
    (Color | None, Color.RED, b'"red"'),
    (Corner, Corner.LEFT, b"[0,0]"),
    (Corner, Corner.DAY, b'"2026-01-02"'),
    (Way, Way.IN | Way.OUT, b"3"),
    (Painted, Painted(Color.RED, Corner.LEFT), b'{"color":"red","corner":[0,0]}'),
    (Counted, {"id": 1}, b'{"id":1}'),
    (Noted, {"id": 1}, b'{"id":1}'),
    (Tree, {"below": [{}, {"below": []}]}, b'{"below":[{},{"below":[]}]}'),
    (Annotated[int, "positive"], 5, b"5"),
    (Annotated[str, "short"], "a", b"a"),
    (OrderNo, "a", b"a"),
    (Literal["a", 1], "a", b"a"),
    (int | str, "5", b"5"),
    (int | str, 5, b"5"),
    (bytes | None, b"\xff", b"\xff"),
    (date | str, "2026-01-02", b"2026-01-02"),
    (date | str, date(2026, 1, 2), b'"2026-01-02"'),
    (Any, "a", b"a"),
    (Any, b"a", b"a"),
    (object, {"a": 1}, b'{"a":1}'),
    (Aliased, Aliased(orderId=1), b'{"orderId":1}'),
    (ReadUnder, ReadUnder(orderId=1), b'{"order_id":1}'),
    (WrittenUnder, WrittenUnder(order_id=1, item="a"), b'{"order_id":1,"item":"a"}'),
    (Camel, Camel(orderId=1, firstLine=LINE), b'{"orderId":1,"firstLine":{"orderId":3}}'),
    (HoldsWritten, HoldsWritten(Line=[WrittenUnder(order_id=1)]), b'{"line":[{"order_id":1,"item":""}]}'),
    (Strict, Strict(at=AT, pair=(1, 2)), b'{"at":"2026-11-22T08:30:00Z","pair":[1,2]}'),
    (
        Holding, Holding(Strict(at=AT), [LINE]),
        b'{"strict":{"at":"2026-11-22T08:30:00Z","pair":[]},"aliased":[{"orderId":3}]}',
    ),
    (list[Computed], [Computed(net=1)], b'[{"net":1}]'),
    (Computed, Computed(net=1), b'{"net":1}'),
    (None, Computed(net=1), b'{"net":1}'),
    (None, Written(id=1), b'{"id":"#1"}'),
    (Revealed, Revealed(hidden="p"), b'{"hidden":"p"}'),
    (Revealed, Revealed(hidden="*****"), b'{"hidden":"*****"}'),
    (Floats, Floats(value=None), b'{"value":null}'),
    (Shelf, Shelf({7: "lamp"}), b'{"places":{"7":"lamp"}}'),
    (Root, Root([LINE]), b'[{"orderId":3}]'),
]  # fmt: skip


@pytest.mark.parametrize(("declared", "value", "written"), KEPT)
def test_a_handler_gets_what_was_sent(declared: Any, value: Any, written: bytes) -> None:
    topic = TopicBody(declared)
    body, content_type = topic.encode(value)
    assert body == written
    hint = declared if declared is not None or isinstance(value, Written) else type(value)
    if hint is not None:
        assert topic.decode(body, {CONTENT_TYPE: content_type}, hint) == value
        assert topic.decode(body, {CONTENT_TYPE: content_type}, None) == value or declared is None


REFUSED: list[tuple[Any, Any, str]] = [
    (Placed, Placed(None), r"the topic takes Placed, .*: body\.order_id is null, and must be int"),  # type: ignore[arg-type]
    (Placed, Placed(True), r"body\.order_id is true or false, and must be int"),
    (Placed, Placed(1, 5), r"body\.item is a number, and must be str"),  # type: ignore[arg-type]
    (list[Placed], [Placed(1), Placed("x")], r"body\[1\]\.order_id is text, and must be int"),  # type: ignore[arg-type]
    (int, True, "body is true or false, and must be int"),
    (Counted, {"id": None}, r"body\.id is null, and must be int"),
    (Counted, {}, "the field 'id' of Counted is missing"),
    (NeedsId, {}, "the field 'id' of NeedsId is missing"),
    (Counted, [], "the topic takes dict, and this is list"),
    (Annotated[int, "positive"], "5", "the topic takes int, and this is str"),
    (Color, "red", "the topic takes Color, and this is str"),
    (int | str, 5.5, "body is a number, and must be str"),
    (Literal["a", 1], "b", "must be one of 'a', 1"),
    (list[int], ["a"], r"body\[0\] is text"),
    (Unfilled, Unfilled(1), "the body of Unfilled cannot be written as JSON: .*'total'"),
    (Excluded, Excluded(id=1, note="a"), "note: Field required"),
    (Written, Written(id=1), "id: Input should be a valid integer"),
    (Floats, Floats(value=math.nan), "the body of Floats has a float that JSON has not, as NaN"),
    (Octets, Octets(value=b"\xff"), "cannot be written as JSON: .*invalid utf-8"),
    (None, Octets(value=b"\xff"), "cannot be written as JSON: .*invalid utf-8"),
    (Secret, Secret(id=1, hidden="p"), "the body of Secret has a secret, for which pydantic writes stars"),
    (None, Secret(id=1, hidden="p"), "the body of Secret has a secret, for which pydantic writes stars"),
    (list[Secret], [Secret(id=1, hidden="p")], "has a secret"),
    (Struct, Struct("x"), "Expected `int`, got `str`"),  # type: ignore[arg-type]
    (None, Struct(object()), "cannot be written as JSON"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("declared", "value", "sentence"), REFUSED)
def test_what_no_handler_could_read_is_refused_at_the_send(declared: Any, value: Any, sentence: str) -> None:
    with pytest.raises(MessageRejected, match=sentence) as caught:
        TopicBody(declared).encode(value)
    assert "\n" not in str(caught.value)


def test_an_object_that_was_changed_since_it_was_checked() -> None:
    amount = Positive(1)
    assert TopicBody(Positive).encode(amount)[0] == b'{"amount":1}'
    amount.amount = -1
    with pytest.raises(MessageRejected, match="body: amount is below 0"):
        TopicBody(Positive).encode(amount)


def place_without_flush(app: broker.App) -> None:
    with app.transaction() as session:
        order = Order(item="lamp")
        session.add(order)
        with contextlib.suppress(MessageRejected):
            app.send("orders", Placed(order.id, "lamp"))


def test_a_key_that_the_database_has_not_given_yet(app: broker.App) -> None:
    """Nothing is stored, also when the application looks away."""
    with app:
        with pytest.raises(TransactionError, match=r"body\.order_id is null"):
            place_without_flush(app)
        assert count(app.engine, Order) == 0
        assert received(app) == []


def test_messages_of_older_versions_are_read() -> None:
    """With names of fields instead of aliases; an enum of texts, and a union with them, as plain text."""
    json, text = {CONTENT_TYPE: JSON}, {CONTENT_TYPE: TEXT}
    assert TopicBody(Aliased).decode(b'{"order_id":1}', json, None) == Aliased(orderId=1)
    line = b'{"order_id":1,"first_line":{"order_id":3}}'
    assert TopicBody().decode(line, json, Camel) == Camel(orderId=1, firstLine=LINE)
    assert TopicBody().decode(b"red", text, Color) is Color.RED
    assert TopicBody().decode(b"red", text, Color | None) is Color.RED
    assert TopicBody(Color).decode(b"red", text, str) == "red"
    assert TopicBody().decode(b"[1]", {}, Any) == [1], "nothing says what it is, and the handler takes no bytes"
    with pytest.raises(BodyError, match="'blue', which is not a Color"):
        TopicBody().decode(b"blue", text, Color)
    with pytest.raises(BodyError, match="is text/plain, and the handler takes Placed"):
        TopicBody().decode(b"{}", text, Placed)


def test_text_and_bytes() -> None:
    assert encode("red") == (b"red", TEXT)
    assert TopicBody(str).encode(Color.RED) == (b"red", TEXT)
    assert encode(Color.RED) == (b'"red"', JSON)
    assert TopicBody().decode(b'"red"', {CONTENT_TYPE: JSON}, str) == "red"
    assert TopicBody().decode(b'{"a": 1}', {CONTENT_TYPE: JSON}, str) == '{"a": 1}', "an object is read as it is"
    assert TopicBody(bytes | None).encode(b"a") == (b"a", OCTETS)


@dataclass
class Waits:
    id: int
    wait: timedelta = timedelta()


@dataclass
class HoldsWaits:
    all: dict[str, Waits | None]


class WaitingDict(TypedDict):
    wait: timedelta


@dataclass
class Later:
    id: NotThereYet  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        (Waits, "the field 'wait' of Waits: a body cannot be decoded as timedelta"),
        (HoldsWaits, "the field 'all' of HoldsWaits: the field 'wait' of Waits: a body cannot be decoded as timedelta"),
        (WaitingDict, "the field 'wait' of WaitingDict: a body cannot be decoded as timedelta"),
        (list[Waits], "the field 'wait' of Waits"),
    ],
)
def test_a_field_without_json_is_refused_when_it_is_declared(app: broker.App, kind: Any, sentence: str) -> None:
    def handle(value) -> None:  # type: ignore[no-untyped-def]
        pass

    handle.__annotations__["value"] = kind
    for declare in (lambda: app.topic("waits", kind), lambda: app.on("waits", group="waits")(handle)):
        with pytest.raises(BrokerError, match=sentence):
            declare()


def test_a_field_whose_type_is_never_defined() -> None:
    topic = TopicBody(Later)
    with pytest.raises(MessageRejected, match="the fields of Later cannot be read: name 'NotThereYet'"):
        topic.encode(Later(1))
    with pytest.raises(BodyError, match="the fields of Later cannot be read"):
        topic.decode(b'{"id": 1}', {}, None)
