"""Retention of a store in use: look, plan, then remove what is due and what nothing pins.

    report = store.retain(broker.Retention(keep_s=86_400), dry_run=True)
    report.segments, report.pins, report.unread

A message is kept for every consumer group that was there lately, until that group acknowledged it. A message for which
no such group is left waits as long for one. What is delayed waits for its delivery, a half message for its end. Only
what is due and below all of these goes; what of it a group did not read is counted, logged and kept in
STORE/checkback/retention.json.
"""

from __future__ import annotations

import logging
import shlex
import time
import weakref
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from broker.consuming.group.positions import Positions
from broker.consuming.subscriptions import has_consumers
from broker.consuming.unread import Unread, unread_messages
from broker.errors import BrokerError, StoreFull, shown
from broker.log_fields import event
from broker.store.maintain import removal
from broker.store.maintain.retention import Retention, due_segments, going_segments, most_careful
from broker.store.maintain.retention_registry import (
    RetentionRegistration,
    read_history,
    registered,
    remove_dead,
    write_history,
)

if TYPE_CHECKING:
    from broker.writable_store import WritableStore

RETAIN_EVERY_S = 10.0  # RocketMQ: cleanResourceInterval
HALVES_LISTED = 1000  # pins of half messages in a report: a million are in doubt where check-back cannot ask
_log = logging.getLogger("broker")


@dataclass(frozen=True, slots=True)
class Pin:
    """What keeps a segment that is due, and all behind it."""

    kind: str
    """half message, group, topic or delay."""
    commitlog_offset: int
    """Byte position of the first message that must stay."""
    whose: str
    """group@topic, or the CommitLog offset of the half message."""
    text: str
    """One sentence: what it is, and how it is released."""


@dataclass(frozen=True, slots=True)
class RetentionReport:
    """What a round of retention saw and did; without `applied`, what it would have done."""

    path: str
    """The store's directory."""
    retention: Retention
    """The rules of this round."""
    applied: bool
    """Whether anything was removed: not in a dry run."""
    begin: int
    """CommitLog offset where the log begins, after the round."""
    segment_bytes: int
    """Size of a segment of the CommitLog."""
    due: int
    """How many segments a rule makes due."""
    segments: list[str]
    """Paths of the segments that went."""
    derived: list[str]
    """Paths of the files that went with them; empty in a dry run."""
    used_bytes: int
    """What the store took on the disk before the round."""
    disk_free_bytes: int
    """What was free on its disk then."""
    pins: list[Pin]
    """What keeps the other segments that are due, the lowest first; of half messages the first thousand."""
    unread: list[Unread]
    """By group and topic: what is unread, and what of it went."""
    pins_omitted: int = 0
    """How many half messages more keep them."""

    @property
    def bytes(self) -> int:
        """How many bytes of the CommitLog went."""
        return len(self.segments) * self.segment_bytes

    @property
    def unread_gone(self) -> int:
        """How many messages went before some group, or anybody, had read them; counted once for each group."""
        return sum(one.going for one in self.unread)

    def as_json(self) -> dict[str, Any]:
        """Its fields by name, with `bytes` and `unread_gone`, ready for JSON; `pins`, `unread`: lists of objects."""
        names = ("path", "applied", "begin", "segment_bytes", "due", "segments", "derived", "used_bytes")
        more = ("disk_free_bytes", "bytes", "unread_gone", "pins_omitted")
        facts = {name: getattr(self, name) for name in (*names, *more)}
        lists = {"pins": [asdict(pin) for pin in self.pins], "unread": [one.as_json() for one in self.unread]}
        return {**facts, "retention": self.retention.as_json(), **lists}


@dataclass(slots=True)
class _RemovalPlan:
    """What may go now, and why no more."""

    begin: int
    due: list[int]
    going: list[int]
    pins: list[Pin]
    unread: list[Unread]
    pins_omitted: int
    used_bytes: int = 0
    disk_free_bytes: int = 0
    segments: list[str] = field(default_factory=list)
    derived: list[str] = field(default_factory=list)


class Retainer:
    """The retention of one open store. With settings it runs in the background, else when it is called."""

    def __init__(self, store: WritableStore, retention: Retention | None = None) -> None:
        """Raises BrokerError for limits that no store of this layout can keep, StoreFull."""
        self._store, self._writer, self.retention = store, store.writer, retention
        self._positions: Positions | None = None
        self._registration: RetentionRegistration | None = None
        self._last_warning = ""
        self._due_s = 0.0
        if retention is not None:
            self._check_limits(retention)
            with self._writer.upkeep_lock:
                self._registration = RetentionRegistration(self._writer.disk, self._writer.paths, retention)
            weakref.finalize(self, self._registration.close).atexit = False  # of a store that nobody closes
            tick = weakref.WeakMethod(self.tick)  # a thread that held it would hold the store, which nobody may close
            self._writer.upkeep.retain = lambda: run() if (run := tick()) is not None else None

    def _check_limits(self, retention: Retention) -> None:
        layout = self._writer.layout
        least = layout.first_bytes + layout.segment_bytes
        if retention.max_bytes is not None and retention.max_bytes < least:
            text = f"max_bytes={retention.max_bytes} is less than two segments and a file of each kind take ({least})"
            raise BrokerError(f"{self._store.path}: {text}: give more, or make the store with StoreLayout.small()")

    def in_effect(self) -> Retention | None:
        """The most careful of the settings of all processes that have the store open now; None without any."""
        return most_careful(registered(self._writer.disk, self._writer.paths))

    def tick(self) -> None:
        """One round in the background, when it is due, under its lock. Failures are logged and tried again."""
        began_s = time.monotonic()
        if began_s < self._due_s:
            return
        try:
            retention = self.in_effect()
            if retention is not None:
                remove_dead(self._writer.disk, self._writer.paths)
                self._round(retention, time.time_ns() // 1_000_000, full=False)
        except BrokerError as error:
            self._say(str(error), "retention of %s did not run: %s", self._store.path, error)
        took_s = time.monotonic() - began_s
        self._due_s = began_s + max(RETAIN_EVERY_S, 50 * took_s)  # on a very large store, a fiftieth of one core

    def run(self, retention: Retention | None, *, now_ms: int | None = None, dry_run: bool = False) -> RetentionReport:
        """One round now. See `LiveStore.retain`."""
        if retention is not None and not isinstance(retention, Retention):
            raise BrokerError(f"retain takes rules, as broker.Retention(keep_s=3 * 86_400), not {shown(retention)}")
        now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
        if isinstance(now_ms, bool) or not isinstance(now_ms, int | float):
            raise BrokerError(f"now_ms is a number of milliseconds since 1970, not {shown(now_ms)}")
        if not isinstance(dry_run, bool):
            raise BrokerError(f"dry_run is True or False, not {shown(dry_run)}")
        with self._writer.upkeep_lock:
            retention = retention or self.in_effect()
            if retention is None:
                text = "nothing says what may go: give a retention, as in broker.Retention(keep_s=3 * 86_400)"
                raise BrokerError(f"{self._store.path}: {text}")
            return self._round(retention, now_ms, dry_run=dry_run)

    def close(self) -> None:
        """Call when the threads of the store have ended."""
        if self._registration is not None:
            self._registration.close()
        if self._positions is not None:
            self._positions.close()

    # One round, under the background lock

    def _round(self, retention: Retention, now_ms: int, *, dry_run: bool = False, full: bool = True) -> RetentionReport:
        """Unless `full`, what nobody looks at is not found out while nothing is due."""
        plan = self._plan(retention, now_ms, full=full)
        if not dry_run:
            history = self._counted(plan, now_ms)
            noted = self._remember(history)
            plan.segments, plan.derived = removal.remove_segments(self._writer.parts, plan.going)
            if not noted and not self._remember(history):  # the disk had no room for it, and may have by now
                _log.warning(
                    "%s: there is no room to note what was removed: %s",
                    self._store.path,
                    history,
                    extra=event("retention", store=self._store.path),
                )
            self._tell(plan)
        else:
            plan.segments = [self._writer.appender.log.path_of(base) for base in plan.going]
        return RetentionReport(
            self._store.path, retention, not dry_run, plan.begin, self._writer.layout.segment_bytes, len(plan.due),
            plan.segments, plan.derived, plan.used_bytes, plan.disk_free_bytes, plan.pins, plan.unread,
            plan.pins_omitted,
        )  # fmt: skip

    def _plan(self, retention: Retention, now_ms: int, *, full: bool) -> _RemovalPlan:
        writer = self._writer
        used = writer.disk.used_bytes(writer.path) if full or retention.max_bytes else 0
        free = writer.disk.free_bytes(writer.path)
        surplus = max(
            used - retention.max_bytes if retention.max_bytes else 0,
            retention.free_bytes - free if retention.free_bytes else 0,
        )
        before_ms = 0 if retention.keep_s is None else now_ms - int(retention.keep_s * 1000)
        segment_bytes, begin = writer.layout.segment_bytes, removal.begin_of(writer.parts)
        due = due_segments(removal.old_segments(writer.parts), segment_bytes, before_ms, surplus)
        end = due[-1] + segment_bytes if due else begin
        halves = [at for at in removal.halves_in_doubt(writer.parts) if at < end] if due else []
        pins = [_half_pin(self._store.path, at) for at in halves[:HALVES_LISTED]]
        omitted = max(0, len(halves) - HALVES_LISTED)
        unread = self._unread(retention, begin, now_ms) if due or full else []
        if not retention.even_unread:
            pins += [self._unread_pin(one) for one in unread if one.pinned_at is not None and one.pinned_at < end]
        pins.sort(key=lambda pin: pin.commitlog_offset)
        going = going_segments(due, segment_bytes, pins[0].commitlog_offset if pins else None)
        begin = going[-1] + segment_bytes if going else begin
        counted = [one.cut(self._store, begin) for one in unread]
        return _RemovalPlan(begin, due, going, pins, counted, omitted, used, free)

    def _unread(self, retention: Retention, begin: int, now_ms: int) -> list[Unread]:
        if self._positions is None and has_consumers(self._store):
            self._positions = Positions(self._store)
        gone_after_ms = None if retention.gone_after_s is None else int(retention.gone_after_s * 1000)
        return unread_messages(self._store, self._positions, begin, gone_after_ms, now_ms)

    def _unread_pin(self, one: Unread) -> Pin:
        assert one.pinned_at is not None
        text = f"{one.sentence(one.waiting)}. {one.remedy(self._store.path)}"
        return Pin(one.kind, one.pinned_at, f"{one.group}@{one.topic}", text)

    def _counted(self, plan: _RemovalPlan, now_ms: int) -> dict[str, Any]:
        """What was removed so far, with what is about to go; empty when nothing is."""
        if not plan.going:
            return {}
        before = read_history(self._writer.disk, self._writer.paths)
        unread: Counter[str] = Counter(before.get("unread", {}))
        unread.update({f"{one.group}@{one.topic}": one.going for one in plan.unread if one.going})
        return {
            "segments": before.get("segments", 0) + len(plan.going),
            "bytes": before.get("bytes", 0) + len(plan.going) * self._writer.layout.segment_bytes,
            "unread": dict(unread),
            "last_ms": now_ms,
        }

    def _remember(self, history: dict[str, Any]) -> bool:
        """Before anything goes: a kill may count what stays, and never leaves out what went."""
        try:
            if history:
                write_history(self._writer.disk, self._writer.paths, history)
        except StoreFull:
            return False
        return True

    def _tell(self, plan: _RemovalPlan) -> None:
        size = len(plan.segments) * self._writer.layout.segment_bytes
        for one in plan.unread:
            if one.going:
                _log.warning(
                    "%s: retention removed %s",
                    self._store.path,
                    one.sentence(one.going),
                    extra=event("retention", store=self._store.path, group=one.group, topic=one.topic),
                )
        if plan.segments:
            _log.info(
                "%s: retention removed %d segments (%d bytes)",
                self._store.path,
                len(plan.segments),
                size,
                extra=event("retention", store=self._store.path),
            )
        if plan.pins:
            text = "%s: retention keeps segments that are due: %s"
            self._say(plan.pins[0].whose, text, self._store.path, plan.pins[0].text)
        else:
            self._last_warning = ""

    def _say(self, about: str, text: str, *words: object) -> None:
        """Warn, once while it is about the same: how far a group is behind changes from round to round."""
        if about != self._last_warning:
            self._last_warning = about
            _log.warning(text, *words, extra=event("retention", store=self._store.path))


def _half_pin(path: str, commitlog_offset: int) -> Pin:
    store = shlex.quote(path)
    text = (
        f"the half message at CommitLog offset {commitlog_offset} is in doubt. Settle it: checkback check-back {store}"
    )
    text = f"{text}, or manually: checkback resolve {store} {commitlog_offset}"
    return Pin("half message", commitlog_offset, str(commitlog_offset), text)
