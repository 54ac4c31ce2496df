"""Load and recover: bring a store in order that no live process vouches for.

    survey (what is there) → case (a row of CASES) → plan (what to do) → apply → report

Our checkpoint says up to where the derived files were forced, and which slots were in doubt then. What lies behind it
is cut off and made again from the log, which is the truth: a slot that reached the disk as committed while its end
record did not must not survive. Without a checkpoint everything derived is made anew.

Whoever is killed in here leaves a control page that nobody trusts, and the next survey finds what is left to do.
Positions of consumers are no part of it: they are checked against the end of their queue when a consumer opens them.

RocketMQ: DefaultMessageStore.load, recover (3.1.4), whose table rebuild renumbers slots; ours keeps them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from broker.errors import CorruptStore, StoreError, SyncFailed
from broker.format.checkpoint import Checkpoint as RocketCheckpoint
from broker.format.checkpoint import encode as encode_rocket
from broker.format.consumequeue import UNIT_SIZE
from broker.format.statetable import Slot
from broker.store.disk.files import Disk, Missing
from broker.store.maintain.checkpointing import slots_in_doubt
from broker.store.read.inventory import Misfit, inventory
from broker.store.read.inventory import refusal as not_understood
from broker.store.recover.cases import Action, Case, Verdict, case_of
from broker.store.recover.replay import Replay
from broker.store.recover.survey import Owner, Survey, survey
from broker.store.recover.truncate import cut_derived, cut_log, empty_derived, keep_aside, write_again
from broker.store.write.checkpoint_file import Checkpoint, is_base, landmarks
from broker.store.write.control import Word
from broker.store.write.directory_swap import finish_swap, remove_built
from broker.store.write.mapped import MappedQueue

if TYPE_CHECKING:
    from broker.store.writer import StoreWriter

_CHECKPOINT_EVERY_BYTES = 256 << 20  # of replay: who is killed in a long one does not begin anew

Progress = Callable[[int, int], None]  # bytes done, bytes in all

_progress: ContextVar[Progress | None] = ContextVar("checkback_recovery_progress", default=None)


@contextmanager
def showing(progress: Progress) -> Iterator[None]:
    """Have recoveries that begin in here tell how far they are."""
    token = _progress.set(progress)
    try:
        yield
    finally:
        _progress.reset(token)


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a plan: what it is, and what it will meet here."""

    action: Action
    text: str

    def as_json(self) -> dict[str, Any]:
        """Its public form."""
        return {"step": self.action.name.lower().replace("_", "-"), "text": self.text}


@dataclass(frozen=True, slots=True)
class Plan:
    """What a recovery will do. Nothing was changed for it."""

    survey: Survey
    case: Case
    steps: tuple[Step, ...]

    @property
    def is_needed(self) -> bool:
        """Whether there is work that opening the store would do: more than to believe a checkpoint."""
        idle = {Action.BELIEVE, Action.TRUST}
        return self.case.verdict is Verdict.REFUSE or any(step.action not in idle for step in self.steps)

    def as_json(self) -> dict[str, Any]:
        """Its public form."""
        steps = [step.as_json() for step in self.steps]
        return {**self.case.as_json(), "needed": self.is_needed, "steps": steps, "survey": self.survey.as_json()}


def plan(found: Survey) -> Plan:
    """The steps for a store as it was found; those that would meet nothing are left out."""
    case = case_of(found.facts)
    texts = _texts(found)
    return Plan(found, case, tuple(Step(action, texts[action]) for action in case.steps if texts[action]))


def _texts(found: Survey) -> dict[Action, str]:
    tail, point = found.tail, found.point
    start = point.commitlog_offset if point else found.begin
    rest = tail.rest_end > tail.end
    whole = f"{tail.end - start} bytes from {start} to {tail.end}"
    cut = ""
    if point:
        cut = f"{Action.CUT_DERIVED.value}: {point.commitlog_offset}, {len(point.in_doubt)} slots in doubt"
    return {
        Action.FINISH_SWAP: f"{Action.FINISH_SWAP.value}: {', '.join(found.swaps)}" if found.swaps else "",
        Action.KEEP_ASIDE: f"{Action.KEEP_ASIDE.value}: {tail.path} from {tail.end} on" if rest else "",
        Action.CUT_LOG: f"{Action.CUT_LOG.value}, at {tail.end}: {tail.reason}" if rest else "",
        Action.WRITE_AGAIN: f"{Action.WRITE_AGAIN.value}, from {found.durable} on",
        Action.CUT_DERIVED: cut,
        Action.EMPTY_DERIVED: Action.EMPTY_DERIVED.value,
        Action.BELIEVE: f"{Action.BELIEVE.value} at {start}",
        Action.REPLAY: f"{Action.REPLAY.value}: {whole}",
        Action.FORCE: f"{Action.FORCE.value} up to {tail.end}",
        Action.CHECKPOINT: Action.CHECKPOINT.value,
        Action.TRUST: Action.TRUST.value,
    }


def refusal(made: Plan) -> StoreError | None:
    """The error for whoever would open a store that may not be brought in order; None when it may."""
    found, case = made.survey, made.case
    if case.verdict is not Verdict.REFUSE:
        return None
    if found.facts.owner is Owner.US:
        place = f"{found.tail.path}: damaged at CommitLog offset {found.tail.end}: {found.tail.reason}"
        text = f"{place}. No crash explains that, so nothing is cut. Run: checkback salvage {found.path} OUT"
        return CorruptStore(text, path=found.tail.path)
    text = f"{found.path}: {case.sentence}. Run: checkback recover {found.path} --apply --broker-is-stopped"
    return StoreError(text, path=found.path)


def misfits_in_the_way(made: Plan, disk: Disk) -> list[Misfit]:
    """What the steps of a plan would remove though checkback did not make it, and cannot: another program put it there.

    For a store of another program, which is taken over as a whole: all that it holds of that kind.
    """
    if made.survey.facts.owner in (Owner.STRANGER, Owner.FOREIGN):
        return inventory(made.survey.path, disk).misfits()
    removing = {Action.CUT_DERIVED, Action.EMPTY_DERIVED}
    if removing.isdisjoint(step.action for step in made.steps):
        return []
    return inventory(made.survey.path, disk).misfits_inside()


def load(store: StoreWriter, boot: tuple[int, int], inode: int) -> Plan:
    """Recover what a survey finds; call alone, with the store locked exclusively. Returns what was done.

    Raises CorruptStore when no crash explains the state of the log, StoreError when another program may be writing,
    NotUnderstood when derived directories hold what checkback cannot make.
    """
    made = plan(survey(store.path, store.disk, alone=True))
    error = refusal(made)
    if error is not None:
        raise error
    misfits = misfits_in_the_way(made, store.disk)
    if misfits:
        raise not_understood(store.path, misfits)
    store.control[Word.MAGIC] = 0  # nobody trusts the page before the last step
    for step in made.steps:
        if step.action is not Action.TRUST:
            _DO[step.action](store, made.survey)
    _trust(store, boot, inode)
    return made


# The steps


def _finish_swap(store: StoreWriter, _: Survey) -> None:
    finish_swap(store.disk, store.paths)


def _keep_aside(store: StoreWriter, found: Survey) -> None:
    keep_aside(store.disk, store.paths, found.tail, store.layout.segment_bytes)


def _cut_log(store: StoreWriter, found: Survey) -> None:
    cut_log(store.disk, store.paths, found.tail, store.layout.segment_bytes)


def _write_again(store: StoreWriter, found: Survey) -> None:
    store.appender.log.close()
    write_again(store.disk, store.paths, found.durable, store.layout.segment_bytes)


def _cut_derived(store: StoreWriter, found: Survey) -> None:
    assert found.point is not None
    _set_words(store, found.point, found.tail.end)
    cut_derived(store, found.point)
    _set_cells(store, found.point)


def _empty_derived(store: StoreWriter, found: Survey) -> None:
    empty_derived(store.disk, store.paths)
    _set_words(store, Checkpoint(found.begin), found.tail.end)
    store.cells.reset()


def _believe(store: StoreWriter, found: Survey) -> None:
    assert found.point is not None
    _set_words(store, found.point, found.tail.end)
    store.control[Word.DURABLE] = found.tail.end
    _set_cells(store, found.point)


def _replay(store: StoreWriter, found: Survey) -> None:
    start, end, told = store.control[Word.DISPATCHED], found.tail.end, _progress.get()
    checkpointed = start

    def after(at: int) -> None:
        nonlocal checkpointed
        if told is not None:
            told(at - start, end - start)
        if at - checkpointed >= _CHECKPOINT_EVERY_BYTES:
            write_checkpoint(store)
            checkpointed = at

    Replay(store).run(start, end, after)


def _force(store: StoreWriter, _: Survey) -> None:
    store.syncer.force_now()


def _checkpoint(store: StoreWriter, _: Survey) -> None:
    write_checkpoint(store)


_DO: dict[Action, Callable[[StoreWriter, Survey], None]] = {
    Action.FINISH_SWAP: _finish_swap,
    Action.KEEP_ASIDE: _keep_aside,
    Action.CUT_LOG: _cut_log,
    Action.WRITE_AGAIN: _write_again,
    Action.CUT_DERIVED: _cut_derived,
    Action.EMPTY_DERIVED: _empty_derived,
    Action.BELIEVE: _believe,
    Action.REPLAY: _replay,
    Action.FORCE: _force,
    Action.CHECKPOINT: _checkpoint,
}


def _set_words(store: StoreWriter, point: Checkpoint, end: int) -> None:
    """The control page as of a checkpoint, with the log's end; the replay brings it up to date."""
    control = store.control
    for word in (Word.POISON, Word.GENERATION):
        control[word] = 0
    control[Word.DISPATCHED], control[Word.DURABLE] = point.commitlog_offset, point.commitlog_offset
    control[Word.TAIL], control[Word.INTENT] = end, end
    control[Word.SLOTS], control[Word.REDO_UNITS] = point.slots, point.redo_units
    control[Word.STORE_MS], control[Word.CHECKPOINTED] = point.store_ms, point.commitlog_offset
    control[Word.INDEX] = point.index[0]


def _set_cells(store: StoreWriter, point: Checkpoint) -> None:
    store.cells.reset()
    for topic, queue_id, following in point.queues:
        store.cells[store.cells.of(topic, queue_id)] = following


def _trust(store: StoreWriter, boot: tuple[int, int], inode: int) -> None:
    remove_built(store.disk, store.paths)
    if store.disk.entry(store.paths.poisoned) is not None:
        store.disk.remove(store.paths.poisoned)
    number = int(json.loads(store.disk.read(store.paths.store_json))["id"], 16)
    store.control.initialise(boot, (number >> 64, number & ((1 << 64) - 1)), inode, store.layout.segment_bytes)


# The checkpoint


def write_checkpoint(store: StoreWriter) -> None:
    """Force the log and the derived files and say so; call alone, or under the append lock with the store healed.

    Raises SyncFailed; then the store is poisoned, since nobody knows what of a derived file is on the disk.
    """
    store.syncer.force_now()
    before = _on_disk(store)
    control, cells = store.control, store.cells
    try:
        _force_queues(store, before)
        _force_range(
            store, store.dispatcher.redo_log, before.redo_units * UNIT_SIZE, control[Word.REDO_UNITS] * UNIT_SIZE
        )
        _force_table(store, before)
        store.dispatcher.index.force()
    except SyncFailed:
        store.poison()
        raise
    made = Checkpoint(
        control[Word.DISPATCHED],
        control[Word.SLOTS],
        control[Word.REDO_UNITS],
        control[Word.STORE_MS],
        slots_in_doubt(store, Checkpoint(0, _first_slot(store))),
        [(*cells.queue(cell), cells[cell]) for cell in range(len(cells))],
        store.dispatcher.index.state(),
    )
    made.landmarks.extend(landmarks(store.disk, store.paths, made))
    store.disk.write_file(store.paths.own_checkpoint, made.encode())
    store_ms = control[Word.STORE_MS]
    store.disk.write_file(store.paths.checkpoint, encode_rocket(RocketCheckpoint(store_ms, store_ms)))
    control[Word.CHECKPOINTED] = made.commitlog_offset


def _on_disk(store: StoreWriter) -> Checkpoint:
    """The last checkpoint: what it speaks of need not be forced again."""
    try:
        found = Checkpoint.decode(store.disk.read(store.paths.own_checkpoint))
    except Missing:
        found = None
    return found or Checkpoint(0)


def _force_queues(store: StoreWriter, before: Checkpoint) -> None:
    forced = {(topic, queue_id): following for topic, queue_id, following in before.queues}
    for cell in range(len(store.cells)):
        first = forced.get(store.cells.queue(cell), 0)
        _force_range(store, store.dispatcher.queue(cell), first * UNIT_SIZE, store.cells[cell] * UNIT_SIZE)


def _force_table(store: StoreWriter, before: Checkpoint) -> None:
    """The slots that are new, and the files in which one may have been settled."""
    table = store.dispatcher.table
    _force_range(store, table, before.slots * Slot.SIZE, store.control[Word.SLOTS] * Slot.SIZE)
    places = {slot * Slot.SIZE // table.file_size * table.file_size for slot in before.in_doubt}
    for base in sorted(places):
        _force_range(store, table, base, base + 1)


def _force_range(store: StoreWriter, queue: MappedQueue, start: int, stop: int) -> None:
    """By the names of the files: one that retention removed needs no forcing, and must not be made again."""
    for base in range(start - start % queue.file_size, stop, queue.file_size):
        if store.disk.entry(queue.path_of(base)) is not None:
            store.disk.sync_file(queue.path_of(base))


def _first_slot(store: StoreWriter) -> int:
    """The first slot that a file holds: retention removes those of the oldest transactions."""
    folder = store.dispatcher.table.folder
    bases = [int(entry.name) for entry in store.disk.entries(folder) if is_base(entry.name)]
    return min(bases, default=0) // Slot.SIZE


def leave(store: StoreWriter) -> None:
    """The last to leave: everything on disk, and no `abort`. A poisoned store is left as it is, for a recovery."""
    with store.append_lock:
        if store.control[Word.POISON]:
            return
        store.appender.heal()
        current = store.control[Word.CHECKPOINTED] == store.control[Word.TAIL]
        if not current or store.disk.entry(store.paths.own_checkpoint) is None:
            write_checkpoint(store)
    if store.disk.entry(store.paths.abort) is not None:
        store.disk.remove(store.paths.abort)
