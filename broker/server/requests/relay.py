"""Requests that are passed on to a client: what it does now, a message to consume at once, a reply to its request.

RocketMQ: AdminBrokerProcessor.callConsumer, ReplyMessageProcessor (5.3.3).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from broker.format import properties as names
from broker.format.java import decode_message_id
from broker.format.sysflag import TransactionType
from broker.format.topics import is_system_topic
from broker.remoting.admin_headers import ConsumerClientRequestHeader
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand
from broker.remoting.message_headers import ReplyMessageRequestHeader, SendMessageRequestHeader
from broker.server.clients import Peer
from broker.server.context import Refused, Request, ServerContext
from broker.server.requests.records import as_sent, record_at

TIMEOUT_S = 10.0
_END = "\x02"  # of a property
_SHORT = {RequestCode.SEND_REPLY_MESSAGE_V2}


@dataclass(frozen=True)
class Passed:
    """A request for a client, and what its answer becomes: None when none came in time."""

    request: Request
    peer: Peer
    command: RemotingCommand
    answer: Callable[[RemotingCommand | None], RemotingCommand]


def to_consumer(context: ServerContext, request: Request, body: bytes = b"") -> Passed:
    """GET_CONSUMER_RUNNING_INFO: the client's answer is ours."""
    header = ConsumerClientRequestHeader.decode(request.command.ext)
    if header.jstack_enable and not context.settings.admin:
        raise Refused(ResponseCode.NO_PERMISSION, "the stack of a client is shown by a server with --admin only")
    group = context.clients.consumers(header.consumer_group)
    channels = [] if group is None else list(group.channels.values())
    if header.client_id:
        channels = [one for one in channels if one.client_id == header.client_id]
    if not channels:
        text = f"The Consumer <{header.consumer_group}> <{header.client_id}> not online"
        raise Refused(ResponseCode.SYSTEM_ERROR, text)
    ext = {name: value for name, value in request.command.ext.items() if name not in ("AccessKey", "Signature")}
    passed = RemotingCommand(request.command.code, ext=ext, body=body)

    def answer(response: RemotingCommand | None) -> RemotingCommand:
        if response is None:
            text = f"consumer <{header.consumer_group}> <{header.client_id}> Timeout: {TIMEOUT_S:g} s"
            return request.command.answer(ResponseCode.CONSUME_MSG_TIMEOUT, text)
        return request.command.answer(response.code, response.remark, response.ext, response.body)

    return Passed(request, channels[-1].peer, passed, answer)  # the last that it made: see `Clients.peer_of`


def consume_directly(context: ServerContext, request: Request) -> Passed:
    """CONSUME_MESSAGE_DIRECTLY: the client gets the record of an offset message id, and says how its listener ended.

    What is not for consumers, or not yet, is refused: half, parked and delayed messages.
    """
    header = ConsumerClientRequestHeader.decode(request.command.ext)
    _, commitlog_offset = decode_message_id(header.msg_id or "")
    record = record_at(context.store, commitlog_offset)
    raw = None if record is None else context.store.commitlog.raw(commitlog_offset, record.total_size)
    if record is None or raw is None:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"no message begins at CommitLog offset {commitlog_offset}")
    if is_system_topic(record.topic) or record.transaction_type not in (TransactionType.NONE, TransactionType.COMMIT):
        text = f"the record at CommitLog offset {commitlog_offset} is not for consumers"
        raise Refused(ResponseCode.NO_PERMISSION, text)
    return to_consumer(context, request, as_sent(raw))


def send_reply(context: ServerContext, request: Request) -> Passed:
    """SEND_REPLY_MESSAGE: a reply goes to the client that its property names; it is not stored."""
    header = SendMessageRequestHeader.decode(request.command.ext, short=request.command.code in _SHORT)
    stated = header.properties or ""
    properties = names.decode(stated.encode())
    peer = context.clients.peer_of(properties.get("REPLY_TO_CLIENT", ""))
    if peer is None:
        text = f"push reply message fail, channel of <{properties.get('REPLY_TO_CLIENT')}> not found."
        raise Refused(ResponseCode.SYSTEM_ERROR, text)
    now_ms = context.store.writer.clock.now_ms()
    push = ReplyMessageRequestHeader(
        header.producer_group, header.topic, header.default_topic, header.default_topic_queue_nums, header.queue_id,
        header.sys_flag, header.born_timestamp_ms, header.flag,
        f"{stated.removesuffix(_END)}{_END}PUSH_REPLY_TIME\x01{now_ms}{_END}", header.reconsume_times,
        header.unit_mode, request.connection.address, context.address, now_ms,
    )  # fmt: skip
    passed = RemotingCommand(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, ext=push.encode(), body=request.command.body)

    def answer(response: RemotingCommand | None) -> RemotingCommand:
        if response is None or response.code != ResponseCode.SUCCESS:
            return request.command.answer(ResponseCode.SYSTEM_ERROR, "push reply message to requester fail.")
        ext = {"msgId": "", "queueId": str(header.queue_id), "queueOffset": "0"}
        return request.command.answer(ResponseCode.SUCCESS, None, ext)

    return Passed(request, peer, passed, answer)
