"""The executors of this machine: the tasks in this process, or in a pool of processes; what they hand over in memory.

The events take about a tenth of the log's size. What is larger than that belongs to a cluster.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from typing import Any

import pyarrow as pa

from broker.errors import BrokerError
from recovery.interrupts import interrupts_later
from recovery.pipeline.blocks import OUTCOMES, SCHEMA, SUMMARY, rows_of, values_of
from recovery.pipeline.inspection import Inspection, InspectionTask, SplitSummary
from recovery.pipeline.joins import JoinContext, PartitionResult
from recovery.pipeline.splits import Split
from recovery.pipeline.stages import Join
from recovery.pipeline.store_location import StoreLocation
from recovery.pipeline.transaction_files import TransactionFiles, write_transaction_files

Progress = Callable[[int, int], None]  # bytes done, bytes in all
_LOOK_S = 1.0


def write_transactions(
    path: str, out: str, now_ms: int, *, processes: int | None = None, progress: Progress | None = None
) -> TransactionFiles:
    """The Parquet files and the manifest that `recovery.spark.write_transactions` writes, without Spark.

    Raises NotAStore, StoreError when `out` is there already, or lies in a store, and BrokerError when one of the
    processes was killed.
    """
    log = StoreLocation(path).log()
    if not _have_semaphores():
        return write_transaction_files(InMemoryExecutor(map, progress), log, path, out, now_ms)
    with workers(processes or os.cpu_count() or 1) as pool:
        executor = InMemoryExecutor(partial(_run_in, pool), progress)
        return write_transaction_files(executor, log, path, out, now_ms)


def _have_semaphores() -> bool:
    """Whether processes of a pool can share a queue here: a container may have no /dev/shm. Else one does it all."""
    try:
        multiprocessing.get_context("spawn").Lock()
    except (ImportError, OSError):
        return False
    return True


@contextmanager
def workers(count: int) -> Iterator[ProcessPoolExecutor]:
    """Processes that start empty: a fork of a process with threads may hang. They end with the work, however it ends.

    An interrupt is for this process alone, which ends them: they would each print a traceback, or go on with the rest.
    """
    others = set(multiprocessing.active_children())
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(count, mp_context=context)
    try:
        yield pool
    except BaseException as error:
        for worker in set(multiprocessing.active_children()) - others:
            worker.terminate()
        _end_of_results(pool)
        if isinstance(error, BrokenProcessPool):
            text = "one of the processes that do this was ended from outside, as the system does when memory is short"
            raise BrokerError(f"{text}; its log says so (dmesg). Run it again when there is more") from error
        raise
    finally:
        pool.shutdown()


def _end_of_results(pool: ProcessPoolExecutor) -> None:
    """Have the pool's thread see that nothing comes any more.

    A worker that was ended within a large result left half of it in the pipe. The thread waits for the other half as
    long as somebody may write there, be it this process itself.
    """
    if (results := pool._result_queue) is not None:  # noqa: SLF001 - there is no other way to it
        results._writer.close()  # type: ignore[attr-defined] # noqa: SLF001


def _run_in(pool: ProcessPoolExecutor, function: Callable[..., Any], *arguments: Sequence[Any]) -> Iterator[Any]:
    """What `pool.map` returns, but that nothing is cancelled: a pool whose processes were ended fails over that.

    To submit starts processes: one that is interrupted before it has got its work prints a traceback. So they start
    with Ctrl-C blocked, and keep it so.
    """
    with interrupts_later(), _blocked(signal.SIGINT):
        begun = deque(pool.submit(function, *one) for one in zip(*arguments, strict=True))
    return (_result(begun.popleft(), pool) for _ in range(len(begun)))


def _result(task: Future[Any], pool: ProcessPoolExecutor) -> Any:
    """What a task returned. Raises BrokenProcessPool when a process of the pool was ended, within a result, too.

    The pool looks for processes that ended, but not while it waits for the other half of a result: then we do.
    """
    while not task.done():
        wait([task], timeout=_LOOK_S)
        processes = list((pool._processes or {}).values())  # noqa: SLF001 - there is no other way to them
        if not task.done() and not all(one.is_alive() for one in processes):
            for one in processes:
                one.terminate()
            _end_of_results(pool)
            break
    return task.result()


@contextmanager
def _blocked(number: signal.Signals) -> Iterator[None]:
    """A signal that comes to this thread is kept until the block is left; processes that start here never get it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [number])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class InMemoryExecutor:
    """Runs the tasks with a function like the builtin `map`: that one, or a pool's."""

    def __init__(self, run: Callable[..., Any] = map, progress: Progress | None = None) -> None:
        self._run, self._progress = run, progress
        self._held: list[pa.Table] = []

    def inspect(self, task: InspectionTask, splits: Sequence[Split]) -> list[SplitSummary]:
        """The summaries, as the tasks end."""
        self._held, summaries, done = [], [], 0
        for table in self._run(_inspect, [task] * len(splits), splits):
            self._held.append(table)
            (summary,) = values_of(table, SUMMARY)
            summaries.append(summary)
            done += summary.split.end - summary.split.start
            if self._progress is not None:
                self._progress(done, task.log.bytes)
        return summaries

    def join(self, context: JoinContext, joins: Sequence[tuple[str, Join]]) -> list[PartitionResult]:
        """The results of all partitions."""
        tables = list(self._held)
        for tag, join in joins:
            parts = parts_of(tables, tag)
            tables.extend(self._run(_join, [join] * len(parts), [context] * len(parts), parts))
        return [result for table in tables for result in values_of(table, OUTCOMES)]

    def close(self) -> None:
        """Forget the events."""
        self._held = []


def parts_of(tables: Sequence[pa.Table], tag: str) -> list[pa.Table]:
    """The blocks of each partition that travel under a tag."""
    parts: dict[int, list[pa.Table]] = defaultdict(list)
    for table in tables:
        tags, numbers = table.column("tag").to_pylist(), table.column("part").to_pylist()
        for row, (tag_of_row, part) in enumerate(zip(tags, numbers, strict=True)):
            if tag_of_row == tag:
                parts[part].append(table.slice(row, 1))
    return [pa.concat_tables(of_part) for of_part in parts.values()]


def _inspect(task: InspectionTask, split: Split) -> pa.Table:
    return pa.Table.from_batches(rows_of(Inspection(task, split).run()), SCHEMA)


def _join(join: Join, context: JoinContext, table: pa.Table) -> pa.Table:
    return pa.Table.from_batches(rows_of(join(context)(table)), SCHEMA)
