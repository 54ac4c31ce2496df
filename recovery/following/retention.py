"""Which segments of a followed copy may go. Pure."""

from __future__ import annotations

from collections.abc import Iterable


def expired_below(
    batches: Iterable[tuple[int, int, int]],
    segment_bytes: int,
    *,
    older_than_ms: int,
    lowest_in_doubt: int | None,
) -> int | None:
    """The CommitLog offset below which segments may go; None for none.

    `batches` are (begin, end, newest store time in ms) of what was verified, in log order. A segment goes when it was
    verified to its end, every record of it is older, those before it go too, and no transaction in doubt begins in it.
    """
    below = newest_ms = 0
    found = None
    for begin, end, last_ms in batches:
        newest_ms = max(newest_ms, last_ms)
        if newest_ms >= older_than_ms or (lowest_in_doubt is not None and begin <= lowest_in_doubt < end):
            return found
        below = end
        if end % segment_bytes == 0:
            found = below
    return found
