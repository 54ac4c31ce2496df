"""A thousand processes are killed while four of them at a time write to one store."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.store.engines import ENGINES
from tests.store.killed_workers import kill_and_judge


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("seed", [11, 12])
def test_a_thousand_kills(seed: int, engine: str, tmp_path: Path) -> None:
    kill_and_judge(tmp_path, 500, seed, engine)
