"""A store is verified again and again while the flash sale writes to it and its processes are killed: no finding."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from recovery.demo.runner import Demo
from recovery.spark import verification
from recovery.verify.verifier import verify
from tests.spark.conftest import spark

__all__ = ["spark"]

SALE_S, AT_LEAST = 90, 50


@pytest.mark.timeout(SALE_S + 300)
@pytest.mark.parametrize("seed", range(2))
def test_a_live_store_has_no_findings(seed: int, tmp_path: Path, spark: SparkSession) -> None:
    sale = Demo(str(tmp_path), seed=seed, seconds=SALE_S)
    ended: list[bool] = []
    thread = threading.Thread(target=lambda: ended.append(sale.run().ok))
    thread.start()
    store = tmp_path / "store"
    while not (store / "lock").exists() and thread.is_alive():
        time.sleep(0.01)
    reports = []
    while thread.is_alive():
        reports += [verify(store), verification.verify(spark, os.fspath(store))]
    thread.join()
    assert ended == [True]
    assert [dict(one.findings.counts) for one in reports if one.findings.counts] == []
    assert len(reports) >= AT_LEAST
    assert any(one.live for one in reports)
