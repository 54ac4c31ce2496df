"""300 SIGKILLs of servers, producers and consumers at random, over the wire, for each engine of transactions.

Nothing that was acknowledged is lost, nothing is delivered after a rollback, contrary decisions are refused, and checks
to producers that live settle everything. CHECKBACK_KILLS says how many.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.server.killed_wire import kill, stop_the_server

KILLS = int(os.environ.get("CHECKBACK_KILLS", "300"))


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("engine", ["state-table", "half-op"])
def test_three_hundred_kills(engine: str, tmp_path: Path) -> None:
    tally = kill(tmp_path, KILLS, engine=engine, servers=3, seed=KILLS)
    print(tally)
    assert tally.adds_up, tally
    assert tally.kills.total() == KILLS
    assert min(tally.kills[kind] for kind in ("server", "produce", "consume")) > KILLS // 10
    assert tally.by_check > KILLS // 10


@pytest.mark.parametrize("engine", ["state-table", "half-op"])
def test_a_server_that_is_away_for_ten_seconds_loses_nothing(engine: str, tmp_path: Path) -> None:
    """It hangs under load, and then it is ended and started again."""
    tally = stop_the_server(tmp_path, 10.0, engine=engine)
    print(tally)
    assert tally.adds_up, tally
    assert tally.acknowledged > 0
    assert tally.transactions > 0
