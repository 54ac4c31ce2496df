"""Stores of ours for this room: with traffic, with something parked, killed in the middle of it; and who is asked."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine

import broker
from broker.store.read.layout import StoreLayout

SMALL = StoreLayout(1 << 20, 6000, 2400, 2000, 100, 400)  # files that cost no time to make
ANSWERS = "tests.jobs.shops:answer"
LATE_MS = 60_000  # after this everything is due


def answer(message: Any) -> str:
    """The application: an even order was paid for, an odd one was not."""
    return "commit" if int(message.keys[0]) % 2 == 0 else "rollback"


def knows_nothing(message: Any) -> str:
    """An application that cannot say."""
    return "unknown"


def prepare(store: broker.LiveStore, numbers: range) -> list[int]:
    """A half message for each order; where they begin."""
    return [
        store.transactions.prepare(
            broker.Message("orders", b"order %d" % number, keys=[str(number)]), "shop"
        ).commitlog_offset
        for number in numbers
    ]


def shop(path: Path, orders: int = 10) -> Path:
    """A store that was closed well, with so many orders in doubt."""
    with broker.open(str(path), layout=SMALL) as store:
        prepare(store, range(orders))
    return path


def bind(path: Path, url: str) -> None:
    """Make a ledger in a database, and open a producer of the store on it."""
    engine = create_engine(url)
    ledger = broker.Ledger(engine)
    ledger.create_all()
    with broker.open(str(path)) as store:
        store.producer("shop", topics=["orders"], ledger=ledger)
    engine.dispose()


def killed_shop(path: Path, orders: int = 10) -> Path:
    """A store whose only process was killed: in the middle of traffic, with so many orders in doubt."""

    def traffic() -> None:
        store = broker.open(str(path), layout=SMALL)
        offsets = prepare(store, range(orders + 2))
        service = store.transactions
        service.commit(service.half(offsets[-1]))
        service.rollback(service.half(offsets[-2]))
        os.kill(os.getpid(), signal.SIGKILL)

    in_child(traffic)
    return path


def in_child(work: Callable[[], None]) -> int:
    """Do it in a forked child; how that ended."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(0)
    return os.waitpid(pid, 0)[1]


def park(path: Path, why: str = "nobody knew") -> list[int]:
    """Park everything that is in doubt; where the half messages begin."""
    with broker.open(str(path)) as store:
        halves = list(store.transactions.in_doubt())
        for half in halves:
            store.transactions.park(half, why)
    return [half.commitlog_offset for half in halves]


def spoil_slot(path: Path, slot: int) -> None:
    """Plant another state in the state table, as a flipped bit would."""
    file = path / "transaction/statetable/00000000000000000000"
    with file.open("r+b") as table:
        table.seek(24 * slot + 23)
        state = table.read(1)[0]
        table.seek(24 * slot + 23)
        table.write(bytes([12 if state == 8 else 8]))


def bodies(path: Path, topic: str = "orders") -> list[bytes]:
    """What consumers of a topic get."""
    with broker.open(str(path), read_only=True) as store:
        found = []
        for queue in store.queues(topic):
            for number in range(*store.queue_range(topic, queue)):
                message = store.message(topic, queue, number)
                assert message is not None
                found.append(message.body)
        return found


def tree(path: Path) -> dict[str, tuple[int, int]]:
    """Each file of a store with its size and the time of its last change."""
    return {
        str(one.relative_to(path)): (one.stat().st_size, one.stat().st_mtime_ns)
        for one in sorted(path.rglob("*"))
        if one.is_file()
    }
