"""Properties of a message: `name 0x01 value 0x02 ...` in UTF-8, and the names that RocketMQ reserves.

Nothing is escaped, so a name or value that contains 0x01 or 0x02 would break the list: we refuse it (the Java client
does not). The 0x02 after the last item is missing in what 4.9.1-5.1.x wrote; every reader accepts both.
"""

from __future__ import annotations

from collections.abc import Mapping

from broker.errors import MessageRejected
from broker.format.java import properties_bucket_order

PROPERTY_SEPARATOR = 2
KEY_SEPARATOR = " "  # between the keys inside the value of KEYS
SIZE_MAX = 32767  # PROPERTIESLEN is an i16

# RocketMQ: MessageConst (5.3.3)
KEYS = "KEYS"
TAGS = "TAGS"
UNIQ_KEY = "UNIQ_KEY"
WAIT = "WAIT"  # "true": the sender waits until the message is stored
DELAY = "DELAY"  # delay level, 1-18
CLUSTER = "CLUSTER"
MSG_REGION = "MSG_REGION"
TRACE_ON = "TRACE_ON"
MSG_TYPE = "MSG_TYPE"
INSTANCE_ID = "INSTANCE_ID"
SHARDING_KEY = "__SHARDINGKEY"
BORN_HOST = "__BORNHOST"
BORN_TIMESTAMP = "BORN_TIMESTAMP"

TRAN_MSG = "TRAN_MSG"  # "true": a half message
PGROUP = "PGROUP"  # the producer group, which answers check-backs
REAL_TOPIC = "REAL_TOPIC"  # where a half, delayed or retried message belongs
REAL_QID = "REAL_QID"
TRANSACTION_ID = "__transactionId__"
TRANSACTION_CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
TRANS_OFFSET = "TRANS_OFFSET"  # of an op message of 5.5's RocksDB: the CommitLog offset of the half message
CHECK_IMMUNITY_TIME_IN_SECONDS = "CHECK_IMMUNITY_TIME_IN_SECONDS"
TRAN_PREPARED_QUEUE_OFFSET = "TRAN_PREPARED_QUEUE_OFFSET"  # of the first half message, on a renewed one

RETRY_TOPIC = "RETRY_TOPIC"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
RECONSUME_TIME = "RECONSUME_TIME"
MAX_RECONSUME_TIMES = "MAX_RECONSUME_TIMES"
CONSUME_START_TIME = "CONSUME_START_TIME"
DLQ_ORIGIN_TOPIC = "DLQ_ORIGIN_TOPIC"
DLQ_ORIGIN_MESSAGE_ID = "DLQ_ORIGIN_MESSAGE_ID"

TIMER_DELAY_SEC = "TIMER_DELAY_SEC"
TIMER_DELAY_MS = "TIMER_DELAY_MS"
TIMER_DELIVER_MS = "TIMER_DELIVER_MS"
TIMER_ENQUEUE_MS = "TIMER_ENQUEUE_MS"
TIMER_DEQUEUE_MS = "TIMER_DEQUEUE_MS"
TIMER_ROLL_TIMES = "TIMER_ROLL_TIMES"
TIMER_OUT_MS = "TIMER_OUT_MS"
TIMER_DEL_UNIQKEY = "TIMER_DEL_UNIQKEY"
TIMER_DELAY_LEVEL = "TIMER_DELAY_LEVEL"

CRC32 = "__CRC32#"  # of the whole record; see format.commitlog

MIN_OFFSET = "MIN_OFFSET"
MAX_OFFSET = "MAX_OFFSET"
TRANSFER_FLAG = "TRANSFER_FLAG"
CORRECTION_FLAG = "CORRECTION_FLAG"
INNER_MULTI_DISPATCH = "INNER_MULTI_DISPATCH"  # further queues of a message, as %LMQ%a,%LMQ%b
INNER_MULTI_QUEUE_OFFSET = "INNER_MULTI_QUEUE_OFFSET"  # and its queue offset in each
INNER_BASE = "INNER_BASE"  # of a batch in one record: the queue offset of its first message
INNER_NUM = "INNER_NUM"  # and how many messages it holds

# fmt: off
RESERVED = frozenset((
    KEYS, TAGS, UNIQ_KEY, WAIT, DELAY, CLUSTER, MSG_REGION, TRACE_ON, MSG_TYPE, INSTANCE_ID, BORN_HOST, BORN_TIMESTAMP,
    TRAN_MSG, PGROUP, REAL_TOPIC, REAL_QID, TRAN_PREPARED_QUEUE_OFFSET, RETRY_TOPIC, ORIGIN_MESSAGE_ID, RECONSUME_TIME,
    MAX_RECONSUME_TIMES, CONSUME_START_TIME, DLQ_ORIGIN_TOPIC, DLQ_ORIGIN_MESSAGE_ID, TIMER_DELAY_SEC, TIMER_DELAY_MS,
    TIMER_DELIVER_MS, TIMER_ENQUEUE_MS, TIMER_DEQUEUE_MS, TIMER_ROLL_TIMES, TIMER_OUT_MS, TIMER_DEL_UNIQKEY,
    TIMER_DELAY_LEVEL, CRC32, MIN_OFFSET, MAX_OFFSET, TRANSFER_FLAG, CORRECTION_FLAG, INNER_MULTI_QUEUE_OFFSET,
    "BUYER_ID", "MQ2_FLAG", "POP_CK", "POP_CK_OFFSET", "1ST_POP_TIME", "DUP_INFO", "EXTEND_UNIQ_INFO",
    "CORRELATION_ID", "REPLY_TO_CLIENT", "TTL", "ARRIVE_TIME", "PUSH_REPLY_TIME",
))
# fmt: on
"""Names that an application may not set itself. RocketMQ: MessageConst.STRING_HASH_SET (5.3.3)."""


def decode(raw: bytes) -> dict[str, str]:
    """The properties by name, in stored order, as RocketMQ 4.9.1 and later reads them.

    An item counts when it has a name and a value; the value may contain further 0x01. The last duplicate wins. Bytes
    that are not UTF-8 become U+FFFD, as in Java: 3.0 wrote them in the platform's charset, so they are not damage.
    RocketMQ: MessageDecoder.string2messageProperties (5.3.3). Quirk: an item without a value is dropped.
    """
    return decode_text(raw.decode("utf-8", "replace"))


def decode_text(text: str) -> dict[str, str]:
    """The same of properties that are text already, as in the header of a request."""
    found: dict[str, str] = {}
    for item in text.split("\x02"):
        name, _, value = item.partition("\x01")
        if name and value:
            found[name] = value
    return found


def decimal(text: str, digits: int = 18) -> int | None:
    """The number that a property states in ASCII digits; None for any other text, which a client may state.

    18 digits always fit in 64 bits. More than some thousands Python would refuse to read.
    """
    return int(text) if len(text) <= digits and text.isascii() and text.isdigit() else None


def decode_3_0(raw: bytes) -> dict[str, str]:
    """The properties by name as RocketMQ before 4.9.1 reads them: an item counts when it has exactly two parts.

    The result differs from `decode` only for values with 0x01 inside and for an empty name.
    RocketMQ: MessageDecoder.string2messageProperties (3.1.5). Quirk: Java's split forgets empty parts at the end.
    """
    found: dict[str, str] = {}
    for item in raw.decode("utf-8", "replace").split("\x02"):
        parts = item.rstrip("\x01").split("\x01")
        if len(parts) == 2:
            found[parts[0]] = parts[1]
    return found


def encode(properties: Mapping[str, str], *, java_order_capacity: int | None = 128) -> bytes:
    """The bytes that RocketMQ writes for these properties, with the last 0x02.

    Names stand in the order of a Java HashMap of the given capacity (128 for what a broker read before, 16 for what
    was made from scratch); None keeps the mapping's own order, which readers accept as well. Raises MessageRejected
    when a reader could not get the same properties back. RocketMQ: MessageDecoder.messageProperties2String (5.3.3).
    """
    names = list(properties)
    if java_order_capacity is not None:
        names = properties_bucket_order(names, java_order_capacity)
    for name in names:
        check(name, properties[name])
    try:
        raw = "".join(f"{name}\x01{properties[name]}\x02" for name in names).encode()
    except UnicodeEncodeError as error:
        raise MessageRejected(f"a property cannot be written in UTF-8: {error}") from None
    if len(raw) > SIZE_MAX:
        raise MessageRejected(f"the properties take {len(raw)} bytes; at most {SIZE_MAX} fit in a record")
    return raw


def check(name: str, value: str) -> None:
    """Raises MessageRejected when the property would not survive being written and read."""
    if not name or not value:
        raise MessageRejected(f"property {name!r} needs a name and a value; RocketMQ drops one without")
    for text in (name, value):
        if "\x01" in text or "\x02" in text:
            raise MessageRejected(f"property {name!r} contains 0x01 or 0x02, which separate properties in the store")
        if not text.isascii() and any("\ud800" <= sign <= "\udfff" for sign in text):
            raise MessageRejected(f"property {name!r} holds {text!r:.60}, which UTF-8 cannot write. Give it in UTF-8")


def keys(properties: Mapping[str, str]) -> list[str]:
    """The single keys in KEYS, split at each space. RocketMQ: IndexService.buildIndex (5.3.3)."""
    return [key for key in properties.get(KEYS, "").split(KEY_SEPARATOR) if key]
