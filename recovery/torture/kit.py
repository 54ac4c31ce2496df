"""All proofs on one directory, bounded in time and space: `checkback torture PATH`.

    report = prove("/srv/shop", Limits(seconds=60), Subject(sync="group"), print)
    report.holds

It works in a new directory of its own below the path. When everything held, nothing of it stays; else it is kept, and
the report names it. The proofs of the store rest on what the disk promises, so a disk that breaks a promise ends the
run: what would follow proves nothing.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from broker.errors import BrokerError, CorruptStore
from broker.store.disk.files import Disk
from broker.store.engines import ENGINES
from broker.store.read.detect import check_outside_stores
from broker.store.read.layout import StoreLayout
from recovery.torture import full_disk, kills, power_cuts
from recovery.torture.disk import measure
from recovery.torture.disk_verdict import verdicts
from recovery.torture.power_cuts import DiskMaker, WatchedDisk
from recovery.torture.promises import PromiseBroken, PromiseState, PromiseVerdict

LAYOUTS: dict[str, Callable[[], StoreLayout]] = {
    "small": StoreLayout.small,
    "default": StoreLayout.default,
    "rocketmq": StoreLayout.rocketmq,
}
PREFIX = "checkback-torture-"
_SPARE_BYTES = 64 << 20  # is left to other programs on the disk
_TINY_BYTES = 16 << 20  # power cuts and full disks: images of tiny stores
_ROUND_S = 10.0  # of kills, before what they left is reconciled
_SHARES = {"kills": 0.5, "power cuts": 0.75, "full disk": 1.0}  # of the time: when each is to end
_ROOMS = 40
_STEPS_MIN, _ROOMS_MIN = 4, 4  # however little time there is

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Subject:
    """What is proved: a store of this layout, engine and sync mode."""

    layout: str = "default"
    engine: str = "state-table"
    sync: str = "group"


@dataclass(frozen=True)
class Limits:
    """How long it may take, how much space, and the seed of what is random."""

    seconds: float = 60.0
    bytes_max: int = 512 << 20
    seed: int = 1


@dataclass
class TortureReport:
    """What held, and what did not."""

    path: str
    subject: Subject
    limits: Limits
    verdicts: list[PromiseVerdict] = field(default_factory=list)
    seconds: float = 0.0
    kept: str | None = None  # the directory, when something did not hold

    @property
    def holds(self) -> bool:
        """Whether no promise was broken; a warning is not a proof."""
        return not any(verdict.outcome is PromiseState.BROKEN for verdict in self.verdicts)

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "path": self.path,
            "holds": self.holds,
            "layout": self.subject.layout,
            "engine": self.subject.engine,
            "sync": self.subject.sync,
            "seed": self.limits.seed,
            "seconds": round(self.seconds, 1),
            "kept": self.kept,
            "verdicts": [verdict.as_json() for verdict in self.verdicts],
        }


def prove(
    path: str, limits: Limits, subject: Subject, progress: Progress, make_disk: DiskMaker = WatchedDisk
) -> TortureReport:
    """Run every proof below a directory. `make_disk` makes the disk of the power cuts.

    Raises BrokerError, before anything is written, when the directory cannot be used or has too little space; OSError
    when the disk fails in another way than by a promise.
    """
    layout = LAYOUTS[subject.layout]()
    _refuse(path, limits, subject, layout)
    started = time.monotonic()
    report = TortureReport(path, subject, limits)
    directory = Path(tempfile.mkdtemp(prefix=PREFIX, dir=path))
    keep = False
    try:
        for verdict in _proofs(directory, limits, subject, layout, progress, make_disk, started):
            report.verdicts.append(verdict)
            keep = keep or verdict.outcome is PromiseState.BROKEN
    finally:
        if keep:
            report.kept = str(directory)
        else:
            shutil.rmtree(directory, ignore_errors=True)
    report.seconds = time.monotonic() - started
    return report


def _refuse(path: str, limits: Limits, subject: Subject, layout: StoreLayout) -> None:
    if not os.path.isdir(path):
        raise BrokerError(f"{path} is not a directory: name one on the disk where the store will be")
    if os.path.isdir(os.path.join(path, "commitlog")) or os.path.isdir(os.path.join(path, "checkback")):
        raise BrokerError(f"{path} is a store: name the directory above it, on the same disk")
    check_outside_stores(path)
    if not os.access(path, os.W_OK | os.X_OK):
        raise BrokerError(f"{path} may not be written by this user: name a directory that may")
    if subject.engine not in ENGINES:
        raise BrokerError(f"there is no engine {subject.engine}: {', '.join(ENGINES)}")
    queues = len(kills.TOPICS) * kills.QUEUES * layout.consume_queue_bytes
    needed = layout.first_bytes + layout.segment_bytes + queues + _TINY_BYTES  # a segment is made ahead
    if needed > limits.bytes_max:
        text = f"a store of the layout {subject.layout} takes {_mib(needed)} for this, and --bytes allows "
        raise BrokerError(f"{text}{_mib(limits.bytes_max)}: name more, or --layout small")
    free = Disk().free_bytes(path)
    if free < limits.bytes_max + _SPARE_BYTES:
        text = f"{path}: its disk has {_mib(free)} free, and this may take {_mib(limits.bytes_max)} and leaves "
        raise BrokerError(f"{text}{_mib(_SPARE_BYTES)} to others: free some, or name fewer with --bytes")


def _mib(count: int) -> str:
    return f"{-(-count // (1 << 20))} MiB"


def _proofs(
    directory: Path, limits: Limits, subject: Subject, layout: StoreLayout, progress: Progress,
    make_disk: DiskMaker, started: float,
) -> Iterator[PromiseVerdict]:  # fmt: skip
    progress(f"measuring the disk of {directory}")
    measured = directory / "disk"
    measured.mkdir()
    of_disk = verdicts(measure(measured), subject.sync)
    yield from of_disk
    if any(verdict.outcome is PromiseState.BROKEN for verdict in of_disk):
        progress("the disk breaks a promise: the proofs of the store, which rest on it, are left out")
        return
    proofs = {"kills": _kills, "power cuts": _power_cuts, "full disk": _full_disk}
    for name, proof in proofs.items():
        task = _Task(directory, limits, subject, layout, progress, make_disk, started + limits.seconds * _SHARES[name])
        try:
            verdict = proof(task)
        except PromiseBroken as broken:
            verdict = PromiseVerdict(name, PromiseState.BROKEN, str(broken))
        except CorruptStore as error:
            verdict = PromiseVerdict(name, PromiseState.BROKEN, f"the store is corrupt: {error}")
        yield verdict


@dataclass(frozen=True)
class _Task:
    """What one proof works with; it ends at `deadline`, on the monotonic clock."""

    directory: Path
    limits: Limits
    subject: Subject
    layout: StoreLayout
    progress: Progress
    make_disk: DiskMaker
    deadline: float

    def left_s(self) -> float:
        return self.deadline - time.monotonic()


def _kills(task: _Task) -> PromiseVerdict:
    """Rounds of kills on stores of the user's layout, each reconciled; at least one."""
    total, acknowledged, number = 0, Counter[str](), 0
    while number == 0 or task.left_s() > 1:
        store, notes = task.directory / f"killed-{number}", task.directory / f"killed-{number}.jsonl"
        plan = kills.KillPlan(
            str(store),
            str(notes),
            task.limits.seed * 1000 + number,
            task.subject.engine,
            task.subject.sync,
            seconds=max(1.0, min(_ROUND_S, task.left_s() * 0.7)),  # then it is read
            bytes_max=task.limits.bytes_max - task.layout.segment_bytes - _TINY_BYTES,
            layout=task.layout,
        )
        result = kills.kill_and_reconcile(plan)
        total, acknowledged, number = total + result.kills, acknowledged + result.acknowledged, number + 1
        task.progress(f"kills: {total} processes killed, {acknowledged.total()} acknowledgements, all there")
        shutil.rmtree(store)
        notes.unlink()
    if not acknowledged.total():
        text = f"{total} processes were killed, and nothing was acknowledged in time: give it more --seconds"
        return PromiseVerdict("kills", PromiseState.UNKNOWN, text, {"kills": total})
    text = f"{total} processes were killed, {acknowledged.total()} acknowledgements are all there, none twice"
    return PromiseVerdict("kills", PromiseState.HOLDS, text, {"kills": total, "acknowledged": dict(acknowledged)})


def _power_cuts(task: _Task) -> PromiseVerdict:
    """The power fails at steps in a random order, each with three outcomes."""
    sync, engine, make = task.subject.sync, task.subject.engine, task.make_disk
    steps, first = power_cuts.steps_of_a_life(task.directory, sync, engine, make)
    order = list(range(first, steps + 1))
    random.Random(task.limits.seed).shuffle(order)
    done, shown = 0, time.monotonic()
    for step in order:
        if done >= _STEPS_MIN and task.left_s() <= 0:
            break
        power_cuts.cut_at(task.directory, sync, engine, step, (0, 1, 2 + step), make)
        done += 1
        if time.monotonic() - shown > 5:
            shown = time.monotonic()
            task.progress(f"power cuts: {done} of {len(order)} steps")
    kept = "all that was acknowledged or read is there" if sync != "os" else "what is left is whole (mode os: a part)"
    text = f"cut at {done} of {len(order)} steps of a simulated disk, three outcomes each: {kept}"
    return PromiseVerdict("power cuts", PromiseState.HOLDS, text, {"steps": len(order), "cut": done})


def _full_disk(task: _Task) -> PromiseVerdict:
    """The disk fills up at as many places as there is time for; and before a store of the user's layout."""
    sync, engine = task.subject.sync, task.subject.engine
    full_disk.create_on_full_disk(task.directory, sync, engine, task.layout)
    room = full_disk.room_of_a_life(task.directory, sync, engine)
    places = sorted({room * number // _ROOMS for number in range(_ROOMS)})
    random.Random(task.limits.seed).shuffle(places)
    done = refused = 0
    for place in places:
        if done >= _ROOMS_MIN and task.left_s() <= 0:
            break
        refused += full_disk.fill_at(task.directory, sync, engine, place)
        done += 1
    text = f"filled up at {done} places: {refused} times a send was refused whole, and worked again with more space"
    return PromiseVerdict("full disk", PromiseState.HOLDS, text, {"places": done, "refused": refused})
