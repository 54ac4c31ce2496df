"""The CommitLog in bulk: framing, records, columns, Arrow batches. Reads only.

As in:

    from recovery.scan import scan
    for batch in scan("shop.store", columns=["topic", "body"]): ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from recovery.scan.arrow import scan

__all__ = ["scan"]


def __getattr__(name: str) -> Any:
    if name == "scan":
        from recovery.scan.arrow import scan

        return scan
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
