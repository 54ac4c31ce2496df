"""Who asks for some producer groups only does not keep others from theirs: no group waits for a wrong leader."""

from __future__ import annotations

import fcntl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine

import broker
from broker.live import LiveStore
from recovery.checkback.catalog import Attempt, Catalog, attempts_of
from recovery.checkback.config import Setup
from recovery.checkback.leader import Leader, LeaderLock, leaders, myself
from recovery.checkback.ledger_resolver import LedgerResolver
from recovery.checkback.ledgers.proof import LedgerEvidence
from recovery.checkback.policy import AtLimit, Policy, Rule
from recovery.checkback.resolvers import Breaker, CallableResolver, Router
from recovery.checkback.round import CheckBack
from recovery.checkback.service import CheckService, for_producers
from recovery.cli.shared import WELL
from recovery.jobs.due import DueWatch
from tests.checkback.shop import open_store

Run = Callable[..., Any]
AT_ONCE = Policy(Rule(first_check_after_ms=0, interval_ms=1, jitter=0.0))


def commits(_message: object) -> str:
    return "commit"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LiveStore]:
    with open_store(tmp_path / "store") as opened:
        yield opened


@pytest.fixture
def service_of(store: LiveStore) -> Iterator[Callable[..., CheckService]]:
    """`service_of(group, ...)`: the service of an application whose producers are of these groups."""
    with ExitStack() as stack:

        def service(*groups: str, policy: Policy = AT_ONCE, resolver: Callable[[Any], str] = commits) -> CheckService:
            producers = [store.producer(group, topics=["orders"], resolver=resolver) for group in groups]
            made = for_producers(store, producers, policy=policy)
            stack.callback(made.stop)
            return made

        yield service


def prepare(store: LiveStore, *groups: str) -> list[Any]:
    return [store.transactions.prepare(broker.Message("orders", group.encode()), group) for group in groups]


def states(store: LiveStore, halves: list[Any]) -> list[str]:
    return [store.transactions.state(half).name for half in halves]


def test_the_leader_of_one_group_does_not_starve_another(
    store: LiveStore, service_of: Callable[..., CheckService]
) -> None:
    first, second = service_of("a"), service_of("b")
    for _ in range(3):  # the second finds its own due, whatever the first has done before
        halves = prepare(store, "a", "b")
        led = first.run_once()
        assert led is not None
        assert (led.committed, led.down, led.of_others, led.waiting) == (1, 0, 1, 0)
        assert states(store, halves) == ["COMMITTED", "PREPARED"]
        other = second.run_once()
        assert other is not None
        assert (other.committed, other.of_others) == (1, 0)
        assert states(store, halves) == ["COMMITTED", "COMMITTED"]
    assert first.status.leads
    assert second.status.leads
    assert attempts_of(store.path) == {}  # nobody put off what is another's


def test_of_those_that_ask_the_same_one_leads(service_of: Callable[..., CheckService]) -> None:
    """As before, in whatever order the producers are given."""
    first, second, narrower = service_of("a", "b"), service_of("b", "a"), service_of("a")
    assert first.run_once() is not None
    assert second.run_once() is None
    assert narrower.run_once() is not None
    first.stop()
    assert second.run_once() is not None


def test_two_ledgers_of_one_group_are_led_apart(store: LiveStore, tmp_path: Path) -> None:
    """One process for each tenant: the one cannot answer for the other."""
    services = []
    for tenant in ("a", "b"):
        engine = create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
        ledger = broker.Ledger(engine, table=f"ledger_{tenant}")
        ledger.create_all()
        services.append(for_producers(store, [store.producer("shop", topics=["orders"], ledger=ledger)]))
    assert [service.run_once() is not None for service in services] == [True, True]
    for service in services:
        service.stop()


def test_what_is_anothers_is_not_given_up_either(store: LiveStore, service_of: Callable[..., CheckService]) -> None:
    """The limit in the policy of an application is for its own groups."""
    halves = prepare(store, "a", "b")
    gives_up = Policy(Rule(first_check_after_ms=0, longest_ms=0, at_limit=AtLimit.ROLLBACK))
    report = service_of("a", policy=gives_up).run_once()
    assert report is not None
    assert (report.rolled_back, report.newly_parked, report.of_others) == (1, 0, 1)
    assert states(store, halves) == ["ROLLED_BACK", "PREPARED"]
    assert report.oldest_ms is not None
    assert 0 <= report.oldest_ms < 60_000


def test_what_another_has_asked_about_is_not_given_up_either(
    store: LiveStore, service_of: Callable[..., CheckService]
) -> None:
    """The catalog knows it then, and whose it is."""
    halves = prepare(store, "b")
    asked = service_of("b", resolver=lambda _: "unknown").run_once()
    assert asked is not None
    assert asked.unknown == 1
    gives_up = Policy(Rule(first_check_after_ms=0, longest_ms=0, at_limit=AtLimit.ROLLBACK))
    report = service_of("a", policy=gives_up).run_once()
    assert report is not None
    assert (report.in_doubt, report.of_others, report.due) == (1, 1, 0)
    assert states(store, halves) == ["PREPARED"]


def test_what_is_anothers_is_read_once_and_forgotten_when_it_ended(store: LiveStore) -> None:
    """A process of one group would keep each transaction of the others for as long as it lives."""
    halves = prepare(store, "a", "b")
    check = CheckBack(store, Router({"a": CallableResolver(commits)}), policy=AT_ONCE, groups={"a"})
    for _ in range(2):
        assert check.round(check.now_ms()).of_others == 1
    assert list(check._of_others) == [halves[1].commitlog_offset]
    store.transactions.rollback(halves[1])
    assert check.round(check.now_ms()).of_others == 0
    assert check._of_others == {}


def test_who_asks_for_all_goes_on_beside_the_leader_of_a_group(
    store: LiveStore, service_of: Callable[..., CheckService], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    halves = prepare(store, "a", "b")
    service_of("a", resolver=lambda _: "unknown").run_once()
    monkeypatch.setattr(CheckBack, "now_ms", lambda _self: time.time_ns() // 1_000_000 + 60_000)
    code, report = run("check-back", store.path, "--call", f"{__name__}:commits", "--json")
    assert (code, report["committed"]) == (WELL, 2)
    assert states(store, halves) == ["COMMITTED", "COMMITTED"]


def test_who_names_nobody_for_a_group_puts_nothing_off(store: LiveStore) -> None:
    """A round that has no resolver for a group says so, and another's round asks at once."""
    halves = prepare(store, "a", "b")
    patient = Policy(Rule(first_check_after_ms=0, interval_ms=3_600_000))
    check = CheckBack(store, Router({"a": CallableResolver(commits)}), policy=patient)
    now_ms = check.now_ms()
    report = check.round(now_ms)
    assert (report.committed, report.down) == (1, 1)
    assert list(report.not_asked) == ["nobody is named who could answer for producer group 'b'"]
    all_asked = CheckBack(store, CallableResolver(commits), policy=patient).round(now_ms)
    assert all_asked.committed == 1
    assert states(store, halves) == ["COMMITTED", "COMMITTED"]


def test_the_sentence_says_for_which_groups_the_leader_asks(store: LiveStore, run: Run, tmp_path: Path) -> None:
    config = tmp_path / "check-back.toml"
    config.write_text("".join(f'[resolvers.{group}]\ncall = "{__name__}:commits"\n' for group in "ab"))
    with Setup(resolvers={group: {"call": f"{__name__}:commits"} for group in "ba"}).open(store) as asked:
        lease = LeaderLock(store.path, asks=asked.asks)
    assert lease.try_take()
    code, text = run("check-back", store.path, "--config", config)
    assert code == WELL
    assert "leads and asks for the producer groups a, b: nothing was done" in text
    lease.release()
    lease = LeaderLock(store.path)
    assert lease.try_take()
    code, text = run("check-back", store.path, "--call", f"{__name__}:commits")
    assert "leads and asks for all producer groups: nothing was done" in text
    lease.release()


def test_who_waits_with_every_says_so_once(store: LiveStore, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds: list[object] = []
    run_once = CheckService.run_once

    def interrupted(service: CheckService) -> object:
        rounds.append(run_once(service))
        if len(rounds) == 3:
            raise KeyboardInterrupt
        return rounds[-1]

    monkeypatch.setattr(CheckService, "run_once", interrupted)
    lease = LeaderLock(store.path)
    assert lease.try_take()
    code, text = run("check-back", store.path, "--call", f"{__name__}:commits", "--every", "1ms")
    lease.release()
    assert (code, rounds) == (130, [None] * 3)
    assert text.count("leads and asks for all producer groups: this process waits until it ends") == 1


def test_all_leaders_are_found(store: LiveStore) -> None:
    assert leaders(store.path) == []
    some, every = LeaderLock(store.path, asks={"b": "x", "a": "y" * 400}), LeaderLock(store.path)
    assert some.try_take()
    assert every.try_take()
    found = leaders(store.path)
    assert {one.groups for one in found} == {None, ("a", "b")}
    assert all(isinstance(one, Leader) and one.who for one in found)
    some.release()
    assert [one.groups for one in leaders(store.path)] == [None]
    every.release()
    assert leaders(store.path) == []


def test_who_looks_for_a_leader_keeps_nobody_from_leading(store: LiveStore) -> None:
    """Airflow's triggerer looks all the time: a round that came just then did nothing, since "another" was asking."""
    lease, other = LeaderLock(store.path), LeaderLock(store.path)
    assert lease.try_take()
    lease.release()
    with open(lease.path, "rb") as looked_at:
        fcntl.flock(looked_at, fcntl.LOCK_SH)
        looks = threading.Timer(0.02, fcntl.flock, (looked_at, fcntl.LOCK_UN))
        looks.start()
        assert lease.try_take()
        looks.join()
    assert not other.try_take()
    lease.release()


def test_a_leader_is_named_without_the_one_before_it(store: LiveStore) -> None:
    """Whose name was longer, or who asked for more groups."""
    lease = LeaderLock(store.path, asks={"a": "x"})
    Path(lease.path).write_text("a-host-with-a-long-name:4711\na\nb\nc", encoding="utf-8")
    assert lease.try_take()
    assert leaders(store.path) == [Leader(myself(), ("a",))]
    lease.release()


def test_what_no_leader_asks_for_is_due_for_airflow(store: LiveStore) -> None:
    """A leader of one group leaves the rest to the DAG; one that asks for all leaves nothing."""
    (_, half) = prepare(store, "a", "b")
    later_ms = time.time_ns() // 1_000_000 + 60_000
    both = DueWatch(store.path).look(later_ms, {}).event
    assert both is not None
    assert both["due"] == 2
    some, every = LeaderLock(store.path, asks={"a": "x"}), LeaderLock(store.path)
    assert some.try_take()
    assert DueWatch(store.path).look(later_ms, {}).event == {"due": 1, "commitlog_offset": half.commitlog_offset}
    assert DueWatch(store.path).look(later_ms, None).event == {"due": 1, "commitlog_offset": half.commitlog_offset}
    assert every.try_take()
    assert DueWatch(store.path).look(later_ms, {}).event is None
    some.release()
    every.release()


@pytest.mark.parametrize("outcome", ["down", "refused", "unknown"])
def test_what_the_leader_of_its_group_could_not_ask_is_due_for_airflow(store: LiveStore, outcome: str) -> None:
    """It may not know the ledger, of which the group has several; what was answered is the leader's to ask again."""
    (half,) = prepare(store, "a")
    later_ms = time.time_ns() // 1_000_000 + 60_000
    catalog, place = Catalog.open(store.path, store.store_id), (half.commitlog_offset, half.message_id)
    catalog.remember([Attempt(*place, "orders", "a", half.store_timestamp_ms, 0, 1, 1, outcome, "")])
    catalog.close()
    lease = LeaderLock(store.path, asks={"a": "x"})
    assert lease.try_take()
    due = DueWatch(store.path).look(later_ms, {}).event
    assert due == (None if outcome == "unknown" else {"due": 1, "commitlog_offset": half.commitlog_offset})
    lease.release()


def test_a_ledger_says_nothing_of_a_half_message_without_one(store: LiveStore, tmp_path: Path) -> None:
    """It counted as a check: at its limit it was parked, or rolled back, and the resolver of its group never asked."""
    halves = prepare(store, "a", "b")
    ledger = broker.Ledger(create_engine(f"sqlite:///{tmp_path / 'shop.db'}"))
    ledger.create_all()
    resolver = Breaker(LedgerResolver(ledger, LedgerEvidence(store)), failures=1)
    gives_up = Policy(Rule(first_check_after_ms=0, interval_ms=1, most_checks=1, at_limit=AtLimit.ROLLBACK))
    check = CheckBack(store, resolver, policy=gives_up)
    for later_ms in (0, 10, 20):
        report = check.round(check.now_ms() + later_ms)
        assert (report.down, report.rolled_back, report.newly_parked) == (2, 0, 0)
        assert not resolver.is_open
    assert all("no ledger row is named in it" in why for why in report.not_asked)
    ledger.engine.dispose()
    assert CheckBack(store, CallableResolver(commits)).round(check.now_ms() + 60_000).committed == 2
    assert states(store, halves) == ["COMMITTED", "COMMITTED"]
