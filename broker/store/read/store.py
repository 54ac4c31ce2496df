"""Store: the parts of a store directory, held together for reading.

    with broker.open("shop.store", read_only=True) as store:
        for record in store.records(): ...

Nothing here changes a byte on disk, needs permission to write or takes a lock: the store may belong to a RocketMQ
broker that is writing to it at this moment. So each answer is as of the moment it is given, and what expires, expires.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterator
from operator import index
from shlex import quote
from types import TracebackType
from typing import Self, cast

from broker.errors import BrokerError, CorruptRecord, CorruptStore, shown
from broker.format.checkpoint import Checkpoint
from broker.format.commitlog import Record
from broker.format.config import ConsumerOffsets, Topics
from broker.format.record.innerbatch import inner_records
from broker.format.sysflag import INNER_BATCH
from broker.format.topics import LMQ_PREFIX
from broker.message import ReceivedMessage
from broker.store.disk.files import Disk
from broker.store.disk.os_errors import closed_store
from broker.store.disk.paths import path_of_store
from broker.store.read.checkpoint import read_checkpoint
from broker.store.read.commitlog import CommitLog
from broker.store.read.config import read_consumer_offsets, read_topics
from broker.store.read.consumequeue import ConsumeQueues
from broker.store.read.detect import check_is_store
from broker.store.read.directory import StoreDirectory
from broker.store.read.index import Index
from broker.store.read.kinds.every_queue import AnyQueue, EveryQueue
from broker.store.read.segments import Segment, SegmentDamage
from broker.store.read.transaction_files import RedoLog, StateTable

_CLOCK_STEP_MS = 60_000  # what was stored so long before or behind is hopped over
_END = 1 << 63  # behind any CommitLog offset
_TIME_MAX_MS = (1 << 63) - 1


def open_store(path: str | os.PathLike[str], *, disk: Disk | None = None) -> Store:
    """Open the store in a directory for reading. See `broker.open`."""
    return Store(path_of_store(path), disk or Disk())


class Store:
    """A store, open for reading. Close it, or use it in a `with` statement; threads may share it.

    `broker.open(path, read_only=True)` makes it. Any call may raise StoreError: for a file that this user may not read,
    that the disk cannot read, or after `close`; and BrokerError for an argument of another type.
    """

    def __init__(self, path: str, disk: Disk) -> None:
        path = path_of_store(path)
        check_is_store(path, disk)
        self.path: str = path
        """The directory, as an absolute path: it names the same one when the process changes its own directory."""
        self._directory = StoreDirectory(path, disk)
        self.commitlog: CommitLog = CommitLog(self._directory)
        """The CommitLog: records by byte position."""
        self.consumequeues: ConsumeQueues = ConsumeQueues(self._directory)
        """The ConsumeQueues that are files of units."""
        self.every_queue: EveryQueue = EveryQueue(self._directory, self.consumequeues)
        """The queues of every kind, those in RocksDB and of batches included."""
        self.index: Index = Index(self._directory)
        """The index: CommitLog offsets by key."""
        self.state_table: StateTable = StateTable(self._directory)
        """The state table of 3.x: slots; without files it is empty."""
        self.redo_log: RedoLog = RedoLog(self._directory)
        """The redo log of 3.x: units of half messages and ends; without files it is empty."""

    def __enter__(self) -> Self:
        if self._directory.files.is_closed:
            raise closed_store(self.path)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<broker.Store {self.path!r}, read-only>"

    def close(self) -> None:
        """Release the files. Closing twice is not an error."""
        self.every_queue.close()
        self._directory.files.close()

    # By CommitLog offset

    @property
    def begin_offset(self) -> int:
        """The CommitLog offset where the oldest segment begins."""
        return self.commitlog.begin_offset

    @property
    def end_offset(self) -> int:
        """The CommitLog offset where the log ends now. Found by a walk over the last segment in use.

        Raises CorruptRecord where no record begins although the log goes on, CorruptStore where a segment is missing.
        """
        return self.commitlog.end_offset

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The files of the CommitLog, oldest first: `base` (CommitLog offset), `size` in bytes, `path` and `name`."""
        return self.commitlog.segments

    @property
    def damages(self) -> tuple[SegmentDamage, ...]:
        """What is wrong with the files of the CommitLog as files; `checkback verify` finds the rest.

        Each has `kind` (segment-missing, segment-overlap, segment-size), `path`, `reason`, and the CommitLog offsets
        `start` <= x < `end` that cannot be read.
        """
        return self.commitlog.damages

    def records(self, start: int | None = None, end: int | None = None) -> Iterator[Record]:
        """The records whose CommitLog offset lies in start <= offset < end, in order, to the end of the log by then.

        `start` must be where a record begins (or a segment), None is the beginning; what has expired is passed over.
        `end` None is the end. Raises, while it is iterated over, CorruptRecord where no record begins although the log
        goes on, and CorruptStore where a segment is missing; `checkback salvage` reads on behind the damage.
        """
        if start is not None:
            check_whole("start", start)
        if end is not None:
            check_whole("end", end)
        return self.commitlog.walk(start, end)

    def record(self, commitlog_offset: int) -> Record | None:
        """The record that begins at an offset; None below the beginning and at the end of the log.

        Raises CorruptRecord when other bytes stand there, CorruptStore where a segment is missing.
        """
        check_whole("commitlog_offset", commitlog_offset)
        return self.commitlog.read(commitlog_offset)

    # By queue

    def topics(self) -> list[str]:
        """The topics that have queues, sorted, RocketMQ's own included."""
        return self.every_queue.topics()

    def queues(self, topic: str) -> list[int]:
        """The queue ids (from 0) of a topic, sorted; none for a topic that is not there."""
        _check_text("topic", topic)
        return self.every_queue.queue_ids(topic)

    def queue_range(self, topic: str, queue_id: int) -> tuple[int, int]:
        """(min, max): the queue offset of the first message that is kept, and that of the next one to come.

        Equal when the queue holds nothing; (0, 0) when it is not there. Raises CorruptStore for a damaged file.
        """
        queue = self._queue(topic, queue_id)
        return (0, 0) if queue is None else (queue.min_offset(self.begin_offset), queue.max_offset)

    def message(self, topic: str, queue_id: int, queue_offset: int) -> ReceivedMessage | None:
        """The message that a consumer gets at a queue offset; None when it expired or is not there yet.

        Raises CorruptStore when the ConsumeQueue and the CommitLog do not belong together, CorruptRecord for a record
        that is damaged.
        """
        check_whole("queue_offset", queue_offset)
        queue = self._queue(topic, queue_id)
        record = None if queue is None else self._record_of(queue, queue_offset)
        if record is not None and record.sys_flag & INNER_BATCH:
            record = next((one for one in self._inside(record) if one.queue_offset == queue_offset), None)
        return None if record is None else ReceivedMessage.of(record)

    # By key

    def by_key(
        self, topic: str, key: str, begin_ms: int | None = None, end_ms: int | None = None
    ) -> list[ReceivedMessage]:
        """The messages of a topic that carry a key, newest first, stored in begin_ms <= time < end_ms.

        Times are milliseconds since 1970; None: no limit. Through the index alone: a store without one finds nothing,
        nor does the index of a live broker know its very last records. Quirk (3.x): a transactional message is found as
        its half message, whatever became of it. Raises CorruptStore for a damaged index, CorruptRecord for a damaged
        record. RocketMQ: DefaultMessageStore.queryMessage (5.3.3).
        """
        for name, time_ms in (("begin_ms", begin_ms), ("end_ms", end_ms)):
            if time_ms is not None:
                check_time(name, time_ms)
        found = self._indexed(topic, key, begin_ms, end_ms)
        return [message for message in found if key in message.keys]

    def by_unique_key(self, topic: str, unique_key: str) -> list[ReceivedMessage]:
        """The messages of a topic with the producer's id (UNIQ_KEY), newest first; 3.x has no such ids.

        Through the index, with the errors of `by_key`.
        """
        return [message for message in self._indexed(topic, unique_key) if message.unique_key == unique_key]

    # By time

    def offset_at_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """The first queue offset whose message was stored at or after a time, in milliseconds since 1970.

        The queue's max when none was, 0 when there is no such queue. By bisection: right while the broker's clock was
        never set back. Raises CorruptStore for a damaged file.
        RocketMQ: ConsumeQueue.getOffsetInQueueByTime (5.3.3).
        """
        check_time("timestamp_ms", timestamp_ms)
        queue = self._queue(topic, queue_id)
        if queue is None:
            return 0
        first, end = self.queue_range(topic, queue_id)
        numbers = range(end - first)
        return first + bisect_left(numbers, timestamp_ms, key=lambda number: self._stored_ms(queue, first + number))

    def records_between(self, begin_ms: int, end_ms: int) -> Iterator[Record]:
        """The records stored in begin_ms <= time < end_ms, milliseconds since 1970, in log order.

        Where the broker's clock was set back, it passes over a segment of the log whose first record, and the next
        segment's, were both stored before that time, or both behind it: what else that segment holds it does not find.
        Raises as `records`.
        """
        check_time("begin_ms", begin_ms)
        check_time("end_ms", end_ms)
        return self._between(begin_ms, end_ms)

    def _between(self, begin_ms: int, end_ms: int) -> Iterator[Record]:
        """Passes over a segment when its first record and the next one's were both stored before, or both behind."""
        bases = [segment.base for segment in self.commitlog.segments]
        firsts = [self.commitlog.store_timestamp_ms(base) for base in bases]
        for at, stop, first, after in zip(bases, [*bases[1:], _END], firsts, [*firsts[1:], None], strict=False):
            low, high = sorted((begin_ms if first is None else first, begin_ms if after is None else after))
            if low < end_ms + _CLOCK_STEP_MS and high >= begin_ms - _CLOCK_STEP_MS:
                yield from self._between_in(at, stop, begin_ms, end_ms)

    def _between_in(self, at: int, stop: int, begin_ms: int, end_ms: int) -> Iterator[Record]:
        """Of one segment: hops over what was stored at other times."""
        is_near = True
        while is_near and at < stop:
            for head in self.commitlog.heads(at, stop):
                if begin_ms <= head.store_timestamp_ms < end_ms:
                    break
                at = head.commitlog_offset + head.total_size
            is_near = False
            for record in self.records(at, stop):
                at = record.commitlog_offset + record.total_size
                if begin_ms <= record.store_timestamp_ms < end_ms:
                    yield record
                elif not begin_ms - _CLOCK_STEP_MS <= record.store_timestamp_ms < end_ms + _CLOCK_STEP_MS:
                    is_near = True  # to where the clock comes back
                    break

    # The small files

    def topic_configs(self) -> Topics:
        """What config/topics.json says; empty when the store has none. Raises CorruptRecord when it does not parse."""
        return read_topics(self._directory)

    def consumer_offsets(self) -> ConsumerOffsets:
        """What config/consumerOffset.json says: queue offsets by group, topic and queue; empty when the store has none.

        Raises CorruptRecord when it does not parse.
        """
        return read_consumer_offsets(self._directory)

    def checkpoint(self) -> Checkpoint | None:
        """What the file `checkpoint` says: times in milliseconds and CommitLog offsets; None when the store has none.

        Raises CorruptRecord when the file has a wrong size.
        """
        return read_checkpoint(self._directory)

    @property
    def has_abort(self) -> bool:
        """Whether the file `abort` is there: a broker runs on the store now, or its last exit was not clean."""
        return self._directory.disk.entry(self._directory.paths.abort) is not None

    def _indexed(
        self, topic: str, key: str, begin_ms: int | None = None, end_ms: int | None = None
    ) -> Iterator[ReceivedMessage]:
        """The messages of a topic that the index names for a key, each once; their own keys are not looked at."""
        _check_text("topic", topic)
        _check_text("key", key)
        begin, end = begin_ms or 0, _TIME_MAX_MS if end_ms is None else end_ms
        for commitlog_offset in dict.fromkeys(self.index.find(topic, key, begin, end)):
            record = self.commitlog.read(commitlog_offset)
            if record is not None and record.topic == topic and begin <= record.store_timestamp_ms < end:
                yield ReceivedMessage.of(record)

    def _queue(self, topic: str, queue_id: int) -> AnyQueue | None:
        """A queue; None when it is not there. Raises BrokerError for what names none."""
        check_queue(topic, queue_id)
        return self.every_queue.queue(topic, queue_id)

    def _inside(self, record: Record) -> Iterator[Record]:
        """The messages of a batch."""
        try:
            yield from inner_records(record)
        except CorruptRecord as error:
            raise self.commitlog.damage(record.commitlog_offset, error) from None

    def _record_of(self, queue: AnyQueue, queue_offset: int) -> Record | None:
        """The record of a unit, which must be of the queue's topic."""
        unit = queue.get(queue_offset)
        if unit is None:
            return None
        where = f"{self._directory.paths.queue(queue.topic, queue.queue_id)}: the unit of queue offset {queue_offset}"
        next_step = f"The ConsumeQueue is not that of this CommitLog. Run: checkback verify {quote(self.path)}"
        try:
            record = self.commitlog.read(unit.commitlog_offset, unit.size)
        except CorruptRecord as error:
            reason = f"{where} names CommitLog offset {unit.commitlog_offset}, and {error.reason}"
            raise CorruptRecord(reason, at=error.at, commitlog_offset=unit.commitlog_offset, path=error.path) from None
        if record is None:
            if unit.commitlog_offset < self.begin_offset:
                return None
            text = f"{where} names CommitLog offset {unit.commitlog_offset}, where the log has no record. {next_step}"
            raise CorruptStore(text, path=self.path)
        if record.topic != queue.topic and not queue.topic.startswith(LMQ_PREFIX):
            text = f"{where} names a record of topic {record.topic}, at {unit.commitlog_offset}. {next_step}"
            raise CorruptStore(text, path=self.path)
        return record

    def _stored_ms(self, queue: AnyQueue, queue_offset: int) -> int:
        """When a message was stored; what expired meanwhile counts as long ago."""
        unit = queue.get(queue_offset)
        stored_ms = None if unit is None else self.commitlog.store_timestamp_ms(unit.commitlog_offset)
        return -1 if stored_ms is None else stored_ms


def _check_text(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise BrokerError(f"{name} is text, not {shown(value)}")


def check_queue(topic: object, queue_id: object) -> None:
    """Raises BrokerError for what names no queue."""
    _check_text("topic", topic)
    check_whole("queue_id", queue_id)


def check_whole(name: str, value: object) -> None:
    """Raises BrokerError for what is not an offset or the number of a queue."""
    try:
        index(cast(int, value))  # which takes NumPy's numbers, too
    except TypeError:
        raise BrokerError(f"{name} is a whole number, not {shown(value)}") from None


def check_time(name: str, value: object) -> None:
    """Raises BrokerError for what is not a time in milliseconds, a datetime for one."""
    try:
        cast(int, value) < 0  # noqa: B015 - what can be compared with a number is one
    except TypeError:
        step = ": int(when.timestamp() * 1000)" if hasattr(value, "timestamp") else ""
        raise BrokerError(f"{name} is a number of milliseconds since 1970, not {shown(value)}{step}") from None
