"""Small stores whose files are damaged or cut, and the verbs that read them all the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.command import Ran, command
from tests.scan.small_broker import V5
from tests.scan.small_stores import build

SEGMENT_SIZE = V5.segment_size


def run(capsys: pytest.CaptureFixture[str], verb: str, store: Path, *words: str) -> Ran:
    """The verb on the store; salvage gets a place to write to."""
    out = [store.parent / f"{store.name}.salvaged"] if verb == "salvage" else []
    return command(capsys, verb, store, *out, *words)


def segments(store: Path) -> list[Path]:
    return sorted((store / "commitlog").iterdir())


def long_store(directory: Path) -> Path:
    """A store of three segments."""
    store = directory / "store"
    broker = build(V5, directory / "short")
    while len(broker.log) < 2 * SEGMENT_SIZE + 500:
        broker.append("plain", "Orders", b"more", {"KEYS": "more"})
    return broker.write(store)
