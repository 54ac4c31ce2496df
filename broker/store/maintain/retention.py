"""What may go: the settings of a store's retention, and which segments they make due. Pure.

    broker.open("shop.store", retention=broker.Retention(keep_s=3 * 86_400))

A rule makes the oldest segments due. What goes is what is due and not pinned, see `broker.retainer`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from broker.errors import BrokerError, shown

SECONDS_MAX = 1e15  # of ten times as many no store holds the milliseconds, in 64 bits
GONE_AFTER_S = 7 * 86_400.0  # a group that was stopped over the holidays finds everything


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """When the oldest segments of a store may go. Give at least one of `keep_s`, `max_bytes` and `free_bytes`.

    A segment goes when one of these rules makes it due and nothing pins it: no consumer group has yet to acknowledge a
    message of it, no message of it waits for a group that may still come, and no half message of it is in doubt or
    parked. Raises BrokerError without a rule, and for a value of another type or out of range.
    """

    keep_s: float | None = None
    """Seconds for which messages are kept, those that everybody has read, too. None: forever."""
    max_bytes: int | None = None
    """Bytes of disk that the store may use, all its files counted. Above it the oldest segments go, however young.
    None: no limit."""
    free_bytes: int | None = None
    """Bytes that are to stay free on the store's disk. Below it the oldest segments go, however young, even
    if another program filled the disk. None: no limit."""
    gone_after_s: float | None = GONE_AFTER_S
    """Seconds after which a group of which no consumer was seen is let go. A message for which no group is left waits
    as long for one. None: nobody is ever let go."""
    even_unread: bool = False
    """Whether messages go that nobody has read. Half messages in doubt stay even so."""

    def __post_init__(self) -> None:
        for name in ("keep_s", "gone_after_s"):
            value = getattr(self, name)
            if value is not None and not (_is_number(value, int | float) and 0 <= value <= SECONDS_MAX):
                raise BrokerError(f"{name} is a number of seconds, 0 or more, not {shown(value)}")
        for name in ("max_bytes", "free_bytes"):
            value = getattr(self, name)
            if value is not None and not (_is_number(value, int) and 0 < value < 1 << 63):
                raise BrokerError(f"{name} is a number of bytes above 0, not {shown(value)}")
        if not isinstance(self.even_unread, bool):
            raise BrokerError(f"even_unread is True or False, not {shown(self.even_unread)}")
        if not self.has_rule:
            raise BrokerError("a retention needs a rule: keep_s, max_bytes or free_bytes. Without one leave it out")

    @property
    def has_rule(self) -> bool:
        """Whether anything can ever be due."""
        return (self.keep_s, self.max_bytes, self.free_bytes) != (None, None, None)

    def as_json(self) -> dict[str, Any]:
        """Its fields by name, ready for JSON; `Retention(**fields)` is equal."""
        return asdict(self)


def most_careful(settings: Iterable[Retention]) -> Retention | None:
    """The retention that removes no more than each of them would; None when that is nothing, or when there are none.

    A rule that one of them lacks removes nothing for that one, so it holds for all: processes with different settings
    do not fight, and the order in which they opened the store does not matter.
    """
    found = list(settings)
    if not found:
        return None
    rules = {name: _widest([getattr(one, name) for one in found], max) for name in ("keep_s", "max_bytes")}
    rules["free_bytes"] = _widest([one.free_bytes for one in found], min)
    if set(rules.values()) == {None}:
        return None
    gone_after_s = _widest([one.gone_after_s for one in found], max)
    return Retention(**rules, gone_after_s=gone_after_s, even_unread=all(one.even_unread for one in found))


def _widest(values: list[Any], widest: Any) -> Any:
    return None if None in values else widest(values)


def _is_number(value: object, kind: Any) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


@dataclass(frozen=True, slots=True)
class OldSegment:
    """A segment behind which the log goes on."""

    base: int  # CommitLog offset of its first byte
    newest_ms: int  # no record in it is younger


def due_segments(old: Iterable[OldSegment], segment_bytes: int, before_ms: int, surplus_bytes: int) -> list[int]:
    """The oldest segments, one after another, as long as each is too old or there are too many bytes."""
    due: list[int] = []
    for segment in old:
        if segment.newest_ms >= before_ms and len(due) * segment_bytes >= surplus_bytes:
            break
        due.append(segment.base)
    return due


def going_segments(due: Iterable[int], segment_bytes: int, pinned: int | None) -> list[int]:
    """Those of the due segments that lie below the lowest CommitLog offset that must stay."""
    return [base for base in due if pinned is None or base + segment_bytes <= pinned]
