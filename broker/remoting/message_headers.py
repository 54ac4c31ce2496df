"""Extension fields of what sends, pulls and looks up messages. RocketMQ: the classes of the same names (5.3.3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from broker.remoting.codes import RequestCode
from broker.remoting.header import Header, Wire, boolean, i32, i64, text


@dataclass(frozen=True)
class SendMessageRequestHeader(
    Header,
    codes=(
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE_V2,
    ),
):
    """A message to be stored. V2 and batches have names of one character. Quirk (3.1.4): it sends `isUnitMode`."""

    producer_group: Annotated[text, Wire(short="a")]
    topic: Annotated[text, Wire(short="b")]
    default_topic: Annotated[text, Wire(short="c")]  # whose settings a topic gets that the first message makes
    default_topic_queue_nums: Annotated[i32, Wire(short="d")]
    queue_id: Annotated[i32, Wire(short="e")]  # below 0: the broker chooses
    sys_flag: Annotated[i32, Wire(short="f")]
    born_timestamp_ms: Annotated[i64, Wire("bornTimestamp", short="g")]
    flag: Annotated[i32, Wire(short="h")]
    properties: Annotated[text, Wire(short="i")] | None = None
    reconsume_times: Annotated[i32, Wire(short="j")] = 0
    unit_mode: Annotated[boolean, Wire(short="k")] = False
    max_reconsume_times: Annotated[i32, Wire(short="l")] | None = None
    batch: Annotated[boolean, Wire(short="m")] = False
    broker_name: Annotated[text, Wire("bname", short="n")] | None = None


@dataclass(frozen=True)
class SendMessageResponseHeader(Header):
    """Where a message went. Of a half message, `queue_offset` is its number among the half messages."""

    msg_id: text
    queue_id: i32
    queue_offset: i64
    transaction_id: text | None = None


@dataclass(frozen=True)
class ConsumerSendMsgBackRequestHeader(Header, codes=(RequestCode.CONSUMER_SEND_MSG_BACK,)):
    """A message that a consumer could not process."""

    commitlog_offset: Annotated[i64, Wire("offset")]
    group: text
    delay_level: i32
    origin_msg_id: text | None = None
    origin_topic: text | None = None
    unit_mode: boolean = False
    max_reconsume_times: i32 | None = None


@dataclass(frozen=True)
class PullMessageRequestHeader(Header, codes=(RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)):
    """Messages of one queue from an offset on."""

    consumer_group: text
    topic: text
    queue_id: i32
    queue_offset: i64
    max_msg_nums: i32
    sys_flag: i32
    commit_offset: i64 = 0  # a queue offset: what the group has processed
    suspend_timeout_ms: Annotated[i64, Wire("suspendTimeoutMillis")] = 0
    subscription: text | None = None
    sub_version: i64 = 0
    expression_type: text | None = None
    max_msg_bytes: i32 | None = None


PULL_COMMIT, PULL_SUSPEND, PULL_SUBSCRIPTION, PULL_CLASS_FILTER, PULL_LITE = 1, 2, 4, 8, 16
"""Bits of a pull's sysFlag. RocketMQ: PullSysFlag (5.3.3)."""


@dataclass(frozen=True)
class PullMessageResponseHeader(Header):
    """Where to pull next, and where the queue begins and ends: queue offsets."""

    suggest_which_broker_id: i64
    next_begin_offset: i64
    min_offset: i64
    max_offset: i64
    topic_sys_flag: i32 = 0
    group_sys_flag: i32 = 0


@dataclass(frozen=True)
class QueryMessageRequestHeader(Header, codes=(RequestCode.QUERY_MESSAGE,)):
    """Messages by key; with `is_unique_key` by the producer's id."""

    topic: text
    key: text
    max_num: i32
    begin_timestamp_ms: Annotated[i64, Wire("beginTimestamp")]
    end_timestamp_ms: Annotated[i64, Wire("endTimestamp")]
    is_unique_key: Annotated[boolean, Wire("_UNIQUE_KEY_QUERY")] = False


@dataclass(frozen=True)
class QueryMessageResponseHeader(Header):
    """How far the index reaches."""

    index_last_update_timestamp_ms: Annotated[i64, Wire("indexLastUpdateTimestamp")]
    index_last_update_phyoffset: i64


@dataclass(frozen=True)
class ViewMessageRequestHeader(Header, codes=(RequestCode.VIEW_MESSAGE_BY_ID,)):
    """One message by its place in the CommitLog."""

    commitlog_offset: Annotated[i64, Wire("offset")]
    topic: text | None = None


@dataclass(frozen=True)
class EndTransactionRequestHeader(Header, codes=(RequestCode.END_TRANSACTION,)):
    """How a local transaction ended: `commit_or_rollback` is 0 (unknown), 8 (commit) or 12 (rollback)."""

    producer_group: text
    tran_state_table_offset: i64
    commit_log_offset: i64
    commit_or_rollback: i32
    from_transaction_check: boolean = False
    msg_id: text | None = None
    transaction_id: text | None = None
    topic: text | None = None
    broker_name: Annotated[text, Wire("bname")] | None = None


@dataclass(frozen=True)
class CheckTransactionStateRequestHeader(Header, codes=(RequestCode.CHECK_TRANSACTION_STATE,)):
    """Asks a producer how its local transaction ended; the message is the body. 5.x alone names a topic, its own."""

    tran_state_table_offset: i64
    commit_log_offset: i64
    msg_id: text | None = None
    transaction_id: text | None = None
    offset_msg_id: text | None = None
    bname: text | None = None
    topic: text | None = None


@dataclass(frozen=True)
class ReplyMessageRequestHeader(Header, codes=(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,)):
    """A reply on its way to the client that sent the request."""

    producer_group: text
    topic: text
    default_topic: text
    default_topic_queue_nums: i32
    queue_id: i32
    sys_flag: i32
    born_timestamp_ms: Annotated[i64, Wire("bornTimestamp")]
    flag: i32
    properties: text
    reconsume_times: i32
    unit_mode: boolean
    born_host: text
    store_host: text
    store_timestamp_ms: Annotated[i64, Wire("storeTimestamp")]


@dataclass(frozen=True)
class SearchOffsetRequestHeader(Header, codes=(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,)):
    """The first queue offset at or after a time; with the boundary UPPER the last one at or before it."""

    topic: text
    queue_id: i32
    timestamp_ms: Annotated[i64, Wire("timestamp")]
    boundary_type: text | None = None


@dataclass(frozen=True)
class QueueRequestHeader(
    Header,
    codes=(RequestCode.GET_MAX_OFFSET, RequestCode.GET_MIN_OFFSET, RequestCode.GET_EARLIEST_MSG_STORETIME),
):
    """One queue. RocketMQ: GetMaxOffsetRequestHeader and its two siblings (5.3.3)."""

    topic: text
    queue_id: i32


@dataclass(frozen=True)
class QueueOffsetResponseHeader(Header):
    """A queue offset."""

    queue_offset: Annotated[i64, Wire("offset")]


@dataclass(frozen=True)
class GetEarliestMsgStoretimeResponseHeader(Header):
    """When the first message of a queue was stored."""

    timestamp_ms: Annotated[i64, Wire("timestamp")]


@dataclass(frozen=True)
class QueryConsumerOffsetRequestHeader(Header, codes=(RequestCode.QUERY_CONSUMER_OFFSET,)):
    """Where a group stands in a queue."""

    consumer_group: text
    topic: text
    queue_id: i32
    set_zero_if_not_found: boolean = True


@dataclass(frozen=True)
class UpdateConsumerOffsetRequestHeader(Header, codes=(RequestCode.UPDATE_CONSUMER_OFFSET,)):
    """Where a group stands now."""

    consumer_group: text
    topic: text
    queue_id: i32
    commit_offset: i64


@dataclass(frozen=True)
class QueryConsumeQueueRequestHeader(Header, codes=(RequestCode.QUERY_CONSUME_QUEUE,)):
    """Units of a ConsumeQueue."""

    topic: text
    queue_id: i32
    index: i64  # a queue offset
    count: i32
    consumer_group: text | None = None
