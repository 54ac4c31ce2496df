"""The small stores of the damage tests: a record of every kind that each generation writes.

`build(generation, directory)` writes one. The shapes (properties and their order, what a copy keeps, what a redelivery
says) are those of the records in the golden stores and in those of `tests/compat`.
"""

from __future__ import annotations

import zlib
from functools import partial
from pathlib import Path

from broker.format.commitlog import Record
from broker.format.topics import HALF_TOPIC, OP_TOPIC, PARK_TOPIC, SCHEDULE_TOPIC
from tests.scan.small_broker import BORN_HOST, Generation, SmallBroker

PREPARED, COMMIT, ROLLBACK = 4, 8, 12
COMPRESSED, COMPRESSED_ZLIB = 1, 0x301
GROUP, CONSUMER, TOPIC, RETRY = "payer", "shop", "Orders", "%RETRY%shop"


def build(generation: Generation, directory: Path) -> SmallBroker:
    """Write the small store of a generation into a directory that is not there yet; returns what was written."""
    broker = SmallBroker(generation)
    if generation.state_table:
        _state_table(broker)
    else:
        _half_op(broker)
    directory.mkdir(parents=True)
    broker.write(directory, killed=generation.state_table)
    return broker


# The generation with a state table


def _state_table(broker: SmallBroker) -> None:
    """Halves that are committed, rolled back, in doubt; plain, delayed, sent back; the first at CommitLog offset 0."""
    first = _prepare(broker, "paid 0", KEYS="k-0 all", TAGS="TagA")
    paid = _end(broker, first, COMMIT)
    broker.append("plain", TOPIC, b"plain 1", {"orderId": "o1", "KEYS": "k-1", "WAIT": "true", "TAGS": "TagB"}, flag=7)
    rolled = _prepare(broker, "rolled 2", KEYS="k-2", TAGS="TagA", flag=77)
    _prepare(broker, "in doubt 3", KEYS="k-3", queue_id=1)
    _end(broker, rolled, ROLLBACK)
    _send_back(broker, paid)
    broker.append("plain without keys", TOPIC, b"bare", {"WAIT": "true"}, queue_id=1)
    values = {"REAL_TOPIC": TOPIC, "KEYS": "k-4", "WAIT": "true", "DELAY": "1", "TAGS": "TagD", "REAL_QID": "1"}
    delayed = broker.append("delayed", SCHEDULE_TOPIC, b"later", values)
    text = zlib.compress(b"compressed " * 9, 5)
    packed = _prepare(broker, text, KEYS="k-5", flag=77, sys_flag=COMPRESSED)
    broker.append("plain", TOPIC, b"later", values, queue_id=1, born_ms=delayed.born_timestamp_ms)
    _end(broker, packed, COMMIT)
    _prepare(broker, "in doubt 6", TAGS="TagC")
    broker.append("plain", TOPIC, text, {"KEYS": "k-7", "WAIT": "true"}, sys_flag=COMPRESSED)
    topics = {TOPIC: 2, RETRY: 1}
    broker.configure(topics, [CONSUMER], {f"{TOPIC}@{CONSUMER}": {0: 2, 1: 1}, f"{RETRY}@{CONSUMER}": {0: 0}})


def _prepare(
    broker: SmallBroker, body: str | bytes, *, queue_id: int = 0, flag: int = 0, sys_flag: int = 0, **values: str
) -> Record:
    """A prepared record as the Java client of 3.x sends it."""
    tags = {"TAGS": values.pop("TAGS")} if "TAGS" in values else {}
    said = {"orderId": "o9", **values, "TRAN_MSG": "true", "WAIT": "true", "PGROUP": GROUP, **tags}
    raw = body if isinstance(body, bytes) else body.encode()
    return broker.append("prepared", TOPIC, raw, said, queue_id=queue_id, flag=flag, sys_flag=sys_flag | PREPARED)


def _end(broker: SmallBroker, half: Record, kind: int) -> Record:
    """The record that EndTransactionProcessor of 3.1.4 writes: the half again, a rollback without its body."""
    return broker.append(
        "commit" if kind == COMMIT else "rollback",
        half.topic,
        half.body if kind == COMMIT else b"",
        half.property_map,
        queue_id=half.queue_id,
        sys_flag=half.sys_flag & ~0xC | kind,
        flag=half.flag,
        slot=half.queue_offset,
        prepared_offset=half.commitlog_offset,
        born_ms=half.born_timestamp_ms,
    )


def _send_back(broker: SmallBroker, delivered: Record) -> None:
    """A consumer could not take a committed message: it comes back through the schedule topic, its flag kept."""
    said = delivered.property_map
    real = {"WAIT": "false", "DELAY": "3", "REAL_QID": "0"}
    values = {"REAL_TOPIC": RETRY, "RETRY_TOPIC": delivered.topic, **said, **real}
    again = partial(broker.append, reconsume_times=1, sys_flag=delivered.sys_flag, flag=delivered.flag)
    again = partial(again, born_ms=delivered.born_timestamp_ms)
    again("delayed", SCHEDULE_TOPIC, delivered.body, values, queue_id=2)
    again("redelivered", RETRY, delivered.body, values)


# The generation with half and op topics


def _half_op(broker: SmallBroker) -> None:
    """Halves committed, rolled back, renewed and committed, parked, in doubt; plain, batch, delayed, sent back."""
    broker.append("plain", TOPIC, b"plain 0", _sent(0, TAGS="TagA", orderId="o0"), flag=7)
    paid = _half(broker, 1, b"paid 1", TAGS="TagA", flag=77)
    _half(broker, 2, b"rolled 2", TAGS="TagB", queue_id="1")
    delivered = _commit(broker, paid)
    renewed = _half(broker, 3, b"renewed 3", CHECK_IMMUNITY_TIME_IN_SECONDS="8")
    parked = _half(broker, 4, b"parked 4", TAGS="TagC")
    broker.append("op", OP_TOPIC, b"0,1,", {"WAIT": "true", "TAGS": "d"})
    immune = {"TRAN_PREPARED_QUEUE_OFFSET": str(renewed.queue_offset), "TRANSACTION_CHECK_TIMES": "1", "WAIT": "false"}
    again = _renew(broker, renewed, immune)
    checked = _renew(broker, parked, {"TRANSACTION_CHECK_TIMES": "3"})
    _batch(broker, 5)
    _commit(broker, again)
    broker.append("parked", PARK_TOPIC, checked.body, checked.property_map, born_ms=parked.born_timestamp_ms)
    broker.append("op", OP_TOPIC, b"4,", {"WAIT": "true", "TAGS": "d"})
    values = {**_sent(7, TAGS="TagD"), "DELAY": "1", "REAL_TOPIC": TOPIC, "REAL_QID": "1"}
    delayed = broker.append("delayed", SCHEDULE_TOPIC, b"later", values)
    broker.append("plain", TOPIC, b"later", values, queue_id=1, born_ms=delayed.born_timestamp_ms)
    _send_back_5(broker, delivered)
    text = zlib.compress(b"compressed " * 9)
    broker.append("plain", TOPIC, text, _sent(8), sys_flag=COMPRESSED_ZLIB)
    _half(broker, 9, b"in doubt 9")
    topics = {TOPIC: 2, RETRY: 1, HALF_TOPIC: 1, OP_TOPIC: 1, PARK_TOPIC: 1, SCHEDULE_TOPIC: 18}
    positions = {f"{TOPIC}@{CONSUMER}": {0: 2, 1: 1}, f"{HALF_TOPIC}@CID_RMQ_SYS_TRANS": {0: 4}}
    broker.configure(topics, [CONSUMER], positions)
    broker.configs["transactionMetrics"] = b'{"dataVersion":{"counter":3},"transactionCount":{"Orders":{"count":1}}}'


def _sent(number: int, **values: str) -> dict[str, str]:
    """The properties of a message as the broker stores them."""
    unique = f"C0A8071525CB5FFD2B27688A66{number:06X}"
    own = {"MSG_REGION": "DefaultRegion", "UNIQ_KEY": unique, "CLUSTER": "DefaultCluster", "TRACE_ON": "true"}
    return {**own, "KEYS": f"k-{number}", "WAIT": "true", **values}


def _half(broker: SmallBroker, number: int, body: bytes, queue_id: str = "0", flag: int = 0, **values: str) -> Record:
    said = _sent(number, PGROUP=GROUP, TRAN_MSG="true", REAL_TOPIC=TOPIC, REAL_QID=queue_id, **values)
    said["__transactionId__"] = said["UNIQ_KEY"]
    return broker.append("half", HALF_TOPIC, body, said, flag=flag)


def _commit(broker: SmallBroker, half: Record) -> Record:
    """The final record of EndTransactionProcessor (5.3.3): all of the half, in its real topic and queue."""
    said = half.property_map
    return broker.append(
        "commit",
        said["REAL_TOPIC"],
        half.body,
        said,
        queue_id=int(said["REAL_QID"]),
        sys_flag=half.sys_flag | COMMIT,
        flag=half.flag,
        prepared_offset=half.commitlog_offset,
        born_ms=half.born_timestamp_ms,
    )


def _renew(broker: SmallBroker, half: Record, values: dict[str, str]) -> Record:
    """A half message that the check loop put back: flag and reconsume times do not come along."""
    return broker.append("half", HALF_TOPIC, half.body, {**half.property_map, **values}, born_ms=half.born_timestamp_ms)


def _batch(broker: SmallBroker, number: int) -> None:
    """Two messages of one request: each its own unique key, shadowed by that of the batch."""
    request = {name: value for name, value in _sent(number).items() if name != "KEYS"}
    for place in range(2):
        unique = f"C0A8071525CB5FFD2B27688A77{place:06X}"
        own = {"KEYS": f"b-{place}", "UNIQ_KEY": unique, "WAIT": "true", "TAGS": "TagB"}
        broker.append("batch", TOPIC, b"batch %d" % place, request, queue_id=1, own=own)


def _send_back_5(broker: SmallBroker, delivered: Record) -> None:
    host = BORN_HOST.address.hex().upper()
    back = {"ORIGIN_MESSAGE_ID": f"{host}00002A9F{delivered.commitlog_offset:016X}", "RETRY_TOPIC": TOPIC}
    values = {**delivered.property_map, **back, "DELAY": "3", "WAIT": "false", "REAL_TOPIC": RETRY, "REAL_QID": "0"}
    again = partial(broker.append, reconsume_times=1, sys_flag=delivered.sys_flag, flag=delivered.flag)
    again = partial(again, born_ms=delivered.born_timestamp_ms)
    again("delayed", SCHEDULE_TOPIC, delivered.body, values, queue_id=2)
    again("redelivered", RETRY, delivered.body, values)
