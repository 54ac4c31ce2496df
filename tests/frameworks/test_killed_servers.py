"""Real servers with several workers are killed while customers order; orders and messages agree afterwards.

Each framework, with one of the databases, and a handful of kills; `make torture` kills every shop 200 times.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.frameworks.killed_shops import SHOPS, kill
from tests.frameworks.killing import Tally, reconcile

KILLS = 5
CHOSEN = [
    shop for shop in SHOPS
    if shop[:2] in {
        ("flask", "sqlite"), ("fastapi", "postgres"), ("fastapi_async", "sqlite"), ("django", "postgres"),
        ("starlette", "sqlite"), ("plain", "postgres"),
    }
]  # fmt: skip


@pytest.mark.sample("flask-sqlite---preload", "fastapi_async-sqlite-", "django-postgres---preload")
@pytest.mark.parametrize(("kind", "database", "option"), CHOSEN)
def test_orders_and_messages_agree(
    kind: str, database: str, option: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Each saved order has one message, each message its order, and nothing is left in doubt."""
    tally = kill(kind, database, option, KILLS, request, tmp_path)
    assert tally.adds_up, tally
    assert tally.kills >= KILLS // 2
    assert tally.kills_of_all == KILLS // 3
    assert tally.promised > KILLS
    assert not any(answer.endswith("500") for answer in tally.answers), tally


def test_reconciliation_knows_every_kind_of_difference() -> None:
    tally = Tally()
    reconcile(tally, ["kept", "twice", "mute"], ["kept", "twice", "twice", "ghost"], ["kept", "gone"])
    assert (tally.lost, tally.ghosts, tally.doubled, tally.broken) == (["mute"], ["ghost"], ["twice"], ["gone"])
    assert not tally.adds_up
    assert not Tally(left=1).adds_up
    assert Tally().adds_up


def test_reconciliation_finds_messages_that_are_sent_plain(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """With the enlistment switched off, what was rolled back is delivered."""
    tally = kill("unsafe_flask", "sqlite", "", KILLS, request, tmp_path)
    assert not tally.adds_up
    assert tally.ghosts
    assert any(item.endswith("-gift") for item in tally.ghosts), "a savepoint that was rolled back was not noticed"
