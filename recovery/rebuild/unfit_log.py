"""What makes a log no source: what is derived from it would not be better than the live files. Raises CorruptStore."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from shlex import quote

from broker.errors import CorruptStore
from broker.format.commitlog import RECORD_SIZE_MIN
from broker.store.disk.paths import Paths
from broker.store.read.segments import Listing
from recovery.findings import Finding
from recovery.rebuild.file_writers import UnitFiles
from recovery.scan.record_at import record_at
from recovery.scan.scanner import Damage
from recovery.scan.store_files import StoreFiles, breaks_off
from recovery.verify.causes.log_short import short_log
from recovery.verify.kinds.queue_lives import stated_place

_NUMBERS_MAX = 1 << 24  # a topic that was deleted and made again counts from 0 while the log has its old records
_WRONG_CRC = "the record does not have the CRC that it states, and the live files differ from what the log says"


def refuse_damages(path: str, damages: Iterable[Damage]) -> None:
    """Parts that are not records; a torn tail is what a crash leaves."""
    for damage in damages:
        if damage.kind != "torn-tail":
            raise _unfit(path, damage.file, damage.commitlog_offset, damage.reason)


def first_unsound(listing: Listing, wrong: Iterable[Finding]) -> Finding | None:
    """The first of some records that fail a CRC which may have a wrong topic, queue or type.

    One that fails that of its body alone says nothing of those: no CRC covers them in a record without that of the
    whole record, which brokers write only when they are asked to.
    """
    for one in wrong:
        record = record_at(listing, one.commitlog_offset)
        if record is None or record.bad_record_crcs().any():
            return one
    return None


def refuse_unsound(path: str, first: Finding | None) -> None:
    """Records that fail their CRC, where files would change: a wrong topic, queue or type takes others' places."""
    if first is not None:
        raise _unfit(path, first.file, first.commitlog_offset, _WRONG_CRC)


def refuse_break(files: StoreFiles, end_offset: int) -> None:
    """A log that was read to `end_offset`, and was published further."""
    at = breaks_off(files, end_offset)
    if at is not None and files.watermark is not None:
        reason = f"no record begins here, and the log was published up to {files.watermark.dispatched}"
        raise _unfit(files.path, files.commitlog_file(at), at, reason)


def refuse_short(files: StoreFiles, end_offset: int, *, is_alone: bool = False) -> None:
    """A log that lacks its end says nothing about what its queues hold for that end, which a broker may need."""
    short = short_log(files, end_offset, [], is_alone=is_alone)  # damages other than a torn tail were refused before
    if short is not None:
        text = f"{short.file}: {short.text}. What is derived from a log without its end is not better: put the end "
        raise CorruptStore(
            f"{text}back first; without it, run: checkback salvage {quote(files.path)} OUT", path=short.file
        )


def refuse_numbers(files: StoreFiles, what: str, first: int, end: int) -> None:
    """Numbers that no record has, or so far from each other that the files between them would fill the disk."""
    if first < 0 or end - first > max(_NUMBERS_MAX, files.commitlog_bytes // RECORD_SIZE_MIN):
        text = f"{files.path}: by its records {what} have the numbers {first} to {end - 1}: a record is damaged"
        text = f"{text}. What is derived from a damaged log is not better. See which with: checkback verify "
        raise CorruptStore(f"{text}{quote(files.path)}", path=files.path)


def refuse_lost(
    files: StoreFiles, first: Mapping[tuple[str, str], int], built: Mapping[tuple[str, int], UnitFiles]
) -> None:
    """Messages of live queues that consumers would get no more, because a record states the number of another.

    `first` has the first unit that differs, by the kind of the difference and the queue's directory.
    """
    for (topic, queue_id), queue in built.items() if first else ():
        directory = Paths(files.path).queue(topic, queue_id)
        hole, taken = (first.get((kind, directory), -1) for kind in ("extra", "different"))
        if queue.begin <= hole < queue.end:  # readers end at an empty unit
            text = f"{files.path}: queue {queue_id} of {topic} holds message {hole}, and no record says that it is"
            text = f"{text} that one, while later ones are there: a record is damaged. What is derived from a damaged"
            text = f"{text} log is not better. See which with: checkback verify {quote(files.path)}"
            raise CorruptStore(text, path=files.path)
        if not queue.begin <= taken < queue.end:
            continue
        both = (files.queue_units(topic, queue_id), queue)
        at, made = (int(units.read(taken, 1)["commitlog_offset"][0]) for units in both)
        record = record_at(files.commitlog, at) if at != made else None
        if record is not None and stated_place(record) == (topic.encode(), queue_id, taken):
            text = f"message {taken} of queue {queue_id} of {topic}, which names this record, would go for one that"
            raise _unfit(files.path, files.commitlog_file(at), at, f"{text} states the same number")


def _unfit(path: str, file: str, commitlog_offset: int, reason: str) -> CorruptStore:
    text = f"{file} at CommitLog offset {commitlog_offset}: {reason}. What is derived from a damaged log is not better"
    return CorruptStore(f"{text}. Run: checkback salvage {quote(path)} OUT")
