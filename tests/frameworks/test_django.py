"""Django's own test runner runs the cases of the shop on Django, on SQLite in memory and on PostgreSQL."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import URL

from tests.checkback.shop import open_store
from tests.frameworks.shop_kinds import DJANGO, django_database
from tests.house.tree import ROOT

CASES = 59


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_the_cases(database: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Each is a test of Django's: TransactionTestCase, or TestCase, which never commits."""
    url: URL = request.getfixturevalue(f"{database}_url")
    done = run_cases(tmp_path, url)
    assert done.returncode == 0, done.stderr
    (count,) = re.findall(r"^Ran (\d+) tests", done.stderr, re.MULTILINE)
    assert int(count) == CASES


def run_cases(directory: Path, url: URL, *words: str) -> subprocess.CompletedProcess[str]:
    open_store(directory / "store").close()
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "DJANGO_SETTINGS_MODULE": f"{DJANGO}.settings",
        "SHOP_DATABASE": json.dumps(django_database(url)),
        "SHOP_STORE": str(directory / "store"),
    }
    command = [sys.executable, "-W", "error", "-m", "django", "test", "--noinput", "--pattern", "*_cases.py", *words]
    return subprocess.run(
        [*command, DJANGO], cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=240
    )
