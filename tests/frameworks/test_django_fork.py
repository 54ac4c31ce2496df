"""`gunicorn --preload` with Django: the exit of a forked worker leaves the store of its parent open and whole."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from sqlalchemy import URL

import broker
from recovery.verify.verifier import verify
from tests.frameworks.shop_kinds import DJANGO, django_database
from tests.house.tree import ROOT
from tests.producer.delivered import delivered


def test_a_child_that_exits_closes_nothing_of_its_parent(sqlite_url: URL, tmp_path: Path) -> None:
    """Each exit runs what `open_store` registered, in the child too. Other processes join meanwhile."""
    path = tmp_path / "store"
    broker.open(path, layout=broker.StoreLayout.small()).close()
    environment = {
        **os.environ, "PYTHONPATH": str(ROOT), "DJANGO_SETTINGS_MODULE": f"{DJANGO}.settings",
        "SHOP_DATABASE": json.dumps(django_database(sqlite_url)), "SHOP_STORE": str(path),
    }  # fmt: skip
    migrate = [sys.executable, "-m", "django", "migrate", "--verbosity", "0"]
    subprocess.run(migrate, cwd=ROOT, env=environment, check=True, timeout=120)
    forks = "ignore:This process:DeprecationWarning"  # Python 3.12 and later, of each fork beside threads
    words = [sys.executable, "-W", forks, "-m", "tests.frameworks.preloaded_shop"]
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    ways = [["exits", 0], ["works", 0], ["is-killed", -9]]
    assert json.loads(done.stdout) == [[*way, True, 0, "shared"] for way in ways]
    assert not (path / "abort").exists(), "the parent was the last to leave"
    with broker.open(path) as store:
        assert not store.transactions.in_doubt_slots()
        bodies = sorted(body.decode() for body in delivered(store))
    assert bodies == sorted([
        "before", "last words of a child", "after the child that exits", "by a child", "last words of a child",
        "after the child that works", "after the child that is-killed", "last words of the parent",
    ])  # fmt: skip
    report = verify(path)
    assert report.ok, report.findings.counts
