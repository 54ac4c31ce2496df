"""What a consumer does besides handing out messages, in a thread of its own.

Every 50 ms: a sign of life, the queues of members that died, delayed messages that are due, what was in hand for too
long, positions for RocketMQ (every 5 s); and whether the consumer is still there: a group would wait for one that was
dropped as long as the process lives. And what a killed producer left: a record that is published, but not dispatched or
not forced, is finished here, so that no message waits for the next send.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from broker.consuming.group.leases import Leases
from broker.consuming.group.membership import Membership, monotonic_ms
from broker.consuming.group.positions import Positions
from broker.consuming.reading import Leftovers
from broker.consuming.schedule import Schedule
from broker.errors import BrokerError, CorruptStore, MessageRejected, StoreError, StoreFull
from broker.log_fields import event
from broker.message import ReceivedMessage
from broker.store.shared.control import Word
from broker.store.shared.group_file import GroupFile

if TYPE_CHECKING:
    from broker.writable_store import WritableStore

TICK_S = 0.05
_REBALANCE_MS = 500  # how soon a killed member is noticed; one that leaves or joins is noticed at the next tick
_log = logging.getLogger("broker")


class ConsumerWorker:
    """The thread of one consumer. What goes wrong in it stands in `failure`, for the next receive.

    `send_back` is the consumer's `retry`, weakly.
    """

    def __init__(
        self, store: WritableStore, positions: Positions, member: Membership, leases: Leases, *,
        ack_timeout_s: float, send_back: weakref.WeakMethod[Callable[[ReceivedMessage], bool]],
    ) -> None:  # fmt: skip
        self._store, self._positions, self._member, self._leases = store, positions, member, leases
        self._schedule = Schedule(store, positions, member)
        self._ack_timeout_ms, self._send_back = int(ack_timeout_s * 1000), send_back
        self.failure: BrokerError | None = None
        self._stop = threading.Event()
        self._balanced_ms = -_REBALANCE_MS
        self._seen: tuple[int, int] = (-1, -1)
        self._leftovers = Leftovers(store)
        self._said = deque[str](maxlen=1000)  # what was logged
        self._groups, self._group = GroupFile(store.path, store.writer.disk, store.writer.append_lock), member.group
        self._thread = threading.Thread(target=self._work, name="checkback-consumer", daemon=True)

    def start(self) -> None:
        self.tick()
        self._thread.start()

    def stop(self) -> None:
        """End the thread and give back what it held."""
        self._stop.set()
        if self._thread is not threading.current_thread():
            self._thread.join()
        self._schedule.release()

    def leave(self) -> None:
        """Give the queues back to the group, and write the positions."""
        try:
            self._leases.release()
            with contextlib.suppress(StoreFull):  # the positions themselves stand in the cells
                self._positions.exchange.export(at_once=True)
        finally:
            self._member.leave()
            self._positions.close()

    def _work(self) -> None:
        while not self._stop.wait(TICK_S):
            try:
                if self._send_back() is None:
                    self._leave_unclosed()
                    return
                self.tick()
            except StoreFull:  # what cannot be written is tried again; the rest is handed out
                continue
            except BrokerError as error:
                self.failure = error
                return
            except ValueError as error:  # a map that was closed under us
                self.failure = StoreError(f"{self._store.path} was closed before its consumer: {error}")
                return
            except Exception as error:  # noqa: BLE001 - else nobody learns of it, and each receive waits without end
                text = f"the background thread of a consumer of group {self._group} ended by {error!r}"
                self.failure = StoreError(f"{text}: close the consumer, and open it again", path=self._store.path)
                return

    def _leave_unclosed(self) -> None:
        text = "a consumer of group %s was dropped without close(), and leaves the group: close it, or use `with`"
        _log.warning(text, self._group, extra=event("consumer-dropped", store=self._store.path, group=self._group))
        self._schedule.release()
        self.leave()

    def tick(self) -> None:
        """Everything that is due now."""
        now_ms = monotonic_ms()
        self._member.beat()
        self._leases.paused = self._groups.is_paused(self._group)
        seen = self._positions.cells.changes, self._store.writer.control[Word.QUEUES]
        if seen != self._seen or now_ms - self._balanced_ms >= _REBALANCE_MS:
            self._seen, self._balanced_ms = seen, now_ms
            self._leases.rebalance()
        self._leftovers.finish()
        self._do(self._deliver)
        for message in self._leases.overdue(now_ms - self._ack_timeout_ms):
            self._do(partial(self._return, message))
        self._positions.exchange.export()

    def _return(self, message: ReceivedMessage) -> None:
        if (send_back := self._send_back()) is not None:
            send_back(message)

    def _deliver(self) -> None:
        self._schedule.deliver(self._store.writer.clock.now_ms())

    def _do(self, step: Callable[[], object]) -> None:
        """Do one thing. A message that cannot be read or stored holds up neither the other steps nor other levels."""
        try:
            step()
        except StoreFull:  # tried again at the next tick
            pass
        except (CorruptStore, MessageRejected) as error:
            if str(error) not in self._said:
                self._said.append(str(error))
                text = (
                    "a delayed or overdue message cannot be delivered, and those behind it in its delay level wait: %s"
                )
                _log.error(text, error, extra=event("delayed-waits", store=self._store.path, group=self._group))
