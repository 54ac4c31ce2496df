"""How values are shown to people: times, sizes, and text that came from somebody else."""

from __future__ import annotations

import os
import pwd
import re
from datetime import UTC, datetime

# What would move the cursor, ring, or turn the line around when a terminal prints it. Half surrogates stand for bytes
# that are not UTF-8 in the name of a file.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_STEP = 1024
_DECIMAL = {"kB": 1000, "MB": 1000**2, "GB": 1000**3, "TB": 1000**4}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(B|KiB|MiB|GiB|TiB|kB|MB|GB|TB|)")


def printable(text: str) -> str:
    """The text without anything that a terminal would act on; what is replaced shows as \\xNN or \\uNNNN."""
    return _UNSAFE.sub(
        lambda sign: (
            sign[0].encode("ascii", "backslashreplace").decode() if ord(sign[0]) > 0xFF else f"\\x{ord(sign[0]):02x}"
        ),
        text,
    )


def moment(timestamp_ms: int) -> str:
    """A time in UTC, to the millisecond; the bare number where no calendar has it."""
    try:
        when = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return f"{timestamp_ms} ms"
    return when.strftime("%Y-%m-%d %H:%M:%S.") + f"{timestamp_ms % 1000:03}"


def size(count: int) -> str:
    """Bytes in the unit that suits them."""
    value = float(count)
    for unit in _UNITS:
        if value < _STEP or unit == _UNITS[-1]:
            return f"{count:,} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= _STEP
    raise AssertionError(value)


def parse_size(value: object) -> int:
    """Bytes from text as `20GiB`, `500 MB`; a bare number means bytes. Raises ValueError."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError("a size is a number and one of B, KiB, MiB, GiB, TiB, kB, MB, GB, TB, as in 20GiB")
    factors: dict[str, int] = {"": 1, **_DECIMAL}
    factors.update({unit: _STEP**power for power, unit in enumerate(_UNITS)})
    try:
        return round(float(match[1]) * factors[match[2]])
    except OverflowError:
        raise ValueError("a size has at most 300 digits") from None


def span(seconds: float) -> str:
    """How long something took or lasted, in at most two units."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, whole = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {whole} s"


def count(number: int, one: str, many: str | None = None) -> str:
    """`1 record`, `2 records`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def who() -> str:
    """The user of this process, by name."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
