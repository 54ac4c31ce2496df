"""What makes a log no source: what is derived from it would not be better than the live files. Raises CorruptStore."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from broker.errors import CorruptStore
from broker.format.commitlog import RECORD_SIZE_MIN
from broker.store.disk.paths import Paths
from recovery.findings import Finding
from recovery.rebuild.file_writers import UnitFiles
from recovery.scan.scanner import Damage
from recovery.scan.store_files import StoreFiles, breaks_off
from recovery.verify.causes.log_short import short_log

_NUMBERS_MAX = 1 << 24  # a topic that was deleted and made again counts from 0 while the log has its old records
_WRONG_CRC = "the record does not have the CRC that it states, and the live files differ from what the log says"


def refuse_damages(path: str, damages: Iterable[Damage]) -> None:
    """Parts that are not records; a torn tail is what a crash leaves."""
    for damage in damages:
        if damage.kind != "torn-tail":
            raise _unfit(path, damage.file, damage.commitlog_offset, damage.reason)


def refuse_wrong_crc(path: str, first: Finding | None) -> None:
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
        raise CorruptStore(f"{text}back first; without it, run: checkback salvage {files.path} OUT", path=short.file)


def refuse_numbers(files: StoreFiles, what: str, first: int, end: int) -> None:
    """Numbers that no record has, or so far from each other that the files between them would fill the disk."""
    if first < 0 or end - first > max(_NUMBERS_MAX, files.commitlog_bytes // RECORD_SIZE_MIN):
        text = f"{files.path}: by its records {what} have the numbers {first} to {end - 1}: a record is damaged"
        text = f"{text}. What is derived from a damaged log is not better. See which with: checkback verify"
        raise CorruptStore(f"{text} {files.path}", path=files.path)


def refuse_holes(files: StoreFiles, extra: Mapping[str, int], built: Mapping[tuple[str, int], UnitFiles]) -> None:
    """A message of a live queue that no record is, before others that are: readers end at an empty unit.

    `extra` has the first number that only the live queue holds, by the queue's directory.
    """
    for (topic, queue_id), queue in built.items() if extra else ():
        number = extra.get(Paths(files.path).queue(topic, queue_id), -1)
        if queue.begin <= number < queue.end:
            text = f"{files.path}: queue {queue_id} of {topic} holds message {number}, and no record says that it is"
            text = f"{text} that one, while later ones are there: a record is damaged. What is derived from a damaged"
            text = f"{text} log is not better. See which with: checkback verify {files.path}"
            raise CorruptStore(text, path=files.path)


def _unfit(path: str, file: str, commitlog_offset: int, reason: str) -> CorruptStore:
    text = f"{file} at CommitLog offset {commitlog_offset}: {reason}. What is derived from a damaged log is not better"
    return CorruptStore(f"{text}. Run: checkback salvage {path} OUT")
