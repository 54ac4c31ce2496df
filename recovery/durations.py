"""Durations as people write and read them: `500ms`, `30s`, `12h`."""

from __future__ import annotations

import re
from typing import Any

_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)")
_DAYS_MAX = 36_500  # more nanoseconds do not fit into the 64 bits of a time-out, nor later dates into some databases


def parse_duration(value: Any) -> int:
    """Milliseconds of text such as `500ms`, `30s`, `12h`; a number means seconds.

    Raises ValueError for anything else, and for more than a hundred years.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        duration_ms = value * 1000
    else:
        match = _DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
        if match is None:
            raise ValueError("a duration is a number and one of ms, s, m, h, d, as in 30s")
        duration_ms = float(match[1]) * _UNIT_MS[match[2]]
    if not duration_ms <= _DAYS_MAX * _UNIT_MS["d"]:  # nor what is not a number
        raise ValueError(f"a duration has at most {_DAYS_MAX}d")
    return round(duration_ms)


def format_duration(duration_ms: int) -> str:
    """A duration as text, in its two largest units: 6s, 1m 30s, 12h; below a second 500ms."""
    if duration_ms < 1000:
        return f"{duration_ms}ms"
    words, rest = [], round(duration_ms / 1000)
    for unit in ("d", "h", "m", "s"):
        count, rest = divmod(rest, _UNIT_MS[unit] // 1000)
        if count:
            words.append(f"{count}{unit}")
    return " ".join(words[:2])
