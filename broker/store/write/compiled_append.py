"""The common append in C: `broker._fast.Append`, given what it works on.

Why          an application's prepare and commit cost 31 µs of CPU in Python, most of them spread over many small steps
Measured by  `make bench`: "transactions, no fsync"
General twin `FastAppend`, and behind it `Appender.append_locked`, which does all that this one leaves
Kept equal   tests/store/test_fast_append.py: random histories by all three, compared byte by byte;
             tests/store/test_compiled_steps.py: killed, and the power cut, behind its steps
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from broker import compiled
from broker.format.topics import SCHEDULE_TOPIC
from broker.store.clock import StoreClock
from broker.store.disk.append_lock import AppendLock
from broker.store.read.layout import StoreLayout
from broker.store.shared.control import ControlPage
from broker.store.write.dispatch import Dispatcher
from broker.store.write.mapped import MappedQueue
from broker.store.write.pending_record import Appended

CompiledAppend = Callable[..., Appended | None]


class CompiledAppender(Protocol):
    """What the C module makes. Both take the append lock; None: nothing was stored, the Python has to do it."""

    append: CompiledAppend  # (record)
    end: CompiledAppend  # (half message, its CommitLog offset, its slot, commit or rollback, milliseconds since 1970)


def compiled_append(
    log: MappedQueue,
    control: ControlPage,
    dispatcher: Dispatcher,
    lock: AppendLock,
    layout: StoreLayout,
    clock: StoreClock,
    cached: list[Any],
    now_ns: Callable[[], int],
) -> CompiledAppender | None:
    """The compiled append of one process's appender; None where there is no C module.

    `cached` are the half messages that the appender remembers, by slot; `now_ns` is the wall clock.
    """
    if compiled.fast is None:
        return None
    op = dispatcher.engine.op_model
    made: CompiledAppender = compiled.fast.Append(
        lock=lock,
        control=control.words,
        cells=dispatcher.cells.words,
        log=log,
        dispatcher=dispatcher,
        redo=dispatcher.redo_log,
        table=dispatcher.table,
        queues=dispatcher.queues,
        known=dispatcher.cells.known,
        index=dispatcher.index,
        clock=clock,
        now_ns=now_ns,
        cached=cached,
        result=Appended,
        schedule_topic=SCHEDULE_TOPIC,
        op_key=(op.topic, op.queue_id) if op else None,
        op_model=op.raw if op else None,
        op_tags=op.tags_code if op else 0,
        size_max=layout.record_bytes_max,
        table_bytes=layout.state_table_bytes,
        redo_bytes=layout.redo_log_bytes,
        queue_bytes=layout.consume_queue_bytes,
        index_slots=layout.index_slots,
        index_items=layout.index_items,
        has_redo_log=dispatcher.has_redo_log,
    )
    return made
