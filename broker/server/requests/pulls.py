"""Pulls: the messages of one queue from an offset on, and the pulls that wait for one.

    PULL_MESSAGE ──► found: the records ──► nothing yet: held ──► a record of any process is readable ──► looked again

A pull of a queue that a consumer with the store open has is held until that gives it back; then the client goes on from
the group's position.

RocketMQ: PullMessageProcessor, PullRequestHoldService, DefaultMessageStore.getMessage (5.3.3).
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

from broker.consuming.reading import readable_end
from broker.consuming.tags import Selection
from broker.errors import MessageRejected
from broker.filtering.sql92 import Expression, SyntaxFault
from broker.format.commitlog import decode
from broker.format.config import PERM_READ
from broker.format.consumequeue import FILLER_SIZE, Unit
from broker.format.topics import RETRY_PREFIX
from broker.remoting.codes import ResponseCode
from broker.remoting.command import RemotingCommand
from broker.remoting.message_headers import (
    PULL_COMMIT,
    PULL_SUBSCRIPTION,
    PULL_SUSPEND,
    PullMessageRequestHeader,
    PullMessageResponseHeader,
)
from broker.server.context import Refused, Request, ServerContext
from broker.server.counters import GET
from broker.server.requests.queues import queue_range
from broker.server.requests.records import cached_records, read_records
from broker.server.requests.shares import check_place
from broker.store.disk.read_file import NotCached

MESSAGES_MAX, BYTES_MAX = 32, 256 << 10  # RocketMQ: maxTransferCountOnMessageInMemory, -BytesOnMessageInMemory
_UNITS = 1024  # looked at in one go, however few of them match
_HOLD_MAX_S = 60.0
HELD_MAX, HELD_OF_CONNECTION_MAX = 20_000, 4096
TEXT_MAX, TEXT_OF_CONNECTION_MAX = 16 << 20, 1 << 20  # characters of their expressions, 30 bytes each when parsed
EXPRESSION_MAX = 64 << 10  # characters
_SHORT = 1024  # characters that the event loop parses, once
_KEPT = 64  # characters that a pull keeps of what was parsed
_NEW = -1  # in place of the end that was seen: none yet
_LEASED = 1 << 63  # in place of the end that was seen: another has the queue, whatever comes into it

_STATUS = {
    "FOUND": ResponseCode.SUCCESS,
    "NO_MATCHED_MESSAGE": ResponseCode.PULL_RETRY_IMMEDIATELY,
    "MESSAGE_WAS_REMOVING": ResponseCode.PULL_RETRY_IMMEDIATELY,
    "OFFSET_OVERFLOW_ONE": ResponseCode.PULL_NOT_FOUND,
    "OFFSET_OVERFLOW_BADLY": ResponseCode.PULL_OFFSET_MOVED,
    "OFFSET_TOO_SMALL": ResponseCode.PULL_OFFSET_MOVED,
    "OFFSET_RESET": ResponseCode.PULL_OFFSET_MOVED,
}


class Wanted(NamedTuple):
    """Which messages a pull asks for."""

    selection: Selection
    expression: Expression | None = None


class Found(NamedTuple):
    """What a look at a queue gave."""

    status: str
    next_offset: int
    records: bytes = b""
    number: int = 0  # of records


@dataclass(slots=True, eq=False)
class Held:
    """A pull that waits."""

    request: Request
    header: PullMessageRequestHeader
    wanted: Wanted
    size: int  # characters of the expression
    until_s: float  # by the monotonic clock
    seen_end: int
    moved: int | None = None  # where a reset put its group while it waited


def pull_message(context: ServerContext, request: Request) -> RemotingCommand | Held:
    """PULL_MESSAGE and LITE_PULL_MESSAGE."""
    header = PullMessageRequestHeader.decode(request.command.ext)
    _check(context, header)
    text, kind = _subscription(context, header)
    wanted = parse(text, kind, sql92=context.settings.sql92)
    if _commits(header):
        check_place(context, request.connection, header.consumer_group, header.topic, header.queue_id)
        context.positions.commit(*_committed(header), request.connection)
    return look(context, _begun(request, header, wanted, len(text)))


def pull_at_once(context: ServerContext, request: Request) -> RemotingCommand | Held | None:
    """The same for the event loop, which waits for no disk and no lock; None when a reader thread is to do it."""
    header = PullMessageRequestHeader.decode(request.command.ext)
    if not (context.groups.is_current() and context.store.topics_are_current()):
        return None
    if context.groups.get(header.consumer_group) is None:  # it will be made, and written
        return None
    _check(context, header)
    text, kind = _subscription(context, header)
    if len(text) > _SHORT:
        return None
    wanted = parse(text, kind, sql92=context.settings.sql92)
    if wanted.expression is not None or wanted.selection.codes:  # which looks at many
        return None
    try:
        if _commits(header) and not context.positions.commit_at_once(*_committed(header), request.connection):
            return None
        return look(context, _begun(request, header, wanted, len(text)), cached_only=True)
    except NotCached:
        return None


def _queue(held: Held) -> tuple[str, str, int]:
    """Group, topic and queue id."""
    return held.header.consumer_group, held.header.topic, held.header.queue_id


def _commits(header: PullMessageRequestHeader) -> bool:
    return bool(header.sys_flag & PULL_COMMIT) and header.commit_offset >= 0


def _committed(header: PullMessageRequestHeader) -> tuple[str, str, int, int]:
    return header.consumer_group, header.topic, header.queue_id, header.commit_offset


def _begun(request: Request, header: PullMessageRequestHeader, wanted: Wanted, size: int) -> Held:
    hold_s = min(header.suspend_timeout_ms / 1000, _HOLD_MAX_S) if header.sys_flag & PULL_SUSPEND else 0.0
    if len(header.subscription or "") + len(header.expression_type or "") > _KEPT:
        header = replace(header, subscription=None, expression_type=None)
    return Held(request, header, wanted, size, time.monotonic() + max(hold_s, 0.0), _NEW)


def look(context: ServerContext, held: Held, *, cached_only: bool = False) -> RemotingCommand | Held:
    """The answer to a pull, or the pull again when it is to wait on.

    With `cached_only` raises NotCached. Raises StoreError when the store was closed while the pull waited, and Refused
    when its group was paused, or its topic deleted.
    """
    context.store.writer.check_open()
    header = held.header
    if held.seen_end != _NEW:
        _check(context, header)
    first, end = queue_range(context.store, header.topic, header.queue_id, cached_only=cached_only)
    taken = context.positions.take_reset(*_queue(held), held.request.connection, header.queue_offset)  # raise nothing
    moved = held.moved if taken is None else taken
    if moved is not None:
        return _answer(context, held, Found("OFFSET_RESET", moved), first, end)
    if held.seen_end == _LEASED or context.positions.is_leased(header.consumer_group, header.topic, header.queue_id):
        return _leased(context, held, first, end)
    found = _fetch(context, held, first, end, cached_only=cached_only)
    is_empty = found.status in ("OFFSET_OVERFLOW_ONE", "NO_MESSAGE_IN_QUEUE") and header.queue_offset == end
    if is_empty and time.monotonic() < held.until_s:
        held.seen_end = end
        return held
    return _answer(context, held, found, first, end)


def _leased(context: ServerContext, held: Held, first: int, end: int) -> RemotingCommand | Held:
    """The pull of a queue that another has, or had until now: what that did not acknowledge is next."""
    header = held.header
    is_leased = context.positions.is_leased(*_queue(held))
    if is_leased and time.monotonic() < held.until_s:
        held.seen_end = _LEASED
        return held
    position = context.positions.get(*_queue(held))
    next_offset = header.queue_offset if position is None else position
    found = Found("OFFSET_OVERFLOW_ONE" if is_leased else "NO_MATCHED_MESSAGE", next_offset)
    return _answer(context, held, found, first, end)


def _answer(context: ServerContext, held: Held, found: Found, first: int, end: int) -> RemotingCommand:
    header = held.header
    ext = PullMessageResponseHeader(0, found.next_offset, first, end).encode()
    code = _STATUS.get(found.status)
    if code is None:  # NO_MESSAGE_IN_QUEUE
        code = ResponseCode.PULL_NOT_FOUND if header.queue_offset == 0 else ResponseCode.PULL_OFFSET_MOVED
    if found.number:
        context.counters.add(GET, f"{header.topic}@{header.consumer_group}", found.number)
    return held.request.command.answer(code, found.status, ext, found.records)


def _fetch(context: ServerContext, held: Held, first: int, end: int, *, cached_only: bool) -> Found:
    header = held.header
    at = header.queue_offset
    if end == 0:
        return Found("NO_MESSAGE_IN_QUEUE", 0)
    if at < first:
        return Found("OFFSET_TOO_SMALL", first)
    if at >= end:
        return Found("OFFSET_OVERFLOW_ONE" if at == end else "OFFSET_OVERFLOW_BADLY", end)
    queue = context.store.consumequeues.queue(header.topic, header.queue_id)
    if queue is None:
        return Found("NO_MESSAGE_IN_QUEUE", 0)
    most = max(1, min(header.max_msg_nums, MESSAGES_MAX))
    bytes_max = max(1, min(header.max_msg_bytes or BYTES_MAX, BYTES_MAX))
    selection, expression = held.wanted
    places, total = list[tuple[int, int]](), 0
    plain = not selection.codes and expression is None
    block = queue.units.raw(at, min(end - at, most if plain else _UNITS), cached_only=cached_only)
    if plain and (sent := cached_records(context.store.commitlog, block, bytes_max)) is not None:
        return Found("FOUND", at + sent[1], *sent)
    for commitlog_offset, size, code in Unit.STRUCT.iter_unpack(block):
        is_full = len(places) >= most or (places and total + size > bytes_max)
        if is_full or size <= 0 or commitlog_offset < 0:
            break
        at += 1
        is_filler = size == FILLER_SIZE and commitlog_offset == 0
        if not is_filler and selection.may_match(code):
            places.append((commitlog_offset, size))
            total += size
    records = read_records(context.store.commitlog, places, cached_only=cached_only)
    if expression is not None:
        records = [raw for raw in records if expression.matches(decode(raw, check_crc=False).property_map)]
    if records:
        return Found("FOUND", at, b"".join(records), len(records))
    return Found("NO_MATCHED_MESSAGE" if at > header.queue_offset else "MESSAGE_WAS_REMOVING", max(at, first))


def _check(context: ServerContext, header: PullMessageRequestHeader) -> None:
    group, topic = header.consumer_group, header.topic
    config = context.groups.get(group) or context.groups.ensure(group)
    if not config.consume_enable:
        raise Refused(ResponseCode.NO_PERMISSION, f"subscription group no permission, {group}")
    may_broadcast = config.consume_broadcast_enable or header.sys_flag & PULL_SUBSCRIPTION
    if not may_broadcast and context.clients.is_broadcast(group):
        raise Refused(ResponseCode.NO_PERMISSION, f"the consumer group[{group}] can not consume by broadcast way")
    if (found := context.store.topic(topic)) is None:
        raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, apply first please!")
    if not found.perm & PERM_READ:
        raise Refused(ResponseCode.NO_PERMISSION, f"the topic[{topic}] pulling message is forbidden")
    if not 0 <= header.queue_id < max(found.read_queue_count, found.write_queue_count):
        text = f"queueId[{header.queue_id}] is illegal, topic:[{topic}]"
        raise Refused(ResponseCode.INVALID_PARAMETER, f"{text} topicConfig.readQueueNums:[{found.read_queue_count}]")


def _subscription(context: ServerContext, header: PullMessageRequestHeader) -> tuple[str, str]:
    """(expression, its kind): by the subscription in the request, or by the one of the last heartbeat.

    RocketMQ refuses a pull whose subscription is newer than the last heartbeat (SUBSCRIPTION_NOT_LATEST), and the
    client then waits for half a minute; ours takes the one that it has.
    """
    if header.sys_flag & PULL_SUBSCRIPTION:
        text, kind = header.subscription or "", header.expression_type or "TAG"
    else:
        held = context.clients.subscription(header.consumer_group, header.topic)
        if held is None:
            if context.clients.consumers(header.consumer_group) is None:
                text = f"the consumer's group info not exist, {header.consumer_group}"
                raise Refused(ResponseCode.SUBSCRIPTION_NOT_EXIST, text)
            text = f"the consumer's subscription not exist, {header.consumer_group} at {header.topic}"
            raise Refused(ResponseCode.SUBSCRIPTION_NOT_EXIST, text)
        text, kind = held.expression, held.expression_type
    if header.topic.startswith(RETRY_PREFIX):
        return "", "TAG"
    return text, kind


def parse(text: str, kind: str, *, sql92: bool) -> Wanted:
    """What a subscription wants; empty is all. Raises Refused for an expression that is none, or is too long."""
    if len(text) > EXPRESSION_MAX:
        reason = f"an expression has at most {EXPRESSION_MAX} characters, not {len(text)}"
        raise Refused(ResponseCode.SUBSCRIPTION_PARSE_FAILED, f"parse the consumer's subscription failed: {reason}")
    return (_parsed if len(text) > _SHORT else _parsed_once)(text, kind, sql92)


def _parsed(text: str, kind: str, sql92: bool) -> Wanted:
    try:
        if kind == "SQL92":
            if not sql92:
                raise Refused(
                    ResponseCode.SYSTEM_ERROR, "The broker does not support consumer to filter message by SQL92"
                )
            return Wanted(Selection(), Expression.parse(text))
        if kind != "TAG":
            raise SyntaxFault(f"an expression is of the type TAG or SQL92, not {kind!r:.40}")
        return Wanted(Selection.parse(text or "*"))
    except (MessageRejected, SyntaxFault) as error:
        text = f"parse the consumer's subscription failed: {error}"
        raise Refused(ResponseCode.SUBSCRIPTION_PARSE_FAILED, text) from None


_parsed_once = lru_cache(maxsize=1024)(_parsed)  # each pull of a group states the same one


class HeldPulls:
    """The pulls that wait, by queue; all of it runs in the event loop."""

    def __init__(self, context: ServerContext, again: Callable[[Held], None]) -> None:
        """`again(held)` has a pull looked at again."""
        self._context, self._again = context, again
        self._queues: dict[tuple[str, int], list[Held]] = defaultdict(list)
        self._counts: Counter[Any] = Counter()
        self._sizes: Counter[Any] = Counter()  # by connection, characters of expressions
        self._total = self._total_size = 0
        self._readable = -1
        self._checked_s = self._took_s = 0.0

    def __len__(self) -> int:
        return self._total

    def count_of(self, connection: Any) -> int:
        """How many pulls of one connection wait."""
        return self._counts[connection]

    def hold(self, held: Held) -> bool:
        """Let a pull wait; False when too many do, of all or of its connection."""
        connection, size = held.request.connection, held.size
        if self._total >= HELD_MAX or self._counts[connection] >= HELD_OF_CONNECTION_MAX:
            return False
        if self._total_size + size > TEXT_MAX or self._sizes[connection] + size > TEXT_OF_CONNECTION_MAX:
            return False
        self._queues[held.header.topic, held.header.queue_id].append(held)
        self._counts[connection] += 1
        self._sizes[connection] += size
        self._total, self._total_size = self._total + 1, self._total_size + size
        self._readable = -1  # what came while it was looked at
        return True

    def wake(self) -> None:
        """Have those looked at again for whose queue something may have come, or whose time is over."""
        now_s = time.monotonic()
        if not self._queues or now_s - self._checked_s < 4 * self._took_s:  # so many wait that a look takes its time
            return
        readable = readable_end(self._context.store)
        is_time = now_s - self._checked_s >= 0.05
        if readable == self._readable and not is_time:
            return
        self._readable, self._checked_s = readable, now_s
        positions = self._context.positions
        for name in list(self._queues):
            end = self._context.store.writer.queue_end(*name)
            waiting = self._queues[name]
            if positions.has_resets:
                for one in waiting:  # one that is refused, or gone, leaves it to the next pull
                    one.moved = positions.pending_reset(*_queue(one), one.request.connection)
            due = [
                one
                for one in waiting
                if end > one.seen_end
                or now_s >= one.until_s
                or one.moved is not None
                or (one.seen_end == _LEASED and self._is_free(one))
            ]
            for held in due:
                self._release(name, held)
        self._took_s = time.monotonic() - now_s

    def _is_free(self, held: Held) -> bool:
        try:
            return not self._context.positions.is_leased(*_queue(held))
        except OSError:  # no descriptor is free: it waits on
            return False

    def _release(self, name: tuple[str, int], held: Held) -> None:
        waiting = self._queues[name]
        waiting.remove(held)
        if not waiting:
            del self._queues[name]
        connection = held.request.connection
        self._counts[connection] -= 1
        self._sizes[connection] -= held.size
        self._total, self._total_size = self._total - 1, self._total_size - held.size
        if not self._counts[connection]:
            del self._counts[connection], self._sizes[connection]
        if not connection.is_closed:
            self._again(held)

    def drop(self, connection: Any) -> None:
        """A connection is gone."""
        if self._counts[connection]:
            for name, waiting in list(self._queues.items()):
                self._queues[name] = [held for held in waiting if held.request.connection is not connection]
                if not self._queues[name]:
                    del self._queues[name]
        self._total -= self._counts.pop(connection, 0)
        self._total_size -= self._sizes.pop(connection, 0)

    def release_all(self) -> None:
        """At the end: answer all of them now."""
        for name in list(self._queues):
            for held in list(self._queues[name]):
                held.until_s = 0.0
                self._release(name, held)
