"""`checkback work`: which application, which groups, how it stops, what it says when it cannot work."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

import broker
from tests.app.shop import until
from tests.cli.command import command
from tests.house.tree import ROOT

SHOP = """
import pathlib, time
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session
import broker
from broker.testing.fixtures import SMALL

engine = create_engine("sqlite:///shop.db")
app = broker.App("shop.store", engine=engine, layout=SMALL, sync="os")
with engine.begin() as connection:
    connection.execute(text("CREATE TABLE IF NOT EXISTS charges (item TEXT, seen TEXT)"))

def place(*items):
    with app.transaction():
        for item in items:
            app.send("orders", item)

@app.on("orders", group="billing")
def charge(item: str, session: Session) -> None:
    alive = pathlib.Path("alive")
    pathlib.Path("begun").touch()
    time.sleep(1.0 if item == "slow" else 0)
    seen = alive.read_text() if alive.exists() else ""
    session.execute(text("INSERT INTO charges VALUES (:item, :seen)"), {"item": item, "seen": seen})

@app.on("orders", group="broken")
def broken(item: str) -> None:
    raise SystemExit("the handler ends the process")
"""
_numbers = itertools.count()


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a module with an application, in the current directory."""
    name = f"work_shop_{next(_numbers)}"
    (tmp_path / f"{name}.py").write_text(SHOP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield name
    if (module := sys.modules.pop(name, None)) is not None:
        module.app.close()
        module.engine.dispose()


def place(name: str, *items: str) -> None:
    __import__(name)
    sys.modules[name].place(*items)


def charges(directory: Path) -> list[tuple[str, str]]:
    engine = create_engine(f"sqlite:///{directory}/shop.db")
    with engine.connect() as connection:
        found = [(item, seen) for item, seen in connection.execute(text("SELECT item, seen FROM charges"))]
    engine.dispose()
    return found


def work(capsys: pytest.CaptureFixture[str], name: str, *options: str) -> str:
    ran = command(capsys, "work", f"{name}:app", "--group", "billing", "--until-idle", "1s", *options)
    assert (ran.code, ran.out) == (0, ""), ran
    return ran.err


def test_it_works_until_it_is_idle(shop: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place(shop, "lamp", "slow")
    said = work(capsys, shop, "--liveness", "alive")
    assert "works for billing (orders)" in said
    assert sorted(item for item, _ in charges(tmp_path)) == ["lamp", "slow"]
    (seen,) = [seen for item, seen in charges(tmp_path) if item == "slow"]
    assert json.loads(seen)["groups"] == ["billing"]
    assert not (tmp_path / "alive").exists()


def test_a_replay_handles_again_under_a_group_of_its_own(
    shop: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place(shop, "lamp", "chair")
    work(capsys, shop)
    for start, count in (("first", 4), ("2020-01-01T00:00Z", 6), ("2099-01-01T00:00Z", 6)):
        work(capsys, shop, "--replay-from", start, "--as", f"again-{start[:4]}")
        assert len(charges(tmp_path)) == count, start
    with broker.open(tmp_path / "shop.store") as store, store.consumer("billing", "orders") as consumer:
        assert consumer.receive(0.2) is None, "the group itself was not moved"


MODULES = {
    "empty_one": "",
    "broken_one": "import broker\n\nvalue = 1 / 0\n",
    "unparsable_one": "def f(:\n",
    "missing_one": "import not_there_at_all\n",
    "leaving_one": "import sys\nsys.exit(5)\n",
    "away_one": "import broker\nfrom sqlalchemy import create_engine\nfrom broker.testing.fixtures import SMALL\n"
    "engine = create_engine('postgresql+psycopg://127.0.0.1:1/shop')\n"
    "app = broker.App('away.store', engine=engine, topics=['orders'], layout=SMALL)\n",
}
WRONG = [
    (["nonsense"], "does not name an application: write module:attribute"),
    (["shop:app:x"], "does not name an application"),
    (["not_there:app"], "there is no module not_there in"),
    (["empty_one:app"], "there is no such attribute in empty_one"),
    (["os:path"], "is not a broker.App in os"),
    (["broken_one:app"], "broken_one.py line 3: ZeroDivisionError: division by zero"),
    (["unparsable_one:app"], "unparsable_one.py line 1: invalid syntax"),
    (["missing_one:app"], "missing_one.py line 1: ModuleNotFoundError: No module named 'not_there_at_all'"),
    (["leaving_one:app"], "leaving_one.py line 2: SystemExit: 5"),
    (
        ["away_one:app"],
        "the ledger's database postgresql+psycopg://127.0.0.1:1/shop does not answer: connection failed",
    ),
    (["SHOP:app", "--group", "bilings"], "no handler of group bilings: its groups are billing, broken"),
    (["SHOP:app", "--replay-from", "first"], "needs --as NEW_GROUP and one --group"),
    (["SHOP:app", "--group", "billing", "--replay-from", "last", "--as", "x"], "takes first, or a time"),
    (["SHOP:app", "--group", "billing", "--replay-from", "first", "--as", "billing"], "needs a group of its own"),
    (["SHOP:app", "--until-idle", "1s", "--processes", "2"], "for one process"),
    (["SHOP:app", "--grace", "soon"], "a duration is a number"),
    (["SHOP:app", "--config", "none.toml"], "none.toml"),
    (["SHOP:app", "--liveness", "no/such/alive", "--group", "billing"], "alive cannot be written"),
]


@pytest.mark.parametrize(("words", "sentence"), WRONG)
def test_what_cannot_work_is_one_sentence(
    words: list[str], sentence: str, shop: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, source in MODULES.items():
        (tmp_path / f"{name}.py").write_text(source)
    ran = command(capsys, "work", *(word.replace("SHOP", shop) for word in words))
    assert ran.code == 2
    assert sentence in " ".join(ran.err.replace("│", " ").split())
    assert "Traceback" not in ran.err
    assert not (tmp_path / "shop.store").exists()


def test_a_thread_that_ends_ends_the_process(shop: str, capsys: pytest.CaptureFixture[str]) -> None:
    place(shop, "lamp")
    ran = command(capsys, "work", f"{shop}:app", "--group", "broken", "--until-idle", "20s")
    assert ran.code == 2
    assert "a worker thread ended: SystemExit: the handler ends the process" in ran.err


def terminated(shop: str, directory: Path, *options: str) -> tuple[int, str]:
    """Exit code and standard error of a process that gets a SIGTERM when its first handler has begun."""
    line = [sys.executable, "-m", "recovery.cli", "work", f"{shop}:app", "--group", "billing", *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    worker = subprocess.Popen(line, cwd=directory, env=environment, stderr=subprocess.PIPE, text=True)
    until((directory / "begun").exists, 60)
    worker.send_signal(signal.SIGTERM)
    _, said = worker.communicate(timeout=60)
    return worker.returncode, said


def test_what_is_not_finished_in_time_is_said(shop: str, tmp_path: Path) -> None:
    place(shop, "slow")
    code, said = terminated(shop, tmp_path, "--grace", "10ms")
    assert code == 1
    assert "did not finish what it had in process: that is delivered again. See --grace" in said


def test_sigterm_finishes_what_runs_and_gives_the_rest_back(shop: str, tmp_path: Path) -> None:
    place(shop, "slow", "slow", "slow")
    code, said = terminated(shop, tmp_path)
    assert code == 0, said
    done = len(charges(tmp_path))
    assert 1 <= done <= 2
    with broker.open(tmp_path / "shop.store") as store, store.consumer("billing", "orders") as consumer:
        left = [consumer.receive(2.0) for _ in range(3 - done)]
        assert None not in left, "what was not begun is there for the next at once"
        assert consumer.receive(0.2) is None
