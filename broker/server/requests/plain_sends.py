"""The common send in fewer steps: a SEND_MESSAGE_V2 to a topic that is there, stored in the event loop.

A fast path: half of the interpreter's time for each send (decision 0045; in `make bench`: serving Java clients). The
same record and the same answer as by `sends`, which does everything that is not common, and all of it without the C
module. Kept equal: tests/server/test_plain_sends.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

from broker import compiled
from broker.errors import MessageRejected
from broker.format import properties as names
from broker.format.commitlog import MESSAGE_SIZE_MAX
from broker.format.config import PERM_WRITE
from broker.format.java import Host, encode_message_id
from broker.format.topics import DLQ_PREFIX, RETRY_PREFIX, check_send_topic
from broker.message import Message
from broker.remoting.codes import VERSION, ResponseCode
from broker.remoting.command import RESPONSE, RemotingCommand
from broker.remoting.message_headers import SendMessageResponseHeader
from broker.server.context import Request, ServerContext
from broker.server.counters import PUT
from broker.server.requests import sends
from broker.server.threads.store_thread import Stored
from broker.store.write.admission import DELAYS
from broker.store.write.compose import Origin
from broker.store.write.pending_record import Appended
from broker.transaction.service import Half

_read: Callable[..., tuple[str, str, int, int, int, str, dict[str, str]] | None] | None = (
    compiled.fast.request_message if compiled.fast else None
)
_UNCOMMON = frozenset((*sends.OWN, *DELAYS))
_ANSWER = (
    b'{"code":0,"extFields":{"msgId":"%b%016X","queueId":"%d","queueOffset":"%d","transactionId":"%b",'
    b'"MSG_REGION":"DefaultRegion","TRACE_ON":"true"},"flag":%d,"language":"PYTHON","opaque":%d,'
    b'"serializeTypeCurrentRPC":"JSON","version":%d}'
)


def send_at_once(context: ServerContext, request: Request) -> Stored | None:
    """SEND_MESSAGE_V2 for the event loop, which waits for no lock; None where the thread of the store is to do it."""
    if not context.store.topics_are_current():
        return None
    common = read_common(context, request)
    return sends.send_at_once(context, request) if common is None else store_common(context, request, common)


class CommonSend(NamedTuple):
    """What a common request says."""

    producer_group: str
    topic: str
    queue_id: int
    born_timestamp_ms: int
    flag: int
    unique_key: str
    properties: dict[str, str]  # as they are stored; of a half message its engine adds more


def read_common(context: ServerContext, request: Request) -> CommonSend | None:
    """None for a message that is not of the common kind."""
    command = request.command
    read = _read(command.ext, _UNCOMMON, sends.added(context)) if _read is not None else None
    is_batch = command.ext.get("m", "false") != "false"
    if read is None or is_batch or not 0 < len(command.body) <= MESSAGE_SIZE_MAX:
        return None
    common = CommonSend(*read)
    config = context.store.topic(common.topic) if _is_common(common.topic) else None
    if config is None or not config.perm & PERM_WRITE or common.queue_id >= config.write_queue_count:
        return None
    return common if common.properties.get(names.TRAN_MSG, "true") == "true" else None


def store_common(context: ServerContext, request: Request, common: CommonSend) -> Stored | None:
    """Store it, and say so; None, and nothing stored, where that would wait."""
    group, topic, queue_id, born_ms, flag, unique_key, properties = common
    body, store = request.command.body, context.store
    origin = Origin(born_ms, sends.host(request.connection.address), context.host, flag)
    made: Appended | Half | None
    if names.TRAN_MSG in properties:
        group = sends.as_half(properties, group, topic, queue_id)
        prepare = store.transactions.prepare_at_once
        made = prepare(Message(topic, body), group, queue_id=queue_id, extra_properties=properties, origin=origin)
    else:
        made = store.append_stated_at_once(topic, body, properties, queue_id=queue_id, origin=origin)
    if made is None:
        return None
    context.counters.add(PUT, topic)
    place = made.slot if isinstance(made, Half) else made.queue_offset
    answer = PlainAnswer(
        request.command.opaque, context.host, made.commitlog_offset, queue_id, place, unique_key
    )  # fmt: skip
    return Stored(answer, made.end, sends.waits(properties))


@lru_cache(maxsize=4096)
def _is_common(topic: str) -> bool:
    try:
        check_send_topic(topic)
    except MessageRejected:
        return False
    return not topic.startswith((RETRY_PREFIX, DLQ_PREFIX))


class PlainAnswer(NamedTuple):
    """The answer to a message that was stored; what it is made of. Of a half message `queue_offset` is its slot."""

    opaque: int
    host: Host
    commitlog_offset: int
    queue_id: int
    queue_offset: int
    unique_key: str

    def command(self) -> RemotingCommand:
        """The answer as any other."""
        message_id = encode_message_id(self.host, self.commitlog_offset)
        header = SendMessageResponseHeader(message_id, self.queue_id, self.queue_offset, self.unique_key)
        ext: dict[str, Any] = {**header.encode(), **sends.ADDED}
        return RemotingCommand(int(ResponseCode.SUCCESS), self.opaque, RESPONSE, ext)

    def encode(self) -> bytes:
        """Its frame: the bytes of `command().encode()`."""
        if not (self.unique_key.isascii() and self.unique_key.isalnum()):  # JSON may have to escape it
            return self.command().encode()
        opaque, host, commitlog_offset, queue_id, queue_offset, unique_key = self
        raw = _ANSWER % (
            _hex(host), commitlog_offset, queue_id, queue_offset, unique_key.encode(), RESPONSE, opaque, VERSION,
        )  # fmt: skip
        return b"%b%b%b" % ((4 + len(raw)).to_bytes(4, "big"), len(raw).to_bytes(4, "big"), raw)


@lru_cache(maxsize=16)
def _hex(host: Host) -> bytes:
    """The front of a message id."""
    return encode_message_id(host, 0)[:-16].encode()
