"""Each shop of `tests/frameworks` is killed 200 times: single workers, and every third time its whole server."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.frameworks.killed_shops import SHOPS, kill
from tests.ledger.databases import postgres_url, sqlite_url

__all__ = ["postgres_url", "sqlite_url"]

KILLS = 200


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("kind", "database", "option"), SHOPS)
def test_two_hundred_kills(
    kind: str, database: str, option: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Nothing is lost, invented, doubled or left in doubt; and the kills did hit running transactions."""
    tally = kill(kind, database, option, KILLS, request, tmp_path)
    assert tally.adds_up, tally
    assert tally.kills > KILLS * 0.9
    assert tally.in_doubt > 0, "no kill hit a transaction: this proves nothing"
