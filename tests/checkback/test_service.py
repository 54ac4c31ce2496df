"""CheckService and its lease: one process asks for all, and another takes over when it is gone."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine

import broker
from broker.log_fields import fields_of
from recovery.checkback.leader import LeaderLock
from recovery.checkback.policy import Policy, Rule
from recovery.checkback.round import CheckBack, RoundReport
from recovery.checkback.service import CheckService, for_producers
from recovery.cli import checkback as verbs_check
from tests.backends.shop import raiser
from tests.checkback.shop import Shop, open_store
from tests.cli.command import command


@pytest.fixture
def directory(tmp_path: Path) -> str:
    """A store, closed."""
    open_store(tmp_path / "store").close()
    return str(tmp_path / "store")


@pytest.fixture
def lease(directory: str) -> Iterator[LeaderLock]:
    lease = LeaderLock(directory)
    yield lease
    lease.release()


def test_one_leads(directory: str, lease: LeaderLock) -> None:
    other = LeaderLock(directory)
    assert lease.leader() is None
    assert lease.try_take()
    assert lease.try_take()  # it leads already
    assert not other.try_take()
    leader = other.leader()
    assert leader is not None
    assert leader.who.endswith(f":{os.getpid()}")
    lease.release()
    assert other.leader() is None
    assert other.try_take()
    other.release()


def test_a_full_disk_keeps_nobody_from_leading_later(
    directory: str, lease: LeaderLock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that could not write its name does not keep the lock: it would wait for itself."""

    def no_room(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", no_room)
        with pytest.raises(broker.StoreFull, match=r"leader\.lock needs"):
            lease.try_take()
    assert not lease.is_held
    assert lease.try_take()


def test_a_leader_that_is_killed_leaves_the_lead(directory: str, lease: LeaderLock) -> None:
    """At once, with nothing to wait for."""
    script = (
        "import sys; from recovery.checkback.leader import LeaderLock; "
        "l = LeaderLock(sys.argv[1]); print(l.try_take(), flush=True); input()"
    )
    command = [sys.executable, "-c", script, directory]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "True\n"
        assert not lease.try_take()
        leader = lease.leader()
        assert leader is not None
        assert leader.who.endswith(f":{process.pid}")
        process.kill()
        process.wait()
        assert lease.try_take()


def test_a_forked_child_neither_leads_nor_keeps_its_parents_lead(directory: str, lease: LeaderLock) -> None:
    """The child lives on when the parent lets go; another process leads at once."""
    assert lease.try_take()
    to_child, from_child = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.write(from_child[1], b"led" if lease.is_held or lease.try_take() else b"not")
        os.read(to_child[0], 1)
        os._exit(0)
    assert os.read(from_child[0], 3) == b"not"
    assert lease.is_held
    lease.release()
    other = LeaderLock(directory)
    assert other.try_take()
    other.release()
    os.write(to_child[1], b".")
    os.waitpid(child, 0)
    for descriptor in (*to_child, *from_child):
        os.close(descriptor)


def later(shop: Shop) -> int:
    return shop.now_ms() + 60_000


def test_the_service_settles_what_is_left(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.buy_and_vanish(1, 2)
    done = threading.Event()
    check = shop.check()
    round_ = check.round

    def watched(now_ms: int) -> RoundReport:
        report = round_(now_ms)
        done.set()
        return report

    monkeypatch.setattr(check, "round", watched)
    with CheckService(check, LeaderLock(shop.store.path), interval_s=0.01, clock_ms=lambda: later(shop)) as service:
        assert done.wait(30)
    assert service.status.rounds >= 1
    assert service.status.leads
    assert shop.announced() == [1, 2]


def test_a_service_without_a_thread_is_started_again(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """It must not count as running because the first attempt failed."""

    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    asked = threading.Event()
    service = CheckService(shop.check(), LeaderLock(shop.store.path), interval_s=0.01)
    monkeypatch.setattr(service, "run", asked.set)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            service.start()
    service.start()
    assert asked.wait(30)
    service.stop()


def test_who_does_not_lead_asks_nobody(shop: Shop) -> None:
    shop.buy_and_vanish(1)
    first, second = LeaderLock(shop.store.path), LeaderLock(shop.store.path)
    assert first.try_take()
    service = CheckService(shop.check(), second, clock_ms=lambda: later(shop))
    assert service.run_once() is None
    assert not service.status.leads
    first.release()
    report = service.run_once()
    assert report is not None
    assert report.committed == 1
    service.stop()


def test_a_round_that_fails_is_tried_again(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    shop.buy_and_vanish(1)
    check = shop.check()
    service = CheckService(check, LeaderLock(shop.store.path), clock_ms=lambda: later(shop))
    with monkeypatch.context() as patch:
        patch.setattr(CheckBack, "round", raiser(ZeroDivisionError("a defect")))
        assert service.run_once() is None
    assert (service.status.failures, service.status.last_error) == (1, "ZeroDivisionError: a defect")
    assert "is tried again" in caplog.text
    report = service.run_once()
    assert report is not None
    assert report.committed == 1
    service.stop()


def test_a_round_counts_although_no_old_row_can_be_removed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A ledger's database is away: the round says so, and is no failure."""
    files = [tmp_path / name for name in ("here.db", "away.db")]
    ledgers = [broker.Ledger(create_engine(f"sqlite:///{file}")) for file in files]
    with open_store(tmp_path / "store") as store:
        producers = list[broker.Producer]()
        for ledger in ledgers:
            ledger.create_all()
            producers.append(store.producer(f"shop-{len(producers)}", topics=["orders"], ledger=ledger))
        ledgers[1].engine.dispose()
        files[1].unlink()
        service = for_producers(store, producers)
        assert service.run_once() is not None
        service.stop()
    assert (service.status.failures, service.status.rounds) == (0, 1)
    assert fields_of(caplog.records[-1])["event"] == "ledger-rows-stay"


def test_the_verb_releases_what_retention_removes_though_it_appends_nothing(
    directory: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It kept open each segment in which it had read a half message: their space was not free until it ended."""
    names: list[str] = []

    def interrupted(*_: object) -> None:
        names.extend(thread.name for thread in threading.enumerate())
        raise KeyboardInterrupt

    monkeypatch.setattr(verbs_check, "show_round", interrupted)
    assert command(capsys, "check-back", directory, "--every", "1ms").code == 130
    assert "checkback_care" in names


def test_housekeeping_comes_once_an_hour(shop: Shop) -> None:
    now_ms = [shop.now_ms()]
    kept: list[int] = []
    service = CheckService(
        shop.check(), LeaderLock(shop.store.path), housekeeping=kept.append, clock_ms=lambda: now_ms[0]
    )
    for _ in range(5):
        service.run_once()
        now_ms[0] += 40 * 60_000
    assert len(kept) == 3
    service.stop()


def test_an_application_serves_its_own_producers(shop: Shop) -> None:
    """By the ledger where a message names a row, by the resolver where none does; and old rows go."""
    shop.buy_and_vanish(1)
    by_ledger = shop.producer()
    by_hand = shop.store.producer("web", topics=["orders"], resolver=lambda message: "commit" * (message.body == b"2"))
    for number in (2, 3):
        by_hand.send(broker.Message("orders", b"%d" % number), by_hand.begin_transaction())
    service = for_producers(shop.store, [by_ledger, by_hand], policy=Policy(Rule(first_check_after_ms=0)))
    report = service.run_once()
    service.stop()
    assert report is not None
    assert (report.committed, report.unknown, report.down) == (2, 1, 0)
    assert shop.announced() == [1, 2]
    assert service.status.last_error == ""
