"""The shops that are killed, and one run of each."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import URL

from tests.frameworks import shop_kinds
from tests.frameworks.killing import Tally, run_and_kill

SHOPS = [
    ("flask", "sqlite", "--preload"),
    ("flask", "postgres", ""),
    ("fastapi", "sqlite", ""),
    ("fastapi", "postgres", ""),
    ("fastapi_async", "sqlite", ""),
    ("fastapi_async", "postgres", ""),
    ("django", "sqlite", ""),
    ("django", "postgres", "--preload"),
    ("starlette", "sqlite", ""),
    ("starlette", "postgres", ""),
    ("plain", "sqlite", "--preload"),
    ("plain", "postgres", ""),
]


def kill(kind: str, database: str, option: str, kills: int, request: pytest.FixtureRequest, directory: Path) -> Tally:
    """Run a shop on a database and kill it; what came of it."""
    url: URL = request.getfixturevalue(f"{database}_url")
    shop = getattr(shop_kinds, kind)(directory, url, *filter(None, [option]))
    tally = run_and_kill(shop, directory, url, kills, seed=kills)
    print(f"{kind} on {database} {option}: {tally}")
    return tally
