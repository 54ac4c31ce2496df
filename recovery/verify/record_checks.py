"""What a verification asks of each record by itself, whichever engine reads it: its CRC, its fields, its place."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from recovery.findings import CRC_MISMATCH, Finding
from recovery.scan.kinds import Kinds
from recovery.scan.records import Records
from recovery.transactions.events import diverted_halves
from recovery.verify.field_checks import implausible

_DIVERTED = "a half message with a delay, stored in the schedule topic: no end will ever find it"

_DIVERTED_BY_TIMER = (
    "a half message with a delay, stored in the timer's topic: an end puts it back into the half topic, and nobody "
    "gets the message"
)


def wrong_fields(records: Records, kinds: Kinds, file_at: Callable[[int], str]) -> Iterator[Finding]:
    """The records with fields that no broker writes, and half messages in the schedule topic."""
    for number, text in implausible(records, kinds):
        place = int(records.offsets[number])
        yield Finding("record-implausible", place, text, file_at(place), {})
    for places, text in zip(diverted_halves(records, kinds), (_DIVERTED, _DIVERTED_BY_TIMER), strict=True):
        for place in places.tolist():
            yield Finding("half-diverted", place, text, file_at(place), {})


def wrong_crcs(
    records: Records, look: Callable[[int], Records | None], file_at: Callable[[int], str]
) -> Iterator[Finding]:
    """The records that fail their CRC. `look` reads one again: at the end of a live log it may have been half there."""
    for number in records.bad_crcs().tolist():
        place, size = int(records.offsets[number]), int(records.sizes[number])
        again = look(place)
        if again is None or len(again.bad_crcs()):
            yield Finding("crc-mismatch", place, CRC_MISMATCH, file_at(place), {"size": size})
