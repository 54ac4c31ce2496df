"""What goes wrong in the demo, where, and a line in a file each time it really does.

A process draws one fate for each transaction or message, or none. The file is only appended to, with one write each
time: a process that is killed a microsecond later has its line in it.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from broker.cluster.live_cluster import LiveCluster
from broker.errors import BrokerError, ClusterError, StoreFull
from broker.format.sysflag import TransactionType
from broker.live import LiveStore
from broker.receiving import Receiver
from broker.store.write.appender import COMPILED
from broker.store.write.pending_record import PendingRecord

HALF_NOT_STORED = "the half message is not stored"
LOCAL_FAILS = "the local transaction fails"
ANSWER_LOST = "the half message is stored, its answer lost"
END_LOST = "the end is lost"
CONSUMER_FAILS = "the consumer fails"
KILLED = "a process is killed at random"
KILLED_BEFORE_DISPATCH = "killed between the log and its queues"
KILLED_BEFORE_END = "killed between COMMIT and the end"
KILLED_BEFORE_ACK = "killed between COMMIT and ack"

OF_PRODUCERS = (HALF_NOT_STORED, LOCAL_FAILS, ANSWER_LOST, END_LOST, KILLED_BEFORE_DISPATCH, KILLED_BEFORE_END)
OF_CONSUMERS = (CONSUMER_FAILS, KILLED_BEFORE_ACK)
ALL = (*OF_PRODUCERS, *OF_CONSUMERS, KILLED)
OF_STORE = (KILLED_BEFORE_DISPATCH,)  # in a cluster a broker does that


def of_producers(*, in_cluster: bool) -> list[str]:
    """The kinds that can strike a producer: of one that cannot, the others would wait for the first hit."""
    return [kind for kind in OF_PRODUCERS if not (in_cluster and kind in OF_STORE)]


_LOOK_S = 0.5
_SPREAD = 3  # how much more often one kind may hit than the rarest


class Failure(Exception):
    """What an application might raise."""


class Crashes:
    """The fates of one process. `rate` is how many of its transactions are struck; the rarest kinds come first."""

    def __init__(self, log: str, seed: int, rate: float) -> None:
        self._log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self.chance = random.Random(seed)
        self.rate = rate
        self.fate = ""
        self._path, self._counted, self._looked_s = log, dict.fromkeys(ALL, 0), 0.0

    def draw(self, kinds: Sequence[str]) -> None:
        """What will happen to the next transaction."""
        if self.chance.random() >= self.rate:
            self.fate = ""
            return
        if time.monotonic() - self._looked_s > _LOOK_S:
            self._counted, self._looked_s = counted(self._path), time.monotonic()
        least = min(self._counted[kind] for kind in kinds)
        self.fate = self.chance.choice([kind for kind in kinds if self._counted[kind] <= least + _SPREAD])

    def calm(self) -> None:
        """Nothing will happen to it."""
        self.fate = ""

    def strikes(self, kind: str) -> bool:
        """Whether it is time for a kind; if so, it is noted, and happens once."""
        if self.fate != kind:
            return False
        self.fate = ""
        os.write(self._log, f"{kind}\n".encode())
        return True

    def raise_if(self, kind: str) -> None:
        if self.strikes(kind):
            raise Failure(kind)

    def into_producers(self, store: LiveStore | LiveCluster) -> None:
        """Put the crashes of a producer where they happen."""
        self._into_cluster(store) if isinstance(store, LiveCluster) else self._into_store(store)

    def _into_cluster(self, cluster: LiveCluster) -> None:
        service: Any = cluster.half_messages
        commit, destination = service.commit, cluster.destination

        def destined(group: str) -> Any:
            made: Any = destination(group)
            prepare = made.prepare

            def prepared(*given: Any, **named: Any) -> Any:
                if self.strikes(HALF_NOT_STORED):
                    raise ClusterError(HALF_NOT_STORED)
                half = prepare(*given, **named)
                if self.strikes(ANSWER_LOST):
                    raise ClusterError(ANSWER_LOST, was_sent=True)
                return half

            made.prepare = prepared
            return made

        def committed(*given: Any, **named: Any) -> Any:
            if self.strikes(END_LOST):
                raise ClusterError(END_LOST)
            if self.strikes(KILLED_BEFORE_END):
                die()
            return commit(*given, **named)

        service.commit = committed
        cluster.destination = destined  # type: ignore[method-assign]

    def _into_store(self, store: LiveStore) -> None:
        service: Any = store.transactions
        appender: Any = store.writer.appender
        prepare, commit, dispatch = service.prepare, service.commit, store.writer.dispatcher.dispatch

        def prepared(*given: Any, **named: Any) -> Any:
            if self.strikes(HALF_NOT_STORED):
                raise StoreFull(HALF_NOT_STORED)
            half = prepare(*given, **named)
            if self.strikes(ANSWER_LOST):
                raise BrokerError(ANSWER_LOST)
            return half

        def committed(*given: Any, **named: Any) -> Any:
            if self.strikes(END_LOST):
                raise BrokerError(END_LOST)
            if self.strikes(KILLED_BEFORE_END):
                die()
            return commit(*given, **named)

        def dispatched(draft: PendingRecord, *given: Any, **named: Any) -> Any:
            if draft.kind == TransactionType.COMMIT and self.strikes(KILLED_BEFORE_DISPATCH):
                # Halfway: the transaction is settled, so that check-back asks no more, and no consumer hears of it.
                appender.dispatcher.settle(draft.slot, draft.prepared_offset, draft.kind)
                die()
            return dispatch(draft, *given, **named)

        service.prepare, service.commit = prepared, committed
        for compiled in COMPILED:
            setattr(appender, compiled, lambda *_: None)
        appender.append_one_locked = lambda draft: appender.append_locked((draft,))[0]  # in steps, not in one piece
        appender.dispatcher.dispatch = dispatched

    def into_consumer(self, consumer: Receiver) -> None:
        """Put the crashes of a consumer where they happen."""
        ack = consumer.ack

        def acknowledged(message: Any) -> bool:
            if self.strikes(KILLED_BEFORE_ACK):
                die()
            return ack(message)

        consumer.ack = acknowledged  # type: ignore[method-assign]


def die() -> NoReturn:
    """As by the system: nothing is closed, nothing is flushed, no handler runs."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


def note(log: str, kind: str) -> None:
    """For who kills others."""
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        os.write(descriptor, f"{kind}\n".encode())
    finally:
        os.close(descriptor)


def counted(log: str) -> dict[str, int]:
    """How often each kind really hit."""
    path = Path(log)
    found = Counter(path.read_text(encoding="utf-8").splitlines() if path.exists() else ())
    return {kind: found[kind] for kind in ALL}
