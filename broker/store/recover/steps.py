"""The steps of a recovery. Each says what it is, what it will do to a store as it was surveyed, and does it.

Each step may be done again after it was done in part: a process that is killed leaves a control page that no other
process trusts, and the next survey finds what is left to do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from broker.store.engines.half_op import HALF_OP
from broker.store.engines.replay_watch import ReplayWatch
from broker.store.maintain.checkpointing import checkpoint_as_is
from broker.store.read.log_reader import LogReader
from broker.store.recover.due_times import BrokerDueTimes
from broker.store.recover.expired import ends_of_broker, expired_ends, go_on_at
from broker.store.recover.survey import Survey
from broker.store.recover.truncate import cut_derived, cut_log, empty_derived, keep_aside, write_again
from broker.store.shared.checkpoint_file import OwnCheckpoint
from broker.store.shared.control import Word, boot_words, lock_written_ns, two_words
from broker.store.shared.directory_swap import finish_swap, remove_built
from broker.store.write.parts import StoreParts
from broker.store.write.replay import Replay

_CHECKPOINT_EVERY_BYTES = 256 << 20  # of replay: a process that is killed in a long one does not begin from the start

Progress = Callable[[int, int], None]  # bytes done, bytes in all


@dataclass(frozen=True, slots=True)
class Step:
    """One step: its name in JSON, one sentence, its effect on a surveyed store ("" for none), and the action."""

    name: str
    sentence: str
    describe: Callable[[Survey], str]
    apply: Callable[[StoreParts, Survey, Progress], None]

    def __repr__(self) -> str:
        return f"<step {self.name}>"


def _finish_swap(parts: StoreParts, _survey: Survey, _progress: Progress) -> None:
    finish_swap(parts.disk, parts.paths)


def _keep_aside(parts: StoreParts, survey: Survey, _progress: Progress) -> None:
    keep_aside(parts.disk, parts.paths, survey.tail, parts.layout.segment_bytes)


def _cut_log(parts: StoreParts, survey: Survey, _progress: Progress) -> None:
    cut_log(parts.disk, parts.paths, survey.tail, parts.layout.segment_bytes)


def _remove_unmade(parts: StoreParts, survey: Survey, _progress: Progress) -> None:
    for path in survey.unmade:
        parts.disk.remove(path)


def _write_again(parts: StoreParts, survey: Survey, _progress: Progress) -> None:
    parts.appender.log.unmap()
    write_again(parts.disk, parts.paths, survey.durable, parts.layout.segment_bytes)


def _cut_derived(parts: StoreParts, survey: Survey, _progress: Progress) -> None:
    assert survey.point is not None
    _set_words(parts, survey.point, survey.tail.end)
    cut_derived(parts, survey.point)
    _set_next_offsets(parts, survey.point)


def _empty_derived(parts: StoreParts, survey: Survey, _progress: Progress) -> None:
    ends = expired_ends(parts.disk, parts.paths.store, survey.begin)
    empty_derived(parts.disk, parts.paths, parts.engine, ends)  # killed behind this, the next one finds them again
    _set_words(parts, OwnCheckpoint(survey.begin), survey.tail.end)
    parts.cells.reset()
    go_on_at(parts, ends)


def _believe(parts: StoreParts, survey: Survey, _progress: Progress) -> None:
    assert survey.point is not None
    _set_words(parts, survey.point, survey.tail.end)
    _set_next_offsets(parts, survey.point)


def _replay(parts: StoreParts, survey: Survey, progress: Progress) -> None:
    start, end = parts.control[Word.DISPATCHED], survey.tail.end
    checkpointed = start

    def after(reached: int) -> None:
        nonlocal checkpointed
        progress(reached - start, end - start)
        is_complete = watch is None or not watch.without_op  # else a later recovery would not know of them
        if reached - checkpointed >= _CHECKPOINT_EVERY_BYTES and is_complete:
            checkpoint_as_is(parts)
            checkpointed = reached

    log = LogReader(parts.disk, parts.paths.commitlog, parts.layout.segment_bytes)
    replay = Replay(log, parts.control, parts.dispatcher)
    watch = ReplayWatch(parts) if parts.engine is HALF_OP else None
    if watch is not None:
        replay.after = watch.on_dispatched
    parts.dispatcher.due_of_broker = BrokerDueTimes(parts.disk, parts.paths).due_ms
    parts.dispatcher.new_names.late = True
    try:
        replay.run(start, end, after)
    finally:
        parts.dispatcher.new_names.late = False
        parts.dispatcher.due_of_broker = None
    if survey.point is None:
        go_on_at(parts, ends_of_broker(parts.disk, parts.paths, survey.begin))
    if watch is not None:
        watch.finish()


def _flush(parts: StoreParts, _survey: Survey, _progress: Progress) -> None:
    parts.syncer.force_now()


def _checkpoint(parts: StoreParts, _survey: Survey, _progress: Progress) -> None:
    checkpoint_as_is(parts)


def _trust(parts: StoreParts, _survey: Survey, _progress: Progress) -> None:
    disk, paths = parts.disk, parts.paths
    remove_built(disk, paths)
    if disk.entry(paths.poisoned) is not None:
        disk.remove(paths.poisoned)
    store, inode = two_words(int(parts.store_id, 16)), disk.inode(paths.control)
    parts.control[Word.LOCK_NS] = lock_written_ns(disk, paths)
    parts.control.initialise(boot_words(disk), store, inode, parts.layout.segment_bytes)


def _set_words(parts: StoreParts, point: OwnCheckpoint, end: int) -> None:
    """The control page as of a checkpoint, with the log's end; the replay brings it up to date."""
    control = parts.control
    for word in (Word.POISON, Word.GENERATION):
        control[word] = 0
    control[Word.DISPATCHED], control[Word.DURABLE] = point.commitlog_offset, point.commitlog_offset
    control[Word.TAIL], control[Word.INTENT] = end, end
    control[Word.SLOTS], control[Word.REDO_UNITS] = point.slots, point.redo_units
    control[Word.STORE_MS], control[Word.CHECKPOINTED] = point.store_ms, point.commitlog_offset
    control[Word.INDEX] = point.index[0]


def _set_next_offsets(parts: StoreParts, point: OwnCheckpoint) -> None:
    parts.cells.reset()
    for topic, queue_id, following in point.queues:
        parts.cells[parts.cells.of(topic, queue_id)] = following


# What a step will meet


def _has_rest(survey: Survey) -> bool:
    return survey.tail.rest_end > survey.tail.end


def _start(survey: Survey) -> int:
    return survey.point.commitlog_offset if survey.point else survey.begin


def _describe_swap(survey: Survey) -> str:
    return (
        f"finish the exchange of derived directories that was begun: {', '.join(survey.swaps)}" if survey.swaps else ""
    )


def _describe_keep(survey: Survey) -> str:
    if not _has_rest(survey):
        return ""
    return f"{KEEP_ASIDE.sentence}: {survey.tail.path} from {survey.tail.end} on"


def _describe_cut(survey: Survey) -> str:
    return f"{CUT_LOG.sentence}, at {survey.tail.end}: {survey.tail.reason}" if _has_rest(survey) else ""


def _describe_cut_derived(survey: Survey) -> str:
    point = survey.point
    return f"{CUT_DERIVED.sentence}: {point.commitlog_offset}, {len(point.in_doubt)} slots in doubt" if point else ""


def _describe_replay(survey: Survey) -> str:
    start, end = _start(survey), survey.tail.end
    return f"{REPLAY.sentence}: {end - start} bytes from {start} to {end}"


FINISH_SWAP: Step = Step(
    "finish-swap", "finish the exchange of derived directories that was begun", _describe_swap, _finish_swap
)
KEEP_ASIDE: Step = Step(
    "keep-aside",
    "keep a copy of what follows the last whole record, and list the whole records in it",
    _describe_keep,
    _keep_aside,
)
CUT_LOG: Step = Step("cut-log", "clear the log behind its last whole record", _describe_cut, _cut_log)
REMOVE_UNMADE: Step = Step(
    "remove-unmade",
    "remove the empty segment that was being made",
    lambda survey: f"{REMOVE_UNMADE.sentence}: {', '.join(survey.unmade)}" if survey.unmade else "",
    _remove_unmade,
)
WRITE_AGAIN: Step = Step(
    "write-again",
    "write the segments again that a failed fsync may have lost",
    lambda survey: f"{WRITE_AGAIN.sentence}, from {survey.durable} on",
    _write_again,
)
CUT_DERIVED: Step = Step(
    "cut-derived",
    "truncate the derived files at the checkpoint and set what was in doubt back to prepared",
    _describe_cut_derived,
    _cut_derived,
)
EMPTY_DERIVED: Step = Step(
    "empty-derived", "remove the derived files", lambda _: EMPTY_DERIVED.sentence, _empty_derived
)
BELIEVE: Step = Step(
    "believe",
    "take the numbers from the checkpoint",
    lambda survey: f"{BELIEVE.sentence} at {_start(survey)}",
    _believe,
)
REPLAY: Step = Step("replay", "rebuild the derived files from the log", _describe_replay, _replay)
FLUSH: Step = Step("flush", "fsync the log", lambda survey: f"{FLUSH.sentence} up to {survey.tail.end}", _flush)
CHECKPOINT: Step = Step(
    "checkpoint",
    "fsync the derived files and write a checkpoint",
    lambda _: CHECKPOINT.sentence,
    _checkpoint,
)
TRUST: Step = Step(
    "trust",
    "make the control page this boot's, and remove the marks of the failure",
    lambda _: TRUST.sentence,
    _trust,
)
