"""Rounds of check-back: ask once about each half message that is old enough, and stop asking at a limit.

The plain loop that RocketMQ has; what was asked is counted in memory. `recovery.checkback.round` does more: policies,
backoff, resolvers, and a catalog that outlives the process.

RocketMQ: TransactionalMessageServiceImpl.check, needDiscard, checkPrepareQueueOffset (5.3.3).
"""

from __future__ import annotations

import threading

from broker.errors import AlreadyEnded, BrokerError, CorruptStore, shown
from broker.format import properties as names
from broker.transaction.service import CheckListener, Half, LocalTransactionState, TransactionalMessageService


def is_due(half: Half, timeout_ms: int, now_ms: int) -> bool:
    """Whether it is time to ask: the producer's own immunity comes before the time-out.

    RocketMQ: TransactionalMessageServiceImpl.getImmunityTime (5.3.3); what is not a number, or -1, means no immunity.
    One that is born in the future, as by a producer whose clock is wrong, counts from when it was stored.
    """
    immunity_s = names.decimal(half.properties.get(names.CHECK_IMMUNITY_TIME_IN_SECONDS, ""))
    since_ms = min(half.born_timestamp_ms, half.store_timestamp_ms)
    return now_ms - since_ms >= (timeout_ms if immunity_s is None else immunity_s * 1000)


class Rounds:
    """How often each half message was checked in this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked: dict[int, int] = {}

    def run(
        self,
        service: TransactionalMessageService,
        timeout_ms: int,
        check_max: int,
        listener: CheckListener,
        now_ms: int,
    ) -> int:
        """One round; two threads never ask at the same time. What a listener raises means UNKNOW: it asks again.

        A half message that cannot be read, and an error of what discards one, is raised once the others had their turn.
        """
        if not isinstance(listener, CheckListener):
            raise BrokerError(f"check() asks a broker.CheckListener, not {shown(listener)}")
        for name, number in (("timeout_ms", timeout_ms), ("check_max", check_max)):
            if type(number) is not int:
                raise BrokerError(f"{name} is a whole number, not {shown(number)}")
        damaged: list[CorruptStore] = []
        faults: list[Exception] = []
        with self._lock:
            parked, asked, left = service.parked(), 0, {}
            for half in service.in_doubt(damaged=damaged):
                before = self._asked.get(half.commitlog_offset, 0)
                left[half.commitlog_offset] = before
                if half.commitlog_offset in parked or not is_due(half, timeout_ms, now_ms):
                    continue
                if before >= check_max:
                    _discard(service, half, listener, faults)
                    continue
                asked += 1
                left[half.commitlog_offset] = before + 1
                _settle(service, half, _answer(service, half, listener))
            self._asked = left
        if damaged or faults:
            raise [*damaged, *faults][0]
        return asked


def _answer(service: TransactionalMessageService, half: Half, listener: CheckListener) -> LocalTransactionState:
    try:
        return listener.resolve_half_message(half, service.message(half))
    except Exception:  # noqa: BLE001 - an answer that cannot be given is not an answer
        return LocalTransactionState.UNKNOW


def _discard(
    service: TransactionalMessageService, half: Half, listener: CheckListener, faults: list[Exception]
) -> None:
    """Have the listener discard a half message; `faults` gets what it raises, if that is the first."""
    try:
        listener.resolve_discard_message(service, half)
    except AlreadyEnded:
        pass  # as in `_settle`
    except Exception as error:  # noqa: BLE001 - of an application; the round raises it
        if not faults:
            faults.append(error)


def _settle(service: TransactionalMessageService, half: Half, answer: LocalTransactionState) -> None:
    try:
        if answer is LocalTransactionState.COMMIT_MESSAGE:
            service.commit(half)
        elif answer is LocalTransactionState.ROLLBACK_MESSAGE:
            service.rollback(half)
    except AlreadyEnded:
        pass  # someone else decided a moment ago, and the first decision stands
