"""Power cuts of stores that do less than they should: each precaution that is left out must be found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import broker
from broker.live import LiveStore
from broker.store.shared.control import Word
from broker.store.write.mapped import MappedQueue
from broker.store.write.sync import Syncer
from broker.store.writer import StoreWriter
from recovery.torture.power_cuts import Life, WatchedDisk, cut_at
from recovery.torture.promises import PromiseBroken


def _tail(writer: StoreWriter) -> int:
    return writer.control[Word.TAIL]


def _durable_before_it_is(syncer: Syncer) -> None:
    """The word first, then the forced write."""
    words = syncer._words
    start, words[Word.DURABLE] = words[Word.DURABLE], words[Word.TAIL]
    syncer.log.sync(start, words[Word.TAIL])


MUTATIONS: dict[str, tuple[type, str, Any]] = {
    "readers see what is published": (StoreWriter, "visible_end", property(_tail)),
    "nobody waits for the disk": (Syncer, "wait_durable", lambda self, commitlog_offset: None),
    "nothing is forced": (MappedQueue, "sync", lambda self, start, stop: None),
    "durable is said before the forced write": (Syncer, "_force", _durable_before_it_is),
    "a message's place is not looked at": (LiveStore, "_record_of", broker.Store._record_of),
    "a record's place is not looked at": (LiveStore, "records", broker.Store.records),
}


def is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, engine: str) -> None:
    monkeypatch.setattr(*MUTATIONS[name])
    life = Life(WatchedDisk(tmp_path / "dry"), "group", engine)
    life.live()
    for step in range(life.disk.steps // 3, life.disk.steps, 2):
        try:
            cut_at(tmp_path, "group", engine, step, (0,))
        except PromiseBroken:
            return
    pytest.fail("every promise was kept")
