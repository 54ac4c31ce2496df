"""Short lives of a store that is written by the C module, ended behind any of its steps."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from types import ModuleType

import broker
from recovery.torture.power_cuts import TINY, WatchedDisk, cut_at, steps_of_a_life
from recovery.torture.second_reader import assert_one_truth
from recovery.verify.verifier import verify

TRANSACTIONS = 7


class SteppedDisk(WatchedDisk):
    """A disk whose power can fail behind each step of the C module, too."""

    def watch(self, module: ModuleType) -> None:
        """Count the module's steps from now on, until the power is gone."""
        module.watch(lambda name: None if self.crashed else self._step(f"append: {name}"))


def live(path: Path, engine: str, acknowledged: list[str]) -> None:
    """Messages, transactions that commit, that are rolled back and that stay in doubt; files end in between."""
    with broker.open(path, sync="os", layout=TINY, transactions=engine) as store:
        for number in range(TRANSACTIONS):
            body = b"%d" % number + b"x" * (300 if number % 3 else 20)
            store.append(broker.Message("plain", body, keys=["p", str(number)]), queue_id=number % 2)
            acknowledged.append(f"plain {number}")
            half = store.transactions.prepare(broker.Message("orders", body, keys=["k"]), "shop", queue_id=number % 2)
            acknowledged.append(f"half {number}")
            if number % 3 == 0:
                store.transactions.commit(half)
            elif number % 3 == 1:
                store.transactions.rollback(half)
            acknowledged.append(f"end {number}")


def count_steps(path: Path, engine: str, module: ModuleType) -> int:
    """How many steps such a life has."""
    names: list[str] = []
    module.watch(names.append)
    try:
        live(path, engine, [])
    finally:
        module.watch(None)
    assert {"intent", "record", "tail", "queue unit", "slot", "index item", "dispatched"} <= set(names)
    return len(names)


def kill_behind(path: Path, engine: str, module: ModuleType, step: int) -> tuple[int, bool]:
    """Kill a process behind this step of its life: how much was acknowledged to it, and whether it came so far.

    A life has fewer steps when the Python did an append, because another thread had the lock at that moment.
    """
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        left, noted = [step], NotedTo(write)

        def look(_name: str) -> None:
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)

        module.watch(look)
        try:
            live(path, engine, noted)
            os._exit(0)
        finally:
            os._exit(1)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        acknowledged = pipe.read().count(b"\n")
    ended = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert ended in (0, -signal.SIGKILL)
    return acknowledged, ended != 0


class NotedTo(list[str]):
    """A list that says so elsewhere as well."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor

    def append(self, event: str) -> None:
        """Tell one event."""
        os.write(self._descriptor, event.encode() + b"\n")


def assert_nothing_lost(path: Path, engine: str, acknowledged: int) -> None:
    """Before the store is opened and after it: no finding; all that was acknowledged is there, and it goes on."""
    report = verify(path)
    assert report.ok, [str(finding) for finding in report.findings][:3]
    with broker.open(path, sync="os", layout=TINY, transactions=engine) as store:
        placed = store.append(broker.Message("plain", b"it goes on"))
        assert store.message("plain", 0, placed.queue_offset) is not None
        in_doubt = len(list(store.transactions.in_doubt()))
    log = assert_one_truth(path)
    plain = sum(one.topic == "plain" for one in log)
    assert plain - 1 >= (acknowledged + 2) // 3
    assert in_doubt <= TRANSACTIONS // 3 + 1
    report = verify(path)
    assert report.ok, [str(finding) for finding in report.findings][:3]


def kill_at_steps(tmp_path: Path, engine: str, module: ModuleType, *, every: int) -> None:
    """Kill behind each, or each so-manieth, step of a life."""
    steps = count_steps(tmp_path / "whole", engine, module)
    assert steps > 100
    kills = 0
    for step in range(1, steps + 1, every):
        path = tmp_path / f"killed-{step}"
        acknowledged, was_killed = kill_behind(path, engine, module, step)
        assert_nothing_lost(path, engine, acknowledged)
        kills += was_killed
        shutil.rmtree(path)
    assert kills > 0.9 * steps / every


def cut_at_steps(tmp_path: Path, engine: str, module: ModuleType, sync: str, *, every: int) -> None:
    """Cut the power behind each, or each so-manieth, step of a life, those of the C module among them."""

    def make(path: Path, crash_at: int | None = None) -> SteppedDisk:
        disk = SteppedDisk(path, crash_at=crash_at)
        disk.watch(module)
        traces.append(disk.trace)
        return disk

    traces: list[list[str]] = []
    try:
        steps, begun = steps_of_a_life(tmp_path, sync, engine, make)
        assert sum(name.startswith("append:") for name in traces[0]) > 100
        for step in range(begun, steps + 1, every):
            cut_at(tmp_path, sync, engine, step, (0, 1, 2 + step), make)
    finally:
        module.watch(None)
