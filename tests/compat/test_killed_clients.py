"""Servers of one store and official clients in Java and Go are killed at random; reconciled by the clients' records.

CHECKBACK_KILLS says how many times: 12 here, 300 for the proof at length, once for each engine of transactions.
Nothing that was acknowledged is lost, nothing is delivered after a rollback, contrary decisions are refused (ours
sends them, for the official clients do not wait for the answer to an end), and checks to producers in any language
settle everything.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.compat.killed_clients import NAMES, OfficialCrowd, build, missing
from tests.server.killed_wire import kill, stop_the_server
from tests.server.wire_tally import read_records

KILLS = int(os.environ.get("CHECKBACK_KILLS", "12"))

pytestmark = [pytest.mark.timeout(7200), pytest.mark.skipif(bool(missing()), reason=f"not installed: {missing()}")]


@pytest.mark.parametrize("engine", ["state-table", "half-op"])
def test_official_clients_and_servers_are_killed(engine: str, tmp_path: Path) -> None:
    build()
    tally = kill(tmp_path, KILLS, engine=engine, servers=3, seed=KILLS, kind=OfficialCrowd, names=NAMES)
    print(tally)
    assert tally.adds_up, tally
    assert tally.kills.total() == KILLS
    for kind in ("acked", "delivered", "checked"):
        for language in ("java", "go"):
            assert read_records(tmp_path, f"{kind}-{language}"), (kind, language)


@pytest.mark.parametrize("engine", ["state-table", "half-op"])
def test_a_server_that_is_away_for_ten_seconds_loses_nothing_of_official_clients(engine: str, tmp_path: Path) -> None:
    """It hangs under load, and then it is ended and started again."""
    build()
    kinds = [f"{kind}-{language}" for kind in ("acked", "delivered") for language in ("java", "go")]

    def are_at_work() -> bool:
        return all(read_records(tmp_path, kind) for kind in kinds)

    tally = stop_the_server(
        tmp_path, 10.0, engine=engine, kind=OfficialCrowd, names=NAMES, are_at_work=are_at_work
    )  # fmt: skip
    print(tally)
    assert tally.adds_up, tally
    assert are_at_work(), kinds
