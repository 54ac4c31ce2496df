"""What `@app.on` declares: which messages a function handles, and what it is called with; checked there."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

from broker.app.bodies import TopicBody, check_body_type
from broker.app.retry import Retry
from broker.app.type_hints import alternatives
from broker.consuming.arguments import check_consumer_names
from broker.consuming.group.positions import Start
from broker.consuming.tags import Selection
from broker.errors import BrokerError, MessageRejected, shown
from broker.message import ReceivedMessage

if TYPE_CHECKING:
    import contextlib

    from sqlalchemy import Engine
    from sqlalchemy.ext.asyncio import AsyncEngine

    from broker.database.dedup import Processed
    from broker.live import LiveStore

_CONCURRENCY_MAX = 1000
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Parameters(NamedTuple):
    """The parameters of a handler by what they receive; None for what it does not take."""

    body: str | None
    body_type: Any  # None without an annotation
    session: str | None
    is_async_session: bool
    message: str | None
    session_type: Any  # the class in the annotation, which may be one below SQLAlchemy's; None without an annotation


@dataclass(frozen=True, eq=False)
class Handler:
    """A function, and the messages that it handles. Raises BrokerError for what cannot work."""

    function: Callable[..., Any]
    topic: str
    group: str
    tags: str
    retry: Retry
    concurrency: int
    ordered: bool
    start: Any
    parameters: Parameters = field(init=False)
    is_async: bool = field(init=False)
    selection: Selection = field(init=False)

    def __post_init__(self) -> None:
        _check_function(self.function)
        if not isinstance(cast(object, self.topic), str):
            text = f"{self.name}: a handler is of one topic, as text, not {self.topic!r:.60}"
            raise MessageRejected(f"{text}: declare it once for each topic")
        check_consumer_names(self.group, self.topic)
        Start.parse(self.start)
        if not isinstance(self.retry, Retry):
            raise BrokerError(f"{self.name}: retry= takes a broker.Retry(...), not {shown(self.retry)}")
        if type(self.ordered) is not bool:
            raise BrokerError(f"{self.name}: ordered is True or False, not {shown(self.ordered)}")
        if type(self.concurrency) is not int or not 1 <= self.concurrency <= _CONCURRENCY_MAX:
            reason = f"concurrency is a number of threads from 1 to {_CONCURRENCY_MAX}"
            raise BrokerError(f"{self.name}: {reason}, not {self.concurrency!r:.60}")
        found = {
            "parameters": parameters_of(self.function, self.name),
            "is_async": inspect.iscoroutinefunction(self.function),
            "selection": Selection.parse(self.tags),
        }
        self.__dict__.update(found)  # past the frozen fields
        if self.parameters.session is not None and self.parameters.is_async_session != self.is_async:
            kind = ("a Session", "an AsyncSession")[self.is_async]
            raise BrokerError(f"{self.name} is {'async' if self.is_async else 'not async'}: its session must be {kind}")

    @property
    def name(self) -> str:
        """The function, for people."""
        return f"{self.function.__module__}.{self.function.__qualname__}"

    def arguments(self, value: Any, message: ReceivedMessage, session: Any) -> dict[str, Any]:
        """What the function is called with."""
        given = ((self.parameters.body, value), (self.parameters.session, session), (self.parameters.message, message))
        return {name: one for name, one in given if name is not None}


def parameters_of(function: Callable[..., Any], name: str) -> Parameters:
    """Which parameter of a function receives what. Raises BrokerError.

    A parameter annotated with a session of SQLAlchemy's, or named `session`, receives the session; one annotated with
    `ReceivedMessage`, or named `message`, the message; the first of the others the body. The rest needs defaults.
    `X | None` is as X: a handler is called with both.
    """
    hints = _hints(function, name)
    body = body_type = session = session_type = message = None
    is_async_session = inspect.iscoroutinefunction(function)
    try:
        signature = inspect.signature(function)
    except ValueError:  # some functions of C
        text = "its parameters are not known: write a `def` that calls it, and decorate that"
        raise BrokerError(f"{name} cannot be a handler, since {text}") from None
    _check_bound(function, signature, name)
    for parameter in signature.parameters.values():
        hint = hints.get(parameter.name)
        if parameter.kind not in _NAMED:
            raise BrokerError(f"{name}: a handler has plain parameters, and {parameter} is not one")
        if (kind := _session_type(hint, is_async=inspect.iscoroutinefunction(function))) or (
            hint is None and parameter.name == "session"
        ):
            session, session_type = _only(session, parameter.name, name, "session"), kind
            is_async_session = is_async_session if kind is None else _session_class(kind) == "AsyncSession"
        elif _some(hint) == [ReceivedMessage] or (hint is None and parameter.name == "message"):
            message = _only(message, parameter.name, name, "message")
        elif body is None:
            body, body_type = parameter.name, hint
        elif parameter.default is inspect.Parameter.empty:
            text = "besides the body a handler takes a Session or AsyncSession, and a broker.ReceivedMessage"
            raise BrokerError(f"{name}: nothing is known to give for the parameter {parameter.name!r}: {text}")
    if body_type is not None:
        check_body_type(body_type)
    if session_type is not None:
        _check_session_type(session_type, name)
    return Parameters(body, body_type, session, is_async_session, message, session_type)


def _check_function(function: object) -> None:
    """Raises BrokerError for what is not a function or a method.

    Another object that can be called, a functools.partial for one, has no name of its own, by which the log and the
    metrics know a handler.
    """
    is_function = callable(function) and not isinstance(function, type) and hasattr(function, "__qualname__")
    if not is_function:
        step = ": write a `def` that calls it, and decorate that" if callable(function) else ""
        raise BrokerError(f"@app.on decorates a function, not {shown(function)}{step}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        name = f"{function.__module__}.{function.__qualname__}"
        raise BrokerError(f"{name} has a yield, so a call of it runs nothing: a handler is a function without one")


def _check_bound(function: Callable[..., Any], signature: inspect.Signature, name: str) -> None:
    """Raises BrokerError for a function in the body of a class, whose `self` would get the body of the message."""
    in_class = function.__qualname__.rpartition(".")[0].rpartition(".")[2] not in ("", "<locals>")
    if in_class and next(iter(signature.parameters), None) == "self" and not inspect.ismethod(function):
        step = "declare it of an object, app.on(...)(Shop().handle), or as a function outside the class"
        raise BrokerError(f"{name} is a method, and nothing is known to give for self: {step}")


def _hints(function: Callable[..., Any], name: str) -> Mapping[str, Any]:
    try:
        hints = typing.get_type_hints(function)
        for hint in hints.values():
            alternatives(hint)  # an alias is read only now
        return hints
    except Exception as error:  # noqa: BLE001 - an annotation in quotes is any expression
        text = "write types, and import what they name outside TYPE_CHECKING, so that its arguments can be made"
        raise BrokerError(f"{name}: its annotations cannot be read ({error}): {text}") from None


def _some(hint: Any) -> list[Any]:
    """The types of a union besides None; of another type itself."""
    return [one for one in alternatives(hint) if one is not type(None)]


def _session_type(hint: Any, *, is_async: bool) -> Any:
    """The class of a session, SQLAlchemy's own or one below it; of a union of both kinds, the one that fits."""
    kinds = {_session_class(one): one for one in _some(hint)}
    if not kinds or None in kinds:
        return None
    return kinds[("Session", "AsyncSession")[is_async]] if len(kinds) > 1 else next(iter(kinds.values()))


def _check_session_type(kind: Any, name: str) -> None:
    """Raises BrokerError for a class of sessions that cannot be made of an engine alone."""
    try:
        inspect.signature(kind).bind("engine")
    except TypeError as error:
        text = f"{name}: a {kind.__name__} is made of the engine alone, and its __init__ says: {error}"
        raise BrokerError(f"{text}. Annotate the session with a class that needs no more") from None


def _session_class(kind: Any) -> str | None:
    """The name of SQLAlchemy's class, without importing it."""
    for one in getattr(kind, "__mro__", ()):
        if one.__name__ in ("Session", "AsyncSession") and one.__module__.startswith("sqlalchemy."):
            return str(one.__name__)
    return None


def _only(known: str | None, name: str, handler: str, what: str) -> str:
    if known is not None:
        raise BrokerError(f"{handler} takes the {what} twice: {known} and {name}")
    return name


class HandlerHost(Protocol):
    """The application that handlers belong to, as its workers see it: `broker.App`."""

    engine: Engine | None
    async_engine: AsyncEngine | None
    processed: Processed

    @property
    def store(self) -> LiveStore: ...
    @property
    def groups(self) -> list[HandlerGroup]: ...
    def start(self) -> object: ...
    def body_of(self, topic: str) -> TopicBody: ...
    def entered(self, session: Any) -> contextlib.AbstractContextManager[None]: ...


@dataclass(frozen=True)
class HandlerGroup:
    """The handlers of one consumer group, which are one subscription. Raises BrokerError when they contradict."""

    group: str
    handlers: tuple[Handler, ...]

    def __post_init__(self) -> None:
        first = self.handlers[0]
        for one in self.handlers[1:]:
            for name in ("concurrency", "ordered", "start"):
                if getattr(one, name) != getattr(first, name):
                    reason = (
                        f"{first.name} and {one.name} are of group {self.group} and share its threads and positions"
                    )
                    raise BrokerError(f"{reason}: give both the same {name}, or a group of its own to one")
        for number, one in enumerate(self.handlers):
            for other in self.handlers[:number]:
                if one.topic == other.topic and _overlap(one.selection, other.selection):
                    text = f"{other.name} and {one.name} both handle {one.topic} in group {self.group}"
                    raise BrokerError(
                        f"{text}, and a group handles a message once: give one another group, or other tags"
                    )

    @property
    def topics(self) -> tuple[str, ...]:
        return tuple(sorted({one.topic for one in self.handlers}))

    @property
    def tags(self) -> str:
        """What the consumer selects: the tags of all handlers where there is one topic, else everything."""
        if len(self.topics) > 1 or any(one.selection.takes_all for one in self.handlers):
            return "*"
        return " || ".join(one.tags for one in self.handlers)

    @property
    def max_retries(self) -> int:
        return max(one.retry.max_retries for one in self.handlers)

    def handler_of(self, message: ReceivedMessage) -> Handler | None:
        """The handler of a message; None when no handler selects it."""
        for one in self.handlers:
            if one.topic == message.topic and one.selection.matches(message.tag):
                return one
        return None


def groups_of(handlers: Iterable[Handler]) -> list[HandlerGroup]:
    """The handlers by consumer group, in the order of their declaration."""
    found: dict[str, list[Handler]] = {}
    for one in handlers:
        found.setdefault(one.group, []).append(one)
    return [HandlerGroup(group, tuple(members)) for group, members in found.items()]


def replayed(group: HandlerGroup, as_group: str, start: Any) -> HandlerGroup:
    """The handlers of a group under another group's name, which begins at a time and keeps positions of its own.

    Raises BrokerError, MessageRejected.
    """
    if as_group == group.group:
        raise BrokerError(f"a replay needs a group of its own, and {as_group} is the group that it repeats")
    return HandlerGroup(as_group, tuple([replace(one, group=as_group, start=start) for one in group.handlers]))


def _overlap(one: Selection, other: Selection) -> bool:
    return one.takes_all or other.takes_all or bool(one.tags & other.tags)
