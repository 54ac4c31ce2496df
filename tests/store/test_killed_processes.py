"""Processes that write to a store are killed with SIGKILL, one after another; and one in its first send."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

import broker
from broker.store.engines import ENGINES
from broker.store.read.layout import StoreLayout
from tests.producer.delivered import delivered
from tests.store.killed_workers import kill_and_judge

KILLS = 40  # `make torture` kills a thousand


@pytest.mark.parametrize("engine", ENGINES)
def test_processes_are_killed_one_after_another(engine: str, tmp_path: Path) -> None:
    kill_and_judge(tmp_path, KILLS, 1, engine)


@pytest.mark.parametrize("size", [0, 4096])
def test_who_is_killed_in_its_first_send_leaves_a_store_that_opens(size: int, tmp_path: Path) -> None:
    """Between the name of the first segment and its size; it was taken for one that had been cut."""
    path, layout = tmp_path / "store", StoreLayout.small()
    if (child := os.fork()) == 0:
        store = broker.open(path, layout=layout)
        Path(store.writer.paths.commitlog, "0" * 20).write_bytes(bytes(size))
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    with broker.open(path, layout=layout) as store:
        store.append(broker.Message("orders", b"a"))
        assert delivered(store) == [b"a"]
