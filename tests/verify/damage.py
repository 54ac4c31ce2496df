"""Damage a store by one bit or one cut, verify it, and put it back as it was.

with Patient(store) as patient:
    outcome = patient.flip(place, at=17, bit=3)     # FOUND, ESCAPED, or a sentence: what is wrong with the answer
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from broker.errors import BrokerError
from recovery.findings import Finding, Report
from recovery.verify.verifier import verify
from tests.verify.damage_map import Place

FOUND, ESCAPED = "found", "escaped"


class Patient:
    """A store that is damaged in place, again and again; its files stay open for that."""

    def __init__(self, store: Path) -> None:
        self.store = store
        self._files: dict[str, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for descriptor in self._files.values():
            os.close(descriptor)

    def flip(self, place: Place, at: int, bit: int) -> str:
        """Flip a bit of byte `at` of the place's file."""
        descriptor = self._open(place.file)
        byte = os.pread(descriptor, 1, at)[0]
        os.pwrite(descriptor, bytes([byte ^ 1 << bit]), at)
        try:
            return self._judged(lambda finding: self.names(finding, place))
        finally:
            os.pwrite(descriptor, bytes([byte]), at)

    def cut(self, file: str, size: int) -> str:
        """Cut a file down to `size` bytes. What names the file, or a record that lay in the cut part, names the cut."""
        with self._without(file) as raw:
            os.pwrite(self._open(file), raw[:size], 0)
            return self._judged(lambda finding: self._names_cut(finding, file, size, len(raw)))

    def zero(self, file: str) -> str:
        """Replace the file's contents by zeros."""
        with self._without(file) as raw:
            os.pwrite(self._open(file), bytes(len(raw)), 0)
            return self._judged(lambda finding: self._names_cut(finding, file, 0, len(raw)))

    def remove(self, file: str) -> str:
        """Take the file away."""
        path = self.store / file
        aside = self.store.parent / "aside"
        path.rename(aside)
        try:
            return self._judged(lambda finding: self._names_cut(finding, file, 0, aside.stat().st_size))
        finally:
            aside.rename(path)

    def names(self, finding: Finding, place: Place) -> bool:
        """Whether the finding leads to the damaged place: to its file, its record, or the half that the record ends."""
        if place.kind.startswith("CommitLog"):
            base = int(Path(place.file).name)
            start, stop = base + place.start, base + place.stop
            if place.record is not None:
                start = place.record
            said = [finding.commitlog_offset, *_numbers(finding)]
            here = any(start <= offset < stop or offset == place.half for offset in said)
            return here or self._is(finding, place.file)
        return self._is(finding, place.file) or finding.commitlog_offset == place.record

    def _is(self, finding: Finding, file: str) -> bool:
        return finding.file == str(self.store / file)

    def _names_cut(self, finding: Finding, file: str, size: int, whole: int) -> bool:
        if not file.startswith("commitlog/"):
            directory = str((self.store / file).parent)
            return self._is(finding, file) or (finding.file != "" and directory.endswith(finding.file))
        base = int(Path(file).name)
        said = [finding.commitlog_offset, *_numbers(finding)]
        in_cut = any(base + size <= offset < base + whole for offset in said)
        return in_cut or self._is(finding, file) or finding.kind.startswith("segment-")

    def _judged(self, names: Callable[[Finding], bool]) -> str:
        try:
            report = verify(self.store)
        except BrokerError as error:  # nothing is left to judge
            return FOUND if str(self.store) in str(error) and "." in str(error) else f"a vague error: {error}"
        except Exception as error:  # noqa: BLE001 - whatever else comes out is what these tests look for
            return f"raised {error!r}"
        return _outcome(report, names)

    @contextmanager
    def _without(self, file: str) -> Iterator[bytes]:
        """The file emptied, and made whole again afterwards."""
        raw = (self.store / file).read_bytes()
        os.ftruncate(self._open(file), 0)
        try:
            yield raw
        finally:
            os.ftruncate(self._open(file), 0)
            os.pwrite(self._open(file), raw, 0)

    def _open(self, file: str) -> int:
        if file not in self._files:
            self._files[file] = os.open(self.store / file, os.O_RDWR)
        return self._files[file]


def _outcome(report: Report, names: Callable[[Finding], bool]) -> str:
    if report.ok:
        return ESCAPED
    if any(names(finding) for finding in report.findings):
        return FOUND
    return "not named: " + "; ".join(str(finding) for finding in report.findings)[:300]


def _numbers(finding: Finding) -> Iterator[int]:
    for value in finding.facts.values():
        values: list[Any] = value if isinstance(value, list) else [value]
        yield from (number for number in values if isinstance(number, int))


def files(store: Path) -> list[tuple[str, int, int]]:
    """Each file with its size and where its last byte that is not zero ends."""
    paths = sorted(path for path in store.rglob("*") if path.is_file() and path.stat().st_size)
    return [(str(p.relative_to(store)), p.stat().st_size, len(p.read_bytes().rstrip(b"\0"))) for p in paths]


def judge_cut(sick: Patient, file: str, length: int, used: int) -> None:
    outcome = sick.cut(file, length)
    unseen = length >= used or unread(file) or (length == 0 and may_be_missing(file))
    assert outcome == FOUND or (outcome == ESCAPED and unseen), f"{file} cut to {length}: {outcome}"


def judge_loss(sick: Patient, file: str, used: int) -> None:
    first_segment = file == f"commitlog/{0:020}"
    outcome = sick.remove(file)
    unseen = may_be_missing(file) or first_segment or not used
    assert outcome == FOUND or (outcome == ESCAPED and unseen), f"{file} removed: {outcome}"
    outcome = sick.zero(file)
    unseen = unread(file) or file == "checkpoint" or not used
    assert outcome == FOUND or (outcome == ESCAPED and unseen), f"{file} zeroed: {outcome}"


def unread(file: str) -> bool:
    """What no comparison reads: the table says so of any byte."""
    return file in ("lock", "abort", "config/topics.json.bak", "config/transactionMetrics")


def may_be_missing(file: str) -> bool:
    """What RocketMQ starts without."""
    return unread(file) or file == "checkpoint" or file.startswith("config/")
