"""The README keeps what it promises: its commands exist and its program runs as it stands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from broker.store.disk.files import Disk
from recovery.verify.verifier import verify

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_program_runs(tmp_path: Path) -> None:
    """As it stands, in an empty directory; what it wrote is right."""
    (program,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "orders b'lamp'\n"
    assert Disk().used_bytes(str(tmp_path)) < 64 << 20, "a laptop's disk"
    report = verify(tmp_path / "shop.store")
    assert report.ok
    assert report.transactions["committed"] == 1


SESSIONS = """
import asyncio
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import scoped_session, sessionmaker

import broker

engine, async_engine = create_engine("sqlite:///shop.db"), create_async_engine("sqlite+aiosqlite:///shop.db")
app = broker.App("shop.store", engine=engine, async_engine=async_engine, topics=["orders"])
session = scoped_session(sessionmaker(engine))  # as Flask-SQLAlchemy's db.session is
async_session = async_scoped_session(async_sessionmaker(async_engine), asyncio.current_task)


def place(consumer: broker.Consumer, message: broker.ReceivedMessage) -> None:
    app.send("orders", 1, session)
    with engine.begin() as connection:
        app.send("orders", 2, connection)
        app.processed.forget(connection, 0)
    with app.transaction(session) as given:
        given.flush()
        consumer.first_time(message, session)
    with consumer.process(message, session) as first:
        assert first is True


async def place_async(consumer: broker.Consumer, message: broker.ReceivedMessage) -> None:
    await app.send_async("orders", 1, async_session)
    async with async_engine.begin() as connection:
        await app.send_async("orders", 2, connection)
    async with app.transaction_async(async_session) as given:
        await given.flush()
    async with consumer.process(message, async_session) as first:
        assert first is True
"""


def test_the_program_has_right_types(tmp_path: Path) -> None:
    """For a reader whose project runs mypy --strict; so has one with each other session that is taken."""
    (program,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    (tmp_path / "program.py").write_text(program)
    (tmp_path / "sessions.py").write_text(SESSIONS)
    options = ["--strict", "--follow-imports=silent"]  # the library's own errors are not shown, as when it is installed
    command = [sys.executable, "-m", "mypy", *options, f"--cache-dir={tmp_path / 'cache'}", "program.py", "sessions.py"]
    environment = {**os.environ, "MYPYPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_verb_is_there() -> None:
    verbs = re.findall(r"`checkback ([\w-]+)[ `]", README)
    assert verbs
    for verb in verbs:
        command = [sys.executable, "-m", "recovery.cli.app", verb, "--help"]
        assert subprocess.run(command, capture_output=True, check=False).returncode == 0, verb
