"""Build all derived files from the CommitLog, compare them, and put them in place.

As in:

    from recovery.rebuild import rebuild
    report = rebuild("shop.store", apply=False)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from recovery.rebuild.rebuilder import rebuild

__all__ = ["rebuild"]


def __getattr__(name: str) -> Any:
    if name == "rebuild":
        from recovery.rebuild.rebuilder import rebuild

        return rebuild
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
