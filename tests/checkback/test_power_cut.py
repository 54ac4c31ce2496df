"""Wherever the power fails in a purchase: what the database saved is announced, and nothing else."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import create_engine, event

from broker.ledger import Ledger
from broker.testing.crash_disk import CrashDisk, Crashed
from tests.checkback.shop import Shop

TOPICS = ("orders", "stock")
NOTHING_BUT_FORCED, EVERYTHING = 0, 1  # what a power cut leaves, and by chance what else it may: CrashDisk.survivors
SEEDS = (NOTHING_BUT_FORCED, EVERYTHING, 2, 3)

pytestmark = pytest.mark.usefixtures("each_engine")


@contextmanager
def shop_on(disk: CrashDisk) -> Iterator[Shop]:
    """The store is on a disk whose power fails, SQLite on one whose does not: each COMMIT that returned counts."""
    engine = create_engine(f"sqlite:///{disk.root}.db")
    ledger = Ledger(engine)
    ledger.create_all()
    shop = Shop(disk.root / "store", ledger, ledger, disk)
    try:
        yield shop
    finally:
        with contextlib.suppress(Crashed):
            shop.close()
        engine.dispose()


def judge(disk: CrashDisk, seed: int) -> list[int]:
    """What was saved, which is what is announced when check-back has asked."""
    engine = create_engine(f"sqlite:///{disk.root}.db")
    shop = Shop(disk.survivors(seed) / "store", Ledger(engine), Ledger(engine))
    shop.check_back()
    saved = shop.orders()
    assert (shop.announced("orders"), shop.announced("stock"), shop.in_doubt()) == (saved, saved, 0)
    shop.close()
    engine.dispose()
    return saved


@pytest.mark.parametrize("seed", SEEDS)
def test_the_power_fails_right_after_commit(tmp_path: Path, seed: int) -> None:
    """Not a byte of what follows is written: that the half messages are on disk, they owe to what came before."""
    disk = CrashDisk(tmp_path / "disk")
    with shop_on(disk) as shop:
        shop.buy(1, topics=TOPICS)
        with contextlib.suppress(Crashed):
            shop.buy(2, topics=TOPICS, watch=lambda one: event.listen(one, "after_commit", lambda _: disk.crash()))
    assert judge(disk, seed) == [1, 2]


def purchases(disk: CrashDisk) -> int:
    """Three, if the power lasts; the steps of the disk until the store was open."""
    opened = 0
    with contextlib.suppress(Crashed), shop_on(disk) as shop:
        opened = disk.steps
        for number in (1, 2, 3):
            shop.buy(number, topics=TOPICS)
    return opened


@pytest.mark.sample("half-op-0")
@pytest.mark.parametrize("part", range(4))
def test_the_power_fails_at_any_step_of_three_purchases(tmp_path: Path, part: int) -> None:
    """A quarter of the steps each."""
    whole = CrashDisk(tmp_path / "whole")
    opened = purchases(whole)
    found = []
    for step in range(opened + 1 + part, whole.steps + 1, 4):
        disk = CrashDisk(tmp_path / f"disk-{step}", crash_at=step)
        purchases(disk)
        found.append(judge(disk, SEEDS[step % len(SEEDS)]))
    assert {len(saved) for saved in found} == {0, 1, 2, 3}
