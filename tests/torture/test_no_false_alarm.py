"""A thousand kills beside `verify` and `rebuild`, by both engines: no finding, no difference. Then a bit is flipped."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from broker.store.engines import ENGINES
from recovery.rebuild.rebuilder import rebuild
from recovery.spark import rebuilding, verification
from recovery.verify.verifier import verify
from tests.spark.conftest import spark
from tests.verify.beside_writers import LAYOUTS, Watch, watch
from tests.verify.flipped_bits import assert_a_flipped_bit_is_found

__all__ = ["spark"]

ROUNDS, KILLS = 10, 100


@pytest.mark.timeout(3000)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_thousand_kills_and_no_false_alarm(layout: str, engine: str, tmp_path: Path, spark: SparkSession) -> None:
    """Each round ends with the kill of every writer, and a judgement right after it."""

    def on_spark(number: int) -> Callable[[Path], Any]:
        judges: list[Callable[[Path], Any]] = [
            verify,
            rebuild,
            lambda store: verification.verify(spark, os.fspath(store), split_bytes=1 << 20),
            lambda store: rebuilding.rebuild(spark, os.fspath(store), split_bytes=1 << 20),
        ]
        return judges[number % len(judges)]

    total = Watch()
    for number in range(ROUNDS):
        store = tmp_path / f"store-{number}"
        seen = watch(store, layout, KILLS, number, engine, judges=on_spark if number % 5 == 4 else None)
        assert seen.found == [], (number, seen.found[:5])
        total.kills += seen.kills
        total.verifications += seen.verifications
        total.rebuilds += seen.rebuilds
        if number < ROUNDS - 1:
            shutil.rmtree(store)
    judged = f"{total.verifications} verifications, {total.rebuilds} rebuilds"
    print(f"\n{layout}, {engine}: {total.kills} kills, {judged}, none found")
    assert total.kills >= ROUNDS * KILLS
    assert min(total.verifications, total.rebuilds) >= ROUNDS


@pytest.mark.timeout(600)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_flipped_bit_among_kills_is_found(layout: str, tmp_path: Path) -> None:
    assert_a_flipped_bit_is_found(tmp_path / "store", layout, kills=100)
