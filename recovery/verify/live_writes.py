"""What a live broker had not finished when a verification looked: no finding.

A broker dispatches a moment after it appends, writes op messages seconds later, and goes on appending while the
derived files are compared. So on a store that lives, or did when it was opened, a finding is taken back that is about
what was stored since then, or in the seconds before, or after the scan. On a store that nobody writes it stands.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from broker.store.disk.store_lock import is_held
from broker.store.recover.watermark import published
from recovery.findings import Finding, Findings
from recovery.scan.record_at import record_at
from recovery.scan.records import Records
from recovery.scan.store_files import StoreFiles

LAG_MS = 10_000  # an op message is written up to 3 s after the end, and seen up to 6 s later

_LATE = frozenset({"queue-missing", "index-missing", "redo-missing", "slot-missing", "committed-without-op"})
_WHILE_WRITTEN = frozenset({"index-damaged", "file-damaged"})  # slot, item and header come one after the other
_AFTER = frozenset({"queue-orphan", "redo-orphan", "index-orphan", "slot-orphan"})


def is_live(files: StoreFiles, end_offset: int) -> bool:
    """Whether a broker is or was at work: it has the lock (5.x), or had it, or the log has grown since the scan, which
    ended at `end_offset`.
    """
    if files.was_held or is_held(files.lock):
        return True
    if files.watermark is not None:
        return published(files.path, files.disk)[0] > files.watermark.tail
    now = files.commitlog_now()
    later = [segment.base for segment in now.segments if segment.base > end_offset]
    return any(record_at(now, at) is not None for at in (end_offset, *later[:1]))


@dataclass(frozen=True, slots=True)
class Unfinished:
    """Tells which findings say no more than that the broker is at work."""

    end_offset: int  # of the scan
    recent_ms: int  # what was stored later counts as of the last seconds
    growing: frozenset[str]  # the index files that are being written, and the checkpoint
    look: Callable[[int], Records | None]

    def take_back(self, findings: Findings) -> None:
        """Drop them."""
        findings.drop(self._is_unfinished)

    def _is_unfinished(self, finding: Finding) -> bool:
        if finding.kind in _AFTER:
            return finding.commitlog_offset >= self.end_offset
        if finding.kind == "slot-wrong-state":  # the end came after the scan, or its dispatch will come
            return "prepared" in (finding.facts.get("found"), finding.facts.get("expected"))
        if finding.kind in _WHILE_WRITTEN:
            return finding.file in self.growing
        return finding.kind in _LATE and self._is_recent(finding)

    def _is_recent(self, finding: Finding) -> bool:
        record = self.look(int(finding.facts.get("delivered_offset", finding.commitlog_offset)))
        return record is None or int(record.field("store_timestamp_ms")[0]) > self.recent_ms
