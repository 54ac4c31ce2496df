"""Which rights a request needs, by what its handler will read: its own fields, its body, or the record that it names.

A field that the handler does not read gives no right. RocketMQ: PlainAccessResource.parse (4.9.8).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from broker.format import properties as names
from broker.format.topics import DLQ_PREFIX, HALF_TOPIC, PARK_TOPIC, RETRY_PREFIX, SCHEDULE_TOPIC
from broker.remoting.admin_headers import ConsumerGroupRequestHeader
from broker.remoting.bodies import decode_assignment_query, decode_heartbeat, decode_lock_batch
from broker.remoting.codes import ResponseCode
from broker.remoting.message_headers import (
    ConsumerSendMsgBackRequestHeader,
    PullMessageRequestHeader,
    QueryConsumeQueueRequestHeader,
    QueryConsumerOffsetRequestHeader,
    QueryMessageRequestHeader,
    UpdateConsumerOffsetRequestHeader,
    ViewMessageRequestHeader,
)
from broker.server import acl
from broker.server.acl import PUB, SUB, Account
from broker.server.context import Refused, Request, ServerContext
from broker.server.requests.records import record_at
from broker.server.requests.sends import header_of


class Need(NamedTuple):
    """A right at a topic, or at a group."""

    right: str
    topic: str = ""
    group: str = ""


Needs = Callable[[ServerContext, Request], Iterator[Need]]
_OF_OTHERS = frozenset((HALF_TOPIC, PARK_TOPIC, SCHEDULE_TOPIC))  # half, parked and delayed messages of every topic


def check(context: ServerContext, request: Request, needs: Needs) -> None:
    """Raises Refused when the request's account lacks a right."""
    account = request.account
    for need in needs(context, request):
        if not permits(account, need):
            what = f"topic {need.topic}" if need.topic else f"group {need.group}"
            text = f"accessKey={account.access_key if account else ''} has no {need.right} at {what}"
            raise Refused(ResponseCode.NO_PERMISSION, text)


def permits(account: Account | None, need: Need) -> bool:
    """Whether an account has a right; the retries and dead letters of a group are those of who may consume for it.

    A topic with the messages of others is of those for whom the file names it: a default does not say it.
    """
    right, topic, group = need
    if topic in _OF_OTHERS and account is not None and not account.is_admin:
        return right in account.topics.get(topic, ())
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if topic.startswith(prefix):
            right, topic, group = SUB, "", topic.removeprefix(prefix)
    return acl.may(account, right, topic=topic, group=group)


def to_send(_: ServerContext, request: Request) -> Iterator[Need]:
    yield Need(PUB, header_of(request).topic)


def to_send_back(context: ServerContext, request: Request) -> Iterator[Need]:
    header = ConsumerSendMsgBackRequestHeader.decode(request.command.ext)
    yield Need(SUB, group=header.group)
    yield from _to_read(context, header.commitlog_offset)


def to_pull(_: ServerContext, request: Request) -> Iterator[Need]:
    header = PullMessageRequestHeader.decode(request.command.ext)
    yield Need(SUB, header.topic)
    yield Need(SUB, group=header.consumer_group)


def to_query(_: ServerContext, request: Request) -> Iterator[Need]:
    yield Need(SUB, QueryMessageRequestHeader.decode(request.command.ext).topic)


def to_query_queue(_: ServerContext, request: Request) -> Iterator[Need]:
    yield Need(SUB, QueryConsumeQueueRequestHeader.decode(request.command.ext).topic)


def to_view(context: ServerContext, request: Request) -> Iterator[Need]:
    yield from _to_read(context, ViewMessageRequestHeader.decode(request.command.ext).commitlog_offset)


def _to_read(context: ServerContext, commitlog_offset: int) -> Iterator[Need]:
    """By the topic of the message itself: while it is half, parked or delayed, its record has another one."""
    record = record_at(context.store, commitlog_offset)
    if record is not None:
        is_kept = record.topic in _OF_OTHERS
        yield Need(SUB, record.property_map.get(names.REAL_TOPIC, record.topic) if is_kept else record.topic)


def to_query_offset(_: ServerContext, request: Request) -> Iterator[Need]:
    header = QueryConsumerOffsetRequestHeader.decode(request.command.ext)
    yield Need(SUB, header.topic)
    yield Need(SUB, group=header.consumer_group)


def to_update_offset(_: ServerContext, request: Request) -> Iterator[Need]:
    header = UpdateConsumerOffsetRequestHeader.decode(request.command.ext)
    yield Need(SUB, header.topic)
    yield Need(SUB, group=header.consumer_group)


def to_list_group(_: ServerContext, request: Request) -> Iterator[Need]:
    yield Need(SUB, group=ConsumerGroupRequestHeader.decode(request.command.ext).consumer_group)


def to_join(_: ServerContext, request: Request) -> Iterator[Need]:
    """A heartbeat's. A producer group needs none: a check goes to who may send to the topic."""
    for one in decode_heartbeat(request.command.body).consumers:
        yield Need(SUB, group=one.group)
        for subscription in one.subscriptions:
            yield Need(SUB, subscription.topic)


def to_be_assigned(_: ServerContext, request: Request) -> Iterator[Need]:
    asked = decode_assignment_query(request.command.body)
    yield Need(SUB, asked.topic)
    yield Need(SUB, group=asked.group)


def to_lock(_: ServerContext, request: Request) -> Iterator[Need]:
    asked = decode_lock_batch(request.command.body)
    yield Need(SUB, group=asked.group)
    for queue in asked.queues:
        yield Need(SUB, queue.topic)
