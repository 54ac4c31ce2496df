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
from tests.server.killed_wire import kill, read_records

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
