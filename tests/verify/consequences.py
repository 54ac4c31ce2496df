"""What happens when a bit that no check covers is flipped: one sentence for each field of the published table."""

from __future__ import annotations

RECORD = "CommitLog record"

# Keys with the field "property" stand for every property that has no line of its own.
CONSEQUENCES: dict[tuple[str, str], str] = {
    (RECORD, "queue_id"): "an answer of its producer would deliver it into another queue",
    (RECORD, "flag"): "the application's number: consumers get another one",
    (RECORD, "sys_flag"): "bits that no reader asks for; bit 0: a packed body is taken for a plain one",
    (RECORD, "queue_offset"): "of no use to a reader",
    (RECORD, "born_timestamp_ms"): "consumers see another time of sending",
    (RECORD, "born_address"): "consumers see another sender",
    (RECORD, "born_port"): "consumers see another sender",
    (RECORD, "store_timestamp_ms"): "a query by time may miss it; with a key or a slot, by less than a second",
    (RECORD, "store_address"): "the offset message id names another broker",
    (RECORD, "store_port"): "the offset message id names another broker",
    (RECORD, "reconsume_times"): "consumers see another number of attempts",
    (RECORD, "prepared_transaction_offset"): "a redelivery may be taken for another one; its message is the same",
    (RECORD, "topic"): "a half message without key or end: an answer would deliver it into another topic",
    (RECORD, "property `PGROUP`"): "a half message without end: another group would be asked about it; else nothing",
    (
        RECORD,
        "property `REAL_TOPIC`",
    ): "what still waits would be delivered into another topic; what was delivered, nothing",
    (
        RECORD,
        "property `REAL_QID`",
    ): "what still waits would be delivered into another queue; what was delivered, nothing",
    (RECORD, "property `DELAY`"): "nothing: the queue that it waits in says how long",
    (RECORD, "property `KEYS`"): "consumers see another key; no index has it",
    (RECORD, "property `TAGS`"): "consumers see another tag, or filter by another once it is delivered",
    (RECORD, "property `UNIQ_KEY`"): "of a batch: the shadowed key of one message; else consumers see another id",
    (RECORD, "property `TRAN_MSG`"): "nothing: the record's place and type say what it is",
    (RECORD, "property `TRANSACTION_CHECK_TIMES`"): "RocketMQ asks more or less often before it gives up",
    (RECORD, "property `CHECK_IMMUNITY_TIME_IN_SECONDS`"): "RocketMQ asks sooner or later",
    (RECORD, "property `TRAN_PREPARED_QUEUE_OFFSET`"): "RocketMQ may ask once more about what has ended",
    (RECORD, "property"): "consumers see another property",
    ("CommitLog blank", "behind the blank"): "nothing: it belongs to no record",
    ("index header", "used_slots"): "nothing: a statistic, which 3.x counts otherwise, so two numbers are right",
    ("ConsumeQueue unit", "tags_code"): "of a delayed message of 3.x: it comes sooner or later",
    (
        "checkpoint",
        "commitlog_timestamp_ms",
    ): "within the log's times: recovery after a crash begins at another segment",
    ("checkpoint", "queue_timestamp_ms"): "within the log's times: recovery after a crash begins at another segment",
    ("checkpoint", "index_timestamp_ms"): "recovery after a crash may make an index file anew",
    ("checkpoint", "master_flushed_offset"): "read by replication only",
    ("checkpoint", "confirm_commitlog_offset"): "read by replication only",
    ("topics.json", "text"): "a setting of another name or value; a topic of another name is found",
    ("topics.json", "number"): "a topic has other settings",
    ("topics.json", "white space"): "nothing",
    ("topics.json", "true or false"): "a topic has other settings",
    ("topics.json.bak", "any byte"): "read only when the file itself is missing or empty",
    ("consumerOffset.json", "text"): "a position is kept for another group or topic",
    ("consumerOffset.json", "number"): "a consumer repeats or skips messages",
    ("consumerOffset.json", "white space"): "nothing",
    ("delayOffset.json", "text"): "the positions of delayed messages are lost: they are delivered again",
    ("delayOffset.json", "number"): "delayed messages are delivered again, or not at all",
    ("delayOffset.json", "white space"): "nothing",
    ("subscriptionGroup.json", "text"): "a setting of another name or value; a group of another name is found",
    ("subscriptionGroup.json", "number"): "a consumer group has other settings",
    ("subscriptionGroup.json", "white space"): "nothing",
    ("subscriptionGroup.json", "true or false"): "a consumer group has other settings",
    ("transactionMetrics", "any byte"): "statistics",
    ("lock", "any byte"): "nothing: that the file is there and locked is all it says",
    ("abort", "any byte"): "nothing: that the file is there is all it says",
}


def consequence_of(kind: str, field: str) -> str:
    """The sentence for a line of the table."""
    return CONSEQUENCES.get((kind, field)) or CONSEQUENCES.get((kind, "property"), "to be said")
