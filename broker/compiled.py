"""The optional C module `broker._fast`, where it was built; `fast` is None without it.

It does the common case of a few hot functions, byte for byte as the Python that calls it, and returns None for all
else. `CHECKBACK_PURE=1` in the environment leaves it out. In a source tree a module that was built from other sources
than those beside it is left out, too: `make setup` builds it again.
"""

from __future__ import annotations

import os
import sys
import zlib
from types import ModuleType

SOURCES = (
    "broker/_fast.c",
    "broker/_fast_append.h",
    "broker/_fast_arrays.h",
    "broker/_fast_crc.h",
    "broker/_fast_digest.h",
    "broker/_fast_ends.h",
    "broker/_fast_files.h",
    "broker/_fast_flusher.h",
    "broker/_fast_half.h",
    "broker/_fast_index_items.h",
    "broker/_fast_message.h",
    "broker/_fast_numbers.h",
    "broker/_fast_plain.h",
    "broker/_fast_record.h",
    "broker/_fast_request.h",
    "broker/_fast_scan.h",
    "broker/_fast_sent.h",
    "broker/_fast_stored.h",
    "broker/_fast_strings.h",
    "broker/_fast_transaction.h",
)
MIRRORED = (
    "broker/store/shared/control.py",
    "broker/store/shared/queue_offsets.py",
)  # layouts of our own that it knows


def sources_crc(root: str) -> int | None:
    """A number that says which sources these are, in a source tree; None where they are not all there."""
    crc = 0
    for name in SOURCES + MIRRORED:
        try:
            with open(os.path.join(root, name), "rb") as source:
                crc = zlib.crc32(source.read(), crc)
        except OSError:
            return None
    return crc


def _load() -> ModuleType | None:
    if os.environ.get("CHECKBACK_PURE") == "1" or sys.implementation.name != "cpython":
        return None
    try:
        import broker._fast as built  # type: ignore[import-not-found]  # in sight of PyInstaller
    except ImportError:
        return None
    expected = sources_crc(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    return built if expected in (None, getattr(built, "sources", -1)) else None


fast: ModuleType | None = _load()

if __name__ == "__main__":
    print("with broker._fast" if fast else "without broker._fast: it needs a C compiler and the headers of Python")
