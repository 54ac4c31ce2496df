"""For your tests: a store for one test, a clock to move, a COMMIT that is lost, a process that dies in between.

    from broker.testing.fixtures import crash_between_commit_and_end, temporary_store

    with temporary_store() as store:
        producer = store.producer("shop", topics=["orders"], ledger=ledger)
        with crash_between_commit_and_end(store):
            place_order(producer)                  # the order is in the database, the message is in doubt
        check_back(...)                            # and now it is delivered

With pytest these are fixtures (`broker.testing.pytest_plugin`): checkback_store, checkback_clock, lose_the_commit,
crash_between_commit_and_end.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent import futures
from typing import TYPE_CHECKING, Any, Self, cast
from unittest import mock

from broker.database.arguments import is_async_engine, is_engine
from broker.errors import BrokerError, shown
from broker.store.read.layout import StoreLayout

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from broker.live import LiveStore

SMALL = StoreLayout(
    segment_bytes=1 << 20,
    consume_queue_bytes=20 * 1024,
    state_table_bytes=24 * 1024,
    redo_log_bytes=20 * 1024,
    index_slots=128,
    index_items=1024,
)
"""Files for a test: a store takes a few megabytes, and its files fill up soon enough to be changed."""

_OF_CHECK_BACK = re.compile(r"checkback-(check|ask .*|cluster-check_\d+)", re.DOTALL)  # threads, by their names
_AHEAD_MAX_S = 1e10
_END_NS = 1 << 63  # where a clock in nanoseconds, in 64 bits, ends: in the year 2262


class Killed(BaseException):
    """The process died here. No `except Exception` may live on after it."""


@contextlib.contextmanager
def temporary_store(
    path: str | None = None, *, layout: StoreLayout = SMALL, sync: str = "os", **options: Any
) -> Iterator[LiveStore]:
    """A new store that is gone afterwards; with a `path` it stays there.

    `sync` is "os": a test has no power cuts, and so does not wait for the disk. Other options, and the errors, are
    those of `broker.open`.
    """
    from broker.live import open_live

    with contextlib.ExitStack() as stack:
        directory = path or stack.enter_context(tempfile.TemporaryDirectory(prefix="checkback-"))
        yield stack.enter_context(open_live(directory, layout=layout, sync=sync, **options))


class FakeClock:
    """The wall clock, with jumps: what waits for a delay, an age or a retention need not be waited for.

        with FakeClock() as clock:
            consumer.retry(message)                    # comes again in 10 s
            clock.advance(10)                          # which is now

    It moves `time.time` and `time.time_ns` of this process while it is installed; monotonic clocks, sleeps, and time
    stamps of records go on as they are.
    """

    def __init__(self) -> None:
        self._ahead_ns = 0
        self._real = time.time_ns
        self._patches = (mock.patch("time.time_ns", self.time_ns), mock.patch("time.time", self.time))

    def advance(self, seconds: float) -> None:
        """Go on by so many seconds at once; backwards with a negative number, as clocks that are set do.

        Raises BrokerError for what is not a number, and for a time before 1970 or after 2262.
        """
        if not isinstance(cast(object, seconds), int | float) or not abs(seconds) <= _AHEAD_MAX_S:
            raise BrokerError(f"the clock goes on by a number of seconds, not {shown(seconds)}")
        ahead_ns = self._ahead_ns + int(seconds * 1e9)
        if not 0 <= self._real() + ahead_ns < _END_NS:
            raise BrokerError(f"the clock goes from 1970 to 2262, and {seconds!r} seconds lead out of that")
        self._ahead_ns = ahead_ns

    def time_ns(self) -> int:
        """Nanoseconds since 1970, by this clock."""
        return self._real() + self._ahead_ns

    def time(self) -> float:
        """Seconds since 1970, by this clock."""
        return self.time_ns() / 1e9

    @property
    def now_ms(self) -> int:
        """Milliseconds since 1970, by this clock."""
        return self.time_ns() // 1_000_000

    def __enter__(self) -> Self:
        for patch in self._patches:
            patch.start()
        return self

    def __exit__(self, *_: object) -> None:
        for patch in self._patches:
            patch.stop()


@contextlib.contextmanager
def lose_the_commit(engine: Engine, *, committed: bool) -> Iterator[None]:
    """The next COMMIT of the engine ends in a lost connection: the application cannot know whether it took effect.

    With `committed` the database did commit and only the answer was lost; else nothing was committed. What check-back
    commits in threads of its own, as it asks the ledger, does not count. Raises AssertionError when the block ends
    without a COMMIT, BrokerError for what is not an Engine.
    """
    if not is_engine(engine):
        step = ": give it engine.sync_engine" * is_async_engine(engine)
        raise BrokerError(f"lose_the_commit takes an Engine of SQLAlchemy, not {shown(engine)}{step}")
    dialect = engine.dialect
    lost: list[bool] = []
    real = dialect.do_commit

    def do_commit(connection: Any) -> None:
        if lost or _OF_CHECK_BACK.fullmatch(threading.current_thread().name):
            return real(connection)
        lost.append(True)
        real(connection) if committed else dialect.do_rollback(connection)
        error = getattr(dialect.loaded_dbapi, "OperationalError")  # noqa: B009 - every driver has it
        raise error("the connection was lost during COMMIT (broker.testing.fixtures.lose_the_commit)")

    with mock.patch.object(dialect, "do_commit", do_commit):
        yield
    if not lost:
        raise AssertionError("there was no COMMIT to lose in the block")


@contextlib.contextmanager
def crash_between_commit_and_end(store: LiveStore) -> Iterator[None]:
    """The process dies after COMMIT, before the end of the transaction is written; the block ends there.

    So the half message stays in doubt, as after a real kill: check-back has to find out. In another thread, as a web
    framework's test client may have it, that thread ends there. Raises AssertionError when no transaction was to be
    ended in the block, BrokerError for what is not an open store.
    """
    deaths: list[Killed] = []

    def die(*_: object, **__: object) -> None:
        deaths.append(Killed("between COMMIT and the end record"))
        raise deaths[-1]

    from broker.writable_store import WritableStore

    if not isinstance(store, WritableStore):
        raise BrokerError(f"crash_between_commit_and_end takes an open store, not {shown(store)}")
    service = store.transactions
    with mock.patch.object(service, "commit", die), mock.patch.object(service, "rollback", die):
        try:
            yield
        except BaseException as error:
            if deaths and _is_of_a_death(error):
                return
            raise
    if not deaths:
        raise AssertionError("no transaction was ended in the block")


def _is_of_a_death(error: BaseException) -> bool:
    """Whether Killed came out, or what a task group or the event loop of a test client makes of it."""
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(Killed) is not None
    return isinstance(error, Killed | asyncio.CancelledError | futures.CancelledError)
