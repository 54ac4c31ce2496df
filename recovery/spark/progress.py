"""How far Spark is, by its status tracker; and a way to stop it."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Progress = Callable[[int, int], None]  # bytes done, bytes in all
_EVERY_S = 0.25


@contextmanager
def watched(spark: SparkSession, progress: Progress | None, total: int) -> Iterator[str]:
    """Run jobs under a tag of their own, tell how far they are, and cancel them when this is left by an exception.

    Ctrl-C in the driver ends the tasks too: without the tag they would go on in the cluster.
    """
    context = spark.sparkContext
    tag = f"checkback-{uuid.uuid4().hex[:12]}"
    context.addJobTag(tag)
    done = threading.Event()
    watcher = threading.Thread(target=_watch, args=(spark, tag, progress, total, done), daemon=True)
    if progress is not None:
        watcher.start()
    try:
        yield tag
    except BaseException:
        context.cancelJobsWithTag(tag)
        raise
    finally:
        done.set()
        if progress is not None:
            watcher.join()
        context.removeJobTag(tag)


def _watch(spark: SparkSession, tag: str, progress: Progress | None, total: int, done: threading.Event) -> None:
    most = 0
    while progress is not None and not done.wait(_EVERY_S):
        finished, known = tasks_of(spark, tag)
        if known:
            most = max(most, total * finished // known)
            progress(most, total)


def tasks_of(spark: SparkSession, tag: str) -> tuple[int, int]:
    """How many tasks of the jobs under a tag are done, and how many there are as far as Spark knows."""
    tracker, context = spark.sparkContext.statusTracker(), spark.sparkContext
    finished = known = 0
    for job in context._jsc.sc().statusTracker().getJobIdsForTag(tag):  # noqa: SLF001 - Python's has no such method
        info = tracker.getJobInfo(job)
        for stage in info.stageIds if info is not None else ():
            of_stage = tracker.getStageInfo(stage)
            if of_stage is not None:
                finished, known = finished + of_stage.numCompletedTasks, known + of_stage.numTasks
    return finished, known
