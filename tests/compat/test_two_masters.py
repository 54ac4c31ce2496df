"""The flash sale on a real cluster of two masters, one of which is killed at random: do the sums agree?

`CHECKBACK_SALE_SECONDS` is how long it lasts, `CHECKBACK_SALE_LEAST` how often each kind of crash must have struck.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from recovery.demo.runner import Demo
from tests.cluster.waiting import awaited
from tests.compat import rocketmq
from tests.compat.two_masters import SOON, Masters, are_there

SECONDS = float(os.environ.get("CHECKBACK_SALE_SECONDS", "60"))
LEAST = int(os.environ.get("CHECKBACK_SALE_LEAST", "1"))

pytestmark = pytest.mark.timeout(2400)


@pytest.fixture
def namesrv(tmp_path: Path) -> Iterator[rocketmq.Cluster]:
    try:
        installation = rocketmq.install("5.3.3")
    except rocketmq.NotToBeHad as missing:
        pytest.skip(str(missing))
    with rocketmq.Cluster(installation, tmp_path / "unused", **SOON) as cluster:
        yield cluster


def test_the_sums_agree(namesrv: rocketmq.Cluster, tmp_path: Path) -> None:
    masters = Masters(namesrv, tmp_path, random.Random(4711))
    assert awaited(lambda: are_there(namesrv.namesrv), 90)

    def said(sentence: str) -> None:
        print(sentence)
        if "the sale is over" in sentence:
            masters.end_killing()  # the time that the sale has to come to rest begins with both

    (tmp_path / "sale").mkdir()
    demo = Demo(str(tmp_path / "sale"), seconds=SECONDS, least=LEAST, rate=0.3, seed=4711,
                broker=f"rocketmq://{namesrv.namesrv}", say=said)  # fmt: skip
    masters.begin_killing()
    try:
        result = demo.run()
    finally:
        masters.end_killing()
    print(masters.kills, "kills of a master;", result.as_json())
    assert masters.kills >= 1
    assert not result.faults, result.faults
    assert not result.rare, result.rare
    assert {line.what: line.found for line in result.counts}["orders"] > 10
