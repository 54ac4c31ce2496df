"""An application under `checkback work` is killed 200 times: workers, supervisors and the processes that send."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import URL

from tests.ledger.databases import postgres_url, sqlite_url
from tests.workers.killing import run_and_kill

__all__ = ["postgres_url", "sqlite_url"]

KILLS = 200


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("transactions", ["state-table", "half-op"])
@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_two_hundred_kills(database: str, transactions: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Each order has each of its effects once, and nothing is left in doubt or given up."""
    url: URL = request.getfixturevalue(f"{database}_url")
    tally = run_and_kill(tmp_path, url, KILLS, transactions)
    print(f"{database} {transactions}: {tally}")
    assert tally.adds_up, tally
    assert sum(tally.kills.values()) == KILLS
