"""A real standby of PostgreSQL: it follows, is promoted, and takes over with or without the last transactions."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import URL, create_engine, text

from broker.ledger import Ledger
from recovery.checkback.round import RoundReport
from tests.checkback.shop import Shop
from tests.ledger import postgres

WAIT_S = 60.0


class Standby:
    """A server that follows another one, in a directory of its own, on a socket of its own."""

    def __init__(self, primary: URL) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="sb-"))
        owner = Path(str(primary.query["host"])).stat()
        os.chown(self.directory, owner.st_uid, owner.st_gid)
        ids = [f"--reuid={owner.st_uid}", f"--regid={owner.st_gid}", "--clear-groups"]
        self._as_owner = ["setpriv", *ids] if os.getuid() == 0 else []
        self._data = str(self.directory / "data")
        self._run("pg_basebackup", "-D", self._data, "-h", str(primary.query["host"]), "-U", "shop", "-R", "-c", "fast")
        options = f"-k {self.directory} -h '' -F -c shared_buffers=16MB -c max_connections=40"
        self._run("pg_ctl", "-D", self._data, "-l", str(self.directory / "log"), "-w", "-o", options, "start")
        self.url = primary.set(query={"host": str(self.directory)})

    def _run(self, name: str, *words: str) -> None:
        program = postgres._program(name)
        if program is None:
            pytest.skip(f"PostgreSQL's {name} is not installed")
        command = [*self._as_owner, program, *words]
        done = subprocess.run(
            command,
            cwd=self.directory,
            capture_output=True,
            text=True,
            check=False,
            timeout=WAIT_S,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def promote(self) -> None:
        """It follows no longer: a new timeline begins."""
        self._run("pg_ctl", "-D", self._data, "-w", "promote")

    def wait_for(self, sql: str) -> None:
        """Until a query on it gives something true."""
        engine, deadline = create_engine(self.url), time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            with engine.connect() as connection:
                if connection.execute(text(sql)).scalar():
                    break
            time.sleep(0.05)
        else:
            raise AssertionError(sql)
        engine.dispose()

    def remove(self) -> None:
        self._run("pg_ctl", "-D", self._data, "-m", "immediate", "-w", "stop")
        shutil.rmtree(self.directory, ignore_errors=True)


@pytest.fixture
def shop(tmp_path: Path, postgres_url: URL) -> Iterator[Shop]:
    engine = create_engine(postgres_url)
    ledger = Ledger(engine)
    ledger.create_all()
    shop = Shop(tmp_path / "store", ledger, ledger)
    yield shop
    shop.close()
    engine.dispose()


@pytest.fixture
def followed(postgres_url: URL, shop: Shop) -> Iterator[Callable[[], Standby]]:
    """Makes a standby of the shop's database, as of now."""
    made: list[Standby] = []

    def follow() -> Standby:
        made.append(Standby(postgres_url))
        return made[-1]

    shop.producer()  # bound before the standby is made
    yield follow
    for one in made:
        one.remove()


def round_on(shop: Shop, url: URL) -> RoundReport:
    engine = create_engine(url)
    shop.resolvers_ledger = Ledger(engine)
    report = shop.check_back()
    engine.dispose()
    return report


def test_a_standby_that_follows_takes_no_tombstone(shop: Shop, followed: Callable[[], Standby]) -> None:
    standby = followed()
    shop.buy_and_vanish(1, saved=False)
    report = round_on(shop, standby.url)
    assert (report.refused, report.rolled_back, shop.in_doubt()) == (1, 0, 1)
    assert "it is a standby" in next(iter(report.refusals))


def test_a_standby_that_took_over_with_everything_is_the_same_database(
    shop: Shop, followed: Callable[[], Standby]
) -> None:
    """A known committed transaction shows that nothing is missing: nobody needs to say anything."""
    standby = followed()
    shop.buy(1)
    shop.buy_and_vanish(2)
    shop.buy_and_vanish(3, saved=False)
    standby.wait_for("SELECT count(*) = 2 FROM orders")
    standby.promote()
    report = round_on(shop, standby.url)
    assert (report.committed, report.rolled_back, shop.in_doubt()) == (1, 1, 0), report
    assert shop.announced() == [1, 2]


def test_a_standby_that_lacks_the_last_transactions_is_refused(shop: Shop, followed: Callable[[], Standby]) -> None:
    """It was promoted too early: the primary committed more, and the store knows it."""
    standby = followed()
    standby.promote()
    shop.buy(1)
    shop.buy_and_vanish(2)
    report = round_on(shop, standby.url)
    assert (report.refused, report.rolled_back, shop.in_doubt()) == (1, 0, 1)
    assert "lacks 1 of the last 1" in next(iter(report.refusals))


def test_the_very_first_transaction_is_not_decided_by_a_standby_that_took_over(
    shop: Shop, followed: Callable[[], Standby]
) -> None:
    """No committed transaction shows that it lacks nothing, and it does: a person is asked."""
    standby = followed()
    standby.promote()
    shop.buy_and_vanish(1)
    report = round_on(shop, standby.url)
    assert (report.refused, report.rolled_back, shop.in_doubt()) == (1, 0, 1)
    assert "a standby took over" in next(iter(report.refusals))
