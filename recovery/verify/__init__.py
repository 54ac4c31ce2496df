"""Compare every derived file of a store with its CommitLog. Reads only.

As in:

    from recovery.verify import verify
    report = verify("shop.store")
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from recovery.verify.verifier import verify

__all__ = ["verify"]


def __getattr__(name: str) -> Any:
    if name == "verify":
        from recovery.verify.verifier import verify

        return verify
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
