"""Processes that buy are killed at any instant; what is saved is announced once, and nothing else."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter

import pytest
from sqlalchemy import URL

from tests.checkback.shop import Shop
from tests.house.tree import ROOT

HITS = 2  # transactions that kills must leave in doubt
KILLS_MAX = 20  # until they have
DAY_MS = 86_400_000


def buyer(shop: Shop, url: URL, first: int) -> subprocess.Popen[str]:
    """A process that buys orders with numbers from `first` on."""
    words = [str(shop.path), url.render_as_string(hide_password=False), str(first)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.checkback.buying", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


@pytest.mark.sample("half-op-sqlite", "state-table-postgres")
@pytest.mark.usefixtures("each_engine")
def test_whoever_is_killed_orders_and_announcements_agree(shop: Shop, url: URL) -> None:
    """Two buyers at a time. After a few purchases one is killed, wherever it is; check-back runs beside the other."""
    chance, left_in_doubt = random.Random(4711), 0
    for kill in range(KILLS_MAX):
        with buyer(shop, url, 2_000_000 * kill) as one, buyer(shop, url, 2_000_000 * kill + 1_000_000) as other:
            try:
                for process in (one, other):
                    assert process.stdout is not None
                    for _ in range(chance.randrange(1, 12)):
                        assert process.stdout.readline(), "the buyer failed by itself"
                    process.kill()
                    shop.check_back(1)  # nothing is due yet; the store is used beside the other buyer
            finally:
                one.kill()
                other.kill()
        left_in_doubt += shop.in_doubt()
        if left_in_doubt >= HITS:
            break
    for number in range(3):
        shop.check_back(DAY_MS * (number + 1))
    assert shop.in_doubt() == 0
    saved = shop.orders()
    assert Counter(shop.announced()) == Counter(shop.announced("stock")) == Counter(saved)
    assert saved
    assert not [number for number in saved if number % 5 == 0]
    assert left_in_doubt >= HITS, "too few kills hit a transaction: this proves nothing"
