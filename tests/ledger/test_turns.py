"""The threads of a process take turns at SQLite's one write lock; nothing rests on that they do."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import URL, Engine, create_engine, event, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from broker.enlisting.enlistment import Enlistment
from broker.ledger import Ledger
from broker.local_transaction import SessionTransaction
from tests.backends.shop import announce
from tests.checkback.shop import open_store

THREADS, EACH = 4, 25
AT_ONCE_S = 0.5  # who waits in vain for a turn waits for a second


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)


class Till:
    """Sells orders, each written at the flush before COMMIT."""

    def __init__(self, engine: Engine, path: Path) -> None:
        self.engine, self.ledger, self.store = engine, Ledger(engine), open_store(path)
        self.ledger.create_all()
        Base.metadata.create_all(engine)
        self.producer = self.store.producer("shop", topics=["orders"], ledger=self.ledger)

    def buy(
        self,
        number: int,
        *,
        at_flush: Callable[[], object] = lambda: None,
        at_end: Callable[[], object] = lambda: None,
        inside: Callable[[Session], object] = lambda _: None,
    ) -> float:
        """How long it took to leave the block, in seconds."""
        with Session(self.engine) as session:
            event.listen(session, "before_flush", lambda *_: at_flush())
            transaction: SessionTransaction = self.producer.begin_transaction(session)
            event.listen(session.connection(), "commit", lambda *_: at_end())
            announce(self.producer, transaction, number)
            inside(session)
            session.add(Order(id=number))
            start = time.monotonic()
            transaction.commit()
            return time.monotonic() - start

    def orders(self) -> list[int]:
        with Session(self.engine) as session:
            return list(session.scalars(select(Order.id).order_by(Order.id)))


@pytest.fixture
def till(sqlite_url: URL, tmp_path: Path) -> Iterator[Till]:
    engine = create_engine(sqlite_url)
    till = Till(engine, tmp_path / "store")
    yield till
    till.store.close()
    engine.dispose()


def in_a_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_one_thread_at_a_time_goes_from_flush_to_commit(till: Till, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.ledger._TURN_S", 60.0)  # nobody goes on without a turn, however slow the machine is
    counting, start = threading.Lock(), threading.Barrier(THREADS)
    inside, most = 0, 0

    def enter() -> None:
        nonlocal inside, most
        with counting:
            inside += 1
            most = max(most, inside)
        time.sleep(0.001)  # time enough for the others to come as well

    def leave() -> None:
        nonlocal inside
        with counting:
            inside -= 1

    def work(first: int) -> None:
        start.wait()
        for number in range(first, first + EACH):
            till.buy(number, at_flush=enter, at_end=leave)

    for thread in [in_a_thread(partial(work, number * EACH)) for number in range(THREADS)]:
        thread.join()
    assert (inside, most) == (0, 1)
    assert till.orders() == list(range(THREADS * EACH))


def test_whoever_writes_already_waits_for_no_turn(till: Till) -> None:
    """It has SQLite's lock, for which the one whose turn it is waits: neither would go on."""
    came = threading.Event()
    others: list[threading.Thread] = []

    def write(session: Session) -> None:
        session.add(Order(id=1))
        session.flush()
        others.append(in_a_thread(lambda: till.buy(3, at_flush=came.set)))
        assert came.wait(10)

    assert till.buy(2, inside=write) < AT_ONCE_S
    others[0].join()
    assert till.orders() == [1, 2, 3]


def test_a_transaction_within_the_flush_of_another_has_its_turn(till: Till) -> None:
    took: list[float] = []

    def once() -> None:
        if not took:
            took.append(0)
            took.append(till.buy(2))

    till.buy(1, at_flush=once)
    assert took[1] < AT_ONCE_S
    assert till.orders() == [1, 2]


def test_who_has_to_wait_for_a_turn_waits_for_the_disk_first(till: Till, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fsync of its half message was a part of its turn, in which no other thread commits."""
    monkeypatch.setattr("broker.ledger._TURN_S", 60.0)
    is_durable, waits = threading.Event(), Enlistment.wait_durable

    def wait_durable(enlistment: Enlistment) -> None:
        waits(enlistment)
        is_durable.set()

    monkeypatch.setattr(Enlistment, "wait_durable", wait_durable)
    end_turn = till.ledger.take_turn()
    thread = in_a_thread(lambda: till.buy(1))
    try:
        assert is_durable.wait(10)
        assert till.orders() == []
    finally:
        end_turn()
    thread.join()
    assert till.orders() == [1]


def test_who_fails_gives_the_turn_back(till: Till) -> None:
    till.buy(1)

    def fail() -> None:
        with pytest.raises(IntegrityError):
            till.buy(1)

    in_a_thread(fail).join()
    assert till.buy(2) < AT_ONCE_S
    assert till.orders() == [1, 2]


def test_a_turn_that_nobody_gives_back_is_waited_for_once(till: Till) -> None:
    """Its thread was interrupted at a bad moment, or is the parent's from before a fork."""
    has_it, over = threading.Event(), threading.Event()

    def stay() -> None:
        till.ledger.take_turn()
        has_it.set()
        over.wait()

    thread = in_a_thread(stay)
    has_it.wait()
    first, second = till.buy(1), till.buy(2)
    over.set()
    thread.join()
    assert first > AT_ONCE_S > second
    assert till.orders() == [1, 2]
