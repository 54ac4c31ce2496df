"""kill -9 of any process of an application loses and doubles nothing. `make torture` kills 200 times each."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import URL, create_engine, text

from tests.workers.killing import EFFECTS, Tally, reconcile, run_and_kill

KILLS = 6


@pytest.mark.sample("postgres-half-op")
@pytest.mark.parametrize(("database", "transactions"), [("sqlite", "state-table"), ("postgres", "half-op")])
def test_each_order_has_each_effect_once(
    database: str, transactions: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url: URL = request.getfixturevalue(f"{database}_url")
    tally = run_and_kill(tmp_path, url, KILLS, transactions)
    assert tally.adds_up, tally
    assert sum(tally.kills.values()) == KILLS
    assert tally.orders > KILLS


def test_reconciliation_knows_every_kind_of_difference(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/a.db")
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (id INTEGER)"))
        connection.execute(text("INSERT INTO orders VALUES (1), (2), (3)"))
        for table in EFFECTS:
            connection.execute(text(f"CREATE TABLE {table} (order_id INTEGER)"))
            connection.execute(text(f"INSERT INTO {table} VALUES (1), (2), (2), (9)"))  # noqa: S608
    tally = Tally()
    reconcile(tally, engine)
    engine.dispose()
    assert (tally.lost["posted"], tally.doubled["charges"], tally.ghosts["packed"]) == ([3], [2], [9])
    assert not tally.adds_up
    assert Tally().adds_up
    assert not Tally(in_doubt=1).adds_up
