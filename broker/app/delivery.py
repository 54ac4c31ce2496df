"""Deliver delayed messages in a process that has no consumer, which would do it: by the same lease of the store."""

from __future__ import annotations

import contextlib
import logging
import threading
from typing import TYPE_CHECKING

from broker.consuming.group.membership import Membership
from broker.consuming.group.offset_export import SCHEDULE_GROUP
from broker.consuming.group.positions import Positions
from broker.consuming.schedule import Schedule
from broker.errors import BrokerError
from broker.format.topics import SCHEDULE_TOPIC
from broker.log_fields import event

if TYPE_CHECKING:
    from broker.writable_store import WritableStore

_TICK_S = 0.1
_AGAIN_S = 1.0  # after an error
_log = logging.getLogger("broker")


class DelayedDelivery:
    """A thread that delivers what is due while no other process has the lease."""

    def __init__(self, store: WritableStore) -> None:
        self._store, self._stopping = store, threading.Event()
        with contextlib.ExitStack() as undone:  # a member that stays behind would keep its place
            self._positions = Positions(store)
            undone.callback(self._positions.close)
            self._member = Membership(self._positions.cells, SCHEDULE_GROUP, (SCHEDULE_TOPIC,))
            undone.callback(self._member.leave)
            self._schedule = Schedule(store, self._positions, self._member)
            self._thread = threading.Thread(target=self._work, name="checkback-delayed", daemon=True)
            undone.callback(self._stopping.set)  # an interrupt in `start` leaves a thread that has begun
            self._thread.start()
            undone.pop_all()

    def _work(self) -> None:
        while not self._stopping.wait(_TICK_S):
            try:
                self._member.beat()
                self._schedule.deliver(self._store.writer.clock.now_ms())
                self._positions.exchange.export()  # last: on a full disk what is due may fit into the log
            except Exception as error:  # noqa: BLE001 - a thread that dies would deliver nothing any more
                _log.warning(
                    "delayed messages, or the export of positions, wait, and are tried again: %s",
                    error if isinstance(error, BrokerError) else repr(error),
                    extra=event("delayed-waits", store=self._store.path),
                )
                self._stopping.wait(_AGAIN_S)

    def close(self) -> None:
        """End the thread and give the lease back."""
        self._stopping.set()
        self._thread.join()
        self._schedule.release()
        self._member.leave()
        self._positions.close()
