"""LiveStore: a store that is open for writing, as applications use it: with producers, consumers and retention.

    with broker.open("shop.store") as store:
        store.append(broker.Message("orders", b"paid"))
        half = store.transactions.prepare(broker.Message("orders", b"created"), "shop")
        store.transactions.commit(half)

Threads share it, other processes open the same store, and each may be killed at any instant.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, Unpack

from broker import observing
from broker.consuming.subscriptions import has_consumers
from broker.errors import BrokerError, StoreError, shown
from broker.format.topics import CHECK_GROUP
from broker.log_fields import event
from broker.producing.store_destination import StoreDestination
from broker.retainer import Retainer, RetentionReport
from broker.store.disk.files import Disk
from broker.store.disk.paths import path_of_store
from broker.store.engines.half_op import HALF_OP
from broker.store.maintain.removal import keep_reserve
from broker.store.maintain.retention import Retention
from broker.store.maintain.retention_registry import read_history
from broker.store.read.layout import StoreLayout
from broker.store.shared.control import Word
from broker.store.shared.group_file import GroupFile
from broker.store.write.admission import ROLES
from broker.store.writer import SYNC_MODES
from broker.transaction.backpressure import check_most
from broker.transaction.check_progress import check_positions
from broker.writable_store import StoreOptions, WritableStore

if TYPE_CHECKING:
    from datetime import datetime

    from broker.consumer import Consumer
    from broker.database.bound_ledger import BoundLedger
    from broker.database.dedup import Processed
    from broker.producer import Producer

_log = logging.getLogger("broker")


class LiveStore(WritableStore):
    """A store, open for reading and writing. Close it, or use it in a `with` statement; threads may share it.

    `broker.open` makes it: the arguments and the errors are those of `broker.open`.
    """

    def __init__(
        self, path: str, disk: Disk, *, retention: Retention | None = None, **options: Unpack[StoreOptions]
    ) -> None:
        super().__init__(path, disk, **options)
        try:
            self._clamp_positions()
            self._retainer = Retainer(self, retention)
            keep_reserve(disk, self.writer.paths)
            self.writer.upkeep.say_dropped = partial(_say_dropped, path)
            if retention is not None:
                self.writer.upkeep.start()  # a process that only consumes removes what is read, too
        except BaseException:
            self.writer.close()
            raise

    def _clamp_positions(self) -> None:
        """After a machine crash a queue may end before a group's position: what is sent now is new to the group."""
        if has_consumers(self):
            from broker.consuming.group.positions import Positions

            Positions(self).close()

    def __repr__(self) -> str:
        return f"<broker.LiveStore {self.path!r}, sync={self.writer.sync!r}>"

    def __reduce__(self) -> NoReturn:
        step = f"open it in the process that uses it, broker.open({self.path!r})"
        raise StoreError(f"a store goes to no other process, nor what was made of it, as a producer: {step}")

    def close(self) -> None:
        """Release the store; the last process to do so flushes everything to disk. A second call does nothing.

        Raises SyncFailed, StoreFull when that fails: the next open recovers.
        """
        if self._is_open:
            with contextlib.suppress(BrokerError):  # it saves a broker some reading, and is written again next time
                self.note_check_progress()
            try:
                super().close()
            finally:
                self._retainer.close()

    # Doors

    def producer(
        self, group: str, *, topics: Sequence[str] = (), ledger: BoundLedger | None = None, resolver: Any = None
    ) -> Producer:
        """Make what an application sends with; with a ledger or a resolver, together with its local transactions.

        The arguments and the errors are those of Producer.
        """
        from broker.producer import Producer

        return Producer(self, group, topics=topics, ledger=ledger, resolver=resolver)

    def destination(self, group: str) -> StoreDestination:
        """Where the messages of a producer group go. Producer calls it."""
        return StoreDestination(self, group)

    def consumer(
        self,
        group: str,
        topic: str | Sequence[str],
        *,
        tags: str = "*",
        ordered: bool = False,
        start: str | int | datetime = "first",
        max_retries: int = 16,
        retry_delay_level: int | None = None,
        retries_first: bool = False,
        ack_timeout_s: float = 900.0,
        processed: Processed | None = None,
    ) -> Consumer:
        """Make what an application receives with: one member of a consumer group, which shares the topics' queues.

        `group` has up to 119 characters, as a topic has them. `tags` selects ("A || B"; "*": all); `ordered` hands out
        each queue one message at a time; `start` says where a group begins that is new: "first", "last" or a time, a
        datetime with a time zone or milliseconds since 1970. What is not acknowledged in `ack_timeout_s` seconds comes
        again, and goes to the dead letters of the group after `max_retries` times. `retry_delay_level` is the delay of
        `Consumer.retry`: 1 (1 s) to 18 (2 h), 0 for at once, -1 for the dead letters; None: growing. `retries_first`:
        what comes back is handed out before all that is new, else its queue takes its turn. `processed` is the table
        that `Consumer.process` writes to; None: `broker.Processed()`.

        Raises MessageRejected for a bad name or tags that select nothing, BrokerError for other arguments out of range,
        StoreError when the group consumes other topics elsewhere or the store has no room for another consumer,
        NotPermitted in a slave that lacks the group's retry topic, StoreFull.
        RocketMQ: DefaultMQPushConsumer (5.3.3).
        """
        from broker.consumer import Consumer

        self.writer.check_open()
        return observing.receiver(Consumer)(
            self, group, topic, tags=tags, ordered=ordered, start=start, max_retries=max_retries,
            retry_delay_level=retry_delay_level, retries_first=retries_first, ack_timeout_s=ack_timeout_s,
            processed=processed,
        )  # fmt: skip

    # What a RocketMQ broker may skip

    def note_check_progress(self) -> None:
        """With the engine half-op, write down for a RocketMQ broker up to where nothing is to be checked any more.

        Does nothing with the state table, or in a slave. `close` calls it. See `broker.transaction.check_progress`.
        Raises StoreFull, SyncFailed, CorruptRecord for a file of positions that does not parse.
        """
        writer = self.writer
        if writer.dispatcher.engine is not HALF_OP or self._admission.is_slave or not writer.control[Word.SLOTS]:
            return
        from broker.consuming.group.positions import Positions

        parked, slot_of = self.transactions.parked(), writer.dispatcher.slot
        pending = self.transactions.in_doubt_slots()
        if parked:
            pending = [slot for slot in pending if slot_of(slot).commitlog_offset not in parked]
        wanted = check_positions(self.consumequeues, self.queue_end, pending)
        positions = Positions(self)
        try:
            positions.write(CHECK_GROUP, wanted)
        finally:
            positions.close()

    # Groups

    def pause_group(self, group: str) -> None:
        """Give a consumer group no messages any more, within half a second, in every process and over the network.

        What is in process is finished and acknowledged. The pause is `consumeEnable` in config/subscriptionGroup.json,
        which RocketMQ's brokers obey, too. Raises MessageRejected for an impossible name or when the store has no room
        for another group, CorruptRecord for a file that does not parse, StoreFull.
        """
        self._group_file().pause(group)

    def resume_group(self, group: str) -> None:
        """Give a paused group its messages again, from where it stood. Raises as `pause_group`."""
        self._group_file().pause(group, paused=False)

    def _group_file(self) -> GroupFile:
        return GroupFile(self.path, self.writer.disk, self.writer.append_lock)

    # What is old

    def retain(
        self, retention: Retention | None = None, *, dry_run: bool = False, now_ms: int | None = None
    ) -> RetentionReport:
        """Remove the segments that are due and that nothing pins, now; with `dry_run` only report which.

        `retention` None: the most careful of those with which processes have the store open now. `now_ms`, milliseconds
        since 1970, decides what is old; None: the wall clock. Waits for a round in the background. Raises BrokerError
        when there is no retention, or one of another type; StoreError for files that cannot be read or removed.
        RocketMQ: DefaultMessageStore.CleanCommitLogService (5.3.3), which removes what nobody has read, too.
        """
        return self._retainer.run(retention, now_ms=now_ms, dry_run=dry_run)

    @property
    def retention(self) -> Retention | None:
        """The retention in effect: the most careful of those with which processes have the store open; None: none."""
        return self._retainer.in_effect()

    def retention_history(self) -> dict[str, Any]:
        """What retention removed from the store so far, ready for JSON; empty before the first.

        `segments` and `bytes` of the CommitLog, `last_ms` (milliseconds since 1970), and `unread`: how many messages
        went unread, by "group@topic".
        """
        return read_history(self.writer.disk, self.writer.paths)


def _say_dropped(path: str) -> None:
    text = "the store %s was dropped without close(), and is closed now: close it, or use `with`"
    _log.warning(text, path, extra=event("store-dropped", store=path))


def check_options(
    *,
    sync: object = "group",
    layout: object = None,
    role: object = "master",
    reject_transactions: object = False,
    transactions: object = None,
    create: object = True,
    retention: object = None,
    in_doubt_max: object = None,
) -> None:
    """Look at the options of `broker.open` before a store is made. Raises BrokerError for one of another type."""
    if sync not in SYNC_MODES:
        raise BrokerError(f"sync is one of {', '.join(SYNC_MODES)}, not {shown(sync)}")
    if role not in ROLES:
        raise BrokerError(f"role is one of {', '.join(ROLES)}, not {shown(role)}")
    if layout is not None and not isinstance(layout, StoreLayout):
        raise BrokerError(f"layout= takes sizes of files, as broker.StoreLayout.small(), not {shown(layout)}")
    if retention is not None and not isinstance(retention, Retention):
        raise BrokerError(f"retention= takes rules, as broker.Retention(keep_s=3 * 86_400), not {shown(retention)}")
    if transactions is not None and not isinstance(transactions, str):
        raise BrokerError(f"transactions is 'state-table' or 'half-op', not {shown(transactions)}")
    for name, value in (("reject_transactions", reject_transactions), ("create", create)):
        if not isinstance(value, bool):
            raise BrokerError(f"{name} is True or False, not {shown(value)}")
    if in_doubt_max is not None:
        check_most(in_doubt_max)


class OpenOptions(StoreOptions, total=False):
    """The options of `broker.open` for a store that is open for writing."""

    retention: Retention | None


def open_live(path: str | os.PathLike[str], *, disk: Disk | None = None, **options: Unpack[OpenOptions]) -> LiveStore:
    """Open a store for writing, on a disk of one's choice. See `broker.open`."""
    check_options(**options)
    return LiveStore(path_of_store(path), disk or Disk(), **options)
