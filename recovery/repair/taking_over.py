"""Take over a store that another program wrote: look first, refuse first, then change it in steps that may be killed.

    look again under the lock of the store → what it would be, were it ours → STORE/checkback/replaced/TIME
    → the journal of the exchange (STORE/checkback/swap) → store.json: it is ours → the exchange

Killed before store.json is there, the store is still of the other program, and as it was. Killed behind it, the next
process that opens it ends the exchange: what the broker had derived is kept however it ends.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import dataclass, replace
from shlex import quote

import numpy as np

from broker.errors import CorruptStore, StoreError, StoreLocked
from broker.format.topics import HALF_TOPIC, HALF_TOPIC_OF_ROCKSDB, REVIVE_PREFIX
from broker.store.disk.files import Disk
from broker.store.disk.paths import HALF_OP, STATE_TABLE, Paths
from broker.store.disk.store_lock import StoreLock
from broker.store.read.inventory import CONFIG_IN_ROCKSDB, inventory
from broker.store.read.inventory import refusal as not_understood
from broker.store.read.kinds.rocksdb_config import READ
from broker.store.read.layout import StoreFile, StoreLayout, read_store_file
from broker.store.recover.load import plan, refusal
from broker.store.recover.survey import Owner, Survey, survey, survey_adopted
from broker.store.shared.checkpoint_file import seal
from broker.store.shared.directory_swap import finish_swap
from broker.transaction.foreign import check_generation
from recovery.humanize import moment
from recovery.rebuild import replaced
from recovery.rebuild.builder import Build
from recovery.rebuild.quiescence import shape
from recovery.rebuild.rebuilder import Rebuilding, rebuild, sizes_of
from recovery.repair.left_behind import COMPACTED
from recovery.scan.kinds import Kinds
from recovery.scan.records import Records
from recovery.scan.store_files import StoreFiles
from recovery.transactions.events import diverted_halves
from recovery.verify.causes.log_short import short_log
from recovery.verify.record_checks import wrong_times
from recovery.views.messages.waiting import popped, popped_again, timers

_GENERATIONS = ("none", "state-table", "half-op")  # that this version can go on writing
_PAGE_BYTES, _ROUND_BYTES = 4096, 1000  # a person sets a size in units of one of them; a copy is cut anywhere
_REASON = "checkback took the store over and made these files again"


class _Watching(Build):
    """Notes the first half message that its broker put among delayed messages, and whether a RocksDB knows others.

    Raises CorruptStore at once for a record that was stored at no time: the clock of the store goes on from there.
    """

    diverted_at: int | None = None
    is_of_rocksdb = False

    def _judge(self, records: Records, kinds: Kinds) -> None:
        super()._judge(records, kinds)
        for number in np.flatnonzero(wrong_times(records))[:1].tolist():
            place = int(records.offsets[number])
            text = f"{self.files.commitlog_file(place)} at CommitLog offset {place}: the record's store_timestamp_ms is"
            text = f"{text} not a time, and later records would be stored behind it. Nothing was changed"
            raise CorruptStore(f"{text}. Run: checkback salvage {quote(self.files.path)} OUT", path=self.files.path)
        self.is_of_rocksdb |= HALF_TOPIC_OF_ROCKSDB.encode() in kinds.topics
        found = [places[0] for places in diverted_halves(records, kinds) if len(places)]
        if found and self.diverted_at is None:
            self.diverted_at = int(min(found))


class _UpToTheEnd(Rebuilding):
    """A rebuild that is not put in place: what the log lacks at its end is looked at here."""

    build_type, refuses_short = _Watching, False

    def _finish(self, build: Build) -> None:
        super()._finish(build)
        assert isinstance(build, _Watching)
        if build.is_of_rocksdb:
            text = f"{self.path} has half messages in {HALF_TOPIC_OF_ROCKSDB}, where only RocketMQ 5.5 settles them"
            text = f"{text}. Nothing was changed. Leave the store to its broker until retention has removed them"
            raise StoreError(text, path=self.path)
        if self.ours:
            return
        for topic, begun in build.lives.again.items():
            text = f"{self.path}: topic {topic} was deleted and made again: its queues begin at 0 again at CommitLog "
            text += f"offset {begun}. The log has its messages of before, and consumers would get them again"
            text += ". Leave the store to its broker until retention has removed them"
            raise StoreError(text, path=self.path)
        at = build.diverted_at
        if at is not None:
            text = f"{self.path}: the half message at CommitLog offset {at} has a delay. RocketMQ put it among delayed "
            text += "messages, where its end does not find it, and no other program could settle it as its broker does"
            raise StoreError(f"{text}. Leave the store to its broker until retention has removed it", path=self.path)


@dataclass(frozen=True, slots=True)
class _Taking:
    """How a store will be ours."""

    layout: StoreLayout
    engine: str
    adopted: int  # records of another program below this CommitLog offset are accepted


def take_over(path: str, disk: Disk, found: Survey, *, move: bool = False, even_short: bool = False) -> None:
    """Accept what another program wrote: its records below the log's end are accepted from now on.

    Call when its broker is known to have stopped. Raises, before anything is changed, StoreLocked when another process
    is at work on the store, CorruptStore when its log is damaged, cut or lost in part, NotUnderstood and StoreError
    when it holds what checkback cannot make, or go on writing. With `move` it is taken over though two half messages
    claim one slot, with `even_short` though its log ends before what its queues and its index name.
    """
    paths = Paths(path)
    before = _shape(disk, paths)
    taking = _looked_at(path, disk, found, move=move, even_short=even_short)
    lock = StoreLock(paths.lock, disk)
    if not lock.try_exclusive():
        raise lock.locked()
    try:
        now = survey(path, disk, alone=True)
        if (now.facts.owner, now.tail) != (found.facts.owner, found.tail) or _shape(disk, paths) != before:
            text = f"{path} was changed by another process meanwhile: a recovery, or a broker that runs on the store"
            raise StoreLocked(f"{text}. Nothing was done. Look again with: checkback recover {quote(path)}", path=path)
        if disk.entry(paths.own) is None:
            disk.create_directory(paths.own)
        finish_swap(disk, paths)  # of a rebuild that was killed, or of a take-over before the store was ours
        replaced.remove_unused(disk, paths)
        if found.facts.owner is Owner.FOREIGN:
            _accept(disk, paths, taking)
        else:
            _change_engine(disk, paths, taking.engine)
            _adopt(disk, paths, taking.adopted)
    finally:
        lock.release()


def objection(found: Survey) -> StoreError | None:
    """Why `take_over` would refuse a store, as far as it shows without reading the log; None when nothing shows."""
    if found.facts.owner not in (Owner.FOREIGN, Owner.FOREIGN_SINCE):
        return None
    files = StoreFiles.open(found.path)
    try:
        if found.facts.owner is Owner.FOREIGN:
            _check_segments(files)
            _check_not_short(files, files.commitlog.end, is_alone=False)
            _check_config_is_json(files)
            with suppress(CorruptStore):  # a damaged queue is made again
                check_generation(found.path, files.disk)
        _check_nothing_waits(found.path)
        _check_nothing_compacted(files, files.disk)
    except StoreError as error:
        return error
    return None


def _shape(disk: Disk, paths: Paths) -> list[tuple[str, int, int]]:
    """All files but the lock, which is made when it is asked for the first time."""
    return [one for one in shape(disk, paths.store) if one[0] != paths.lock]


def _accept(disk: Disk, paths: Paths, taking: _Taking) -> None:
    _adopt(disk, paths, taking.adopted)
    name = replaced.name_now()
    made = replaced.begin_take_over(disk, paths, name=name, command="checkback recover", reason=_REASON)
    disk.write_file(paths.store_json, StoreFile.new(taking.layout, taking.engine).encode())
    finish_swap(disk, paths)
    replaced.finish(disk, paths, made, state=replaced.TAKEN_OVER, is_ours=True)


def _adopt(disk: Disk, paths: Paths, end: int) -> None:
    disk.write_file(paths.adopted, seal(json.dumps(end).encode()))


# What speaks against it


def _looked_at(path: str, disk: Disk, found: Survey, *, move: bool, even_short: bool) -> _Taking:
    """How the store would be ours. Changes nothing. Raises what `take_over` raises."""
    files = StoreFiles.open(path)
    if found.facts.owner is Owner.FOREIGN:
        _check_segments(files)
        _check_config_is_json(files)
    report = rebuild(path, disk=disk, kind=_UpToTheEnd)
    if report.misfits:
        raise not_understood(path, report.misfits)
    if report.generation not in _GENERATIONS:
        text = f"{path} holds transactions of the generation {report.generation}, which this version only reads"
        raise StoreError(text, path=path)
    if report.refusal and not move:
        raise StoreError(f"{path}: {report.refusal}", path=path)
    _check_nothing_waits(path)
    _check_nothing_compacted(files, disk)
    taking = _Taking(sizes_of(files, disk), _engine(files, report.generation), max(report.end_offset, found.tail.end))
    error = refusal(plan(survey_adopted(path, disk, taking.layout, taking.adopted)))
    if error is not None:
        raise error
    if found.facts.owner is Owner.FOREIGN and not even_short:
        _check_not_short(files, report.end_offset)
    return taking


def _check_segments(files: StoreFiles) -> None:
    """Raises CorruptStore when a segment was cut, or is longer than the others. A single one must have whole pages, or
    a round size.

    An empty file behind the others was being made when its broker was killed.
    """
    size, segments = files.commitlog.segment_size, files.commitlog.segments
    for segment in segments if segments and segments[-1].size else segments[:-1] or segments:
        is_odd = bool(size % _PAGE_BYTES and size % _ROUND_BYTES)
        if segment.size != size or (len(segments) == 1 and is_odd) or not size:
            what = f"{segment.size} bytes, the others {size}" if segment.size != size else f"{size} bytes"
            if segment.size > size:  # to cut it would lose what is behind, which may be another segment
                text = f"{segment.path} has {what}: its broker did not make it so long. Nothing was changed. Put it"
                text = f"{text} back from a backup or a replica; without one: checkback salvage {quote(files.path)} OUT"
                raise CorruptStore(text, path=segment.path)
            text = f"{segment.path} has {what}: it was cut, for a segment has its size from the start, in whole pages"
            text = f"{text} of {_PAGE_BYTES} bytes or whole thousands. Nothing was changed. Give it its size again, as"
            text = f"{text} the broker's mappedFileSizeCommitLog says: truncate -s SIZE {quote(segment.path)}"
            raise CorruptStore(text, path=segment.path)


def _check_config_is_json(files: StoreFiles) -> None:
    """Raises StoreError when topics, groups or positions are in a RocksDB, which no writer of ours reads or writes.

    Without the extra, topics in one are refused as what is not understood.
    """
    names = [name for name in inventory(files.path, files.disk).rocksdb_config if name in READ]
    if names:
        text = f"{os.path.join(files.path, 'config', names[0])} is a RocksDB that holds {CONFIG_IN_ROCKSDB[names[0]]}"
        text = f"{text}. A store of checkback has them as JSON: without its position each group would get every message"
        text = f"{text} again. Nothing was changed. Make a copy that has JSON, and take that over: "
        raise StoreError(f"{text}checkback salvage {quote(files.path)} OUT", path=files.path)


def _check_not_short(files: StoreFiles, end_offset: int, *, is_alone: bool = True) -> None:
    """Raises CorruptStore when queues or index name records behind the log's end: what they name would be forgotten."""
    short = short_log(files, end_offset, [], is_alone=is_alone)  # a damaged log was refused before
    if short is not None:
        text = f"{short.file}: {short.text}. Nothing was changed. Put what is missing back"
        text = f"{text}. Only when those records are lost for good: "
        text = f"{text}checkback recover {quote(files.path)} --apply --broker-is-stopped --even-short"
        raise CorruptStore(text, path=short.file)


def _check_nothing_waits(path: str) -> None:
    """Raises StoreError when messages wait in what only their broker reads: nobody would deliver them."""
    timed = [one.due_ms for one in timers(path) if not one.topic.startswith(REVIVE_PREFIX)]
    unacknowledged, again = sum(len(one.queue_offsets) for one in popped(path)), popped_again(path)
    if timed:
        until = moment(max(timed))
        text, name = f"{len(timed):,} messages wait in the timer wheel, the last until {until} UTC", "timers"
    elif unacknowledged:
        text, name = f"{unacknowledged:,} messages were popped, and are not acknowledged", "popped"
    elif again:
        topic, group = max(again, key=again.__getitem__)
        text = f"{again[topic, group]:,} messages that group {group} popped and did not acknowledge wait in {topic}"
        name = f"consumequeue '{topic}/0'"
    else:
        return
    text = (
        f"{path}: {text}. Only their broker delivers them. Nothing was changed. Run it until it did. Which they are: "
    )
    store = quote(path)
    text = f"{text}checkback dump {store} {name}. Without them a copy can be taken over: checkback salvage {store} OUT"
    raise StoreError(text, path=path)


def _check_nothing_compacted(files: StoreFiles, disk: Disk) -> None:
    """Raises StoreError when messages of compacted topics are in no segment any more: nobody would deliver them."""
    directory, beside = COMPACTED
    if files.commitlog.begin and inventory(files.path, disk).holds(directory, beside=beside):
        text = f"{os.path.join(files.path, directory.rstrip('/'))} holds compacted topics, and the log begins at "
        text = (
            f"{text}{files.commitlog.begin}: messages of theirs are in no segment any more. Only their broker delivers "
        )
        text = f"{text}them. Nothing was changed. Without them a copy can be taken over: "
        raise StoreError(f"{text}checkback salvage {quote(files.path)} OUT", path=files.path)


# Transactions


def _engine(files: StoreFiles, generation: str) -> str:
    """How a store that is taken over goes on recording transactions: as its last broker does that can open it again.

    Without any transaction the half topic decides, which brokers from 4.3 on make.
    """
    if generation == "none":
        return HALF_OP if files.knows_topic(HALF_TOPIC) else files.engine
    return HALF_OP if generation == "half-op" else STATE_TABLE


def _change_engine(disk: Disk, paths: Paths, engine: str) -> None:
    """Another broker than before wrote the first transactions of a store of ours: its tables are made from the log."""
    file = read_store_file(disk, paths)
    if file is None or file.transactions == engine:
        return
    if disk.entry(paths.own_checkpoint) is not None:
        disk.remove(paths.own_checkpoint)
    disk.write_file(paths.store_json, replace(file, transactions=engine).encode())
