"""The optional C module `broker._fast`, where it was built; `fast` is None without it.

It does the common case of a few hot functions, byte for byte as the Python that calls it, and returns None for all
else. `CHECKBACK_PURE=1` in the environment leaves it out. In a source tree a module that was built from other sources
than those beside it is left out, too: `make setup` builds it again.
"""

from __future__ import annotations

import importlib
import os
import zlib
from pathlib import Path
from types import ModuleType

SOURCES = (
    "broker/_fast.c",
    "broker/_fast_arrays.h",
    "broker/_fast_crc.h",
    "broker/_fast_digest.h",
    "broker/_fast_index_items.h",
    "broker/_fast_scan.h",
    "broker/_fast_strings.h",
)


def sources_crc(root: Path) -> int | None:
    """A number that says which sources these are, in a source tree; None where they are not all there."""
    crc = 0
    for name in SOURCES:
        try:
            crc = zlib.crc32((root / name).read_bytes(), crc)
        except FileNotFoundError:
            return None
    return crc


def _load() -> ModuleType | None:
    if os.environ.get("CHECKBACK_PURE") == "1":
        return None
    try:
        built = importlib.import_module("broker._fast")
    except ImportError:
        return None
    return built if sources_crc(Path(__file__).parents[1]) in (None, built.sources) else None


fast: ModuleType | None = _load()

if __name__ == "__main__":
    print("with broker._fast" if fast else "without broker._fast: it needs a C compiler and the headers of Python")
