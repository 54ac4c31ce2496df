"""Rounds: who is asked, when again, and what happens at the limit. The resolver says what it is told."""

from __future__ import annotations

from pathlib import Path

import pytest

import broker
from broker.enlisting.ledger_key import LEDGER_KEY, new_key
from broker.errors import BrokerError
from broker.format import properties as names
from broker.store.disk.paths import Paths
from broker.transaction.events import BY, WHY, TransactionState
from broker.transaction.service import Half
from recovery.checkback.catalog import Catalog, attempts_of
from recovery.checkback.manual import find
from recovery.checkback.policy import AtLimit, Policy, Rule
from recovery.checkback.protocol import Outcome
from recovery.checkback.round import CheckBack, RoundReport
from recovery.humanize import moment
from tests.checkback.room import RULE, Room, room
from tests.transaction.opened import damage

__all__ = ["room"]

pytestmark = pytest.mark.usefixtures("each_engine")

MINUTE = 60_000


def state(room: Room, half: Half) -> TransactionState:
    return room.store.transactions.state(half)


def test_what_is_young_is_not_asked_about(room: Room) -> None:
    room.prepare()
    report = room.round(5_000)
    assert (report.in_doubt, report.waiting, report.asked, room.told.asked) == (1, 1, 0, [])
    assert room.round(6_000).asked == 1


def test_a_message_with_immunity_is_left_alone(room: Room) -> None:
    room.prepare(**{names.CHECK_IMMUNITY_TIME_IN_SECONDS: "600"})
    assert room.round(9 * MINUTE).waiting == 1
    assert room.round(10 * MINUTE).asked == 1


def test_no_immunity_of_one_message_keeps_a_round_from_the_others(room: Room) -> None:
    """Of more digits than a long has it is no number, as for RocketMQ."""
    for digits in (18, 5000):
        room.prepare(**{names.CHECK_IMMUNITY_TIME_IN_SECONDS: "9" * digits})
    room.prepare()
    report = room.round(6_000)
    assert (report.asked, report.waiting) == (2, 1)


def test_the_next_check_comes_after_a_growing_interval(room: Room) -> None:
    """Across restarts: what is remembered lies in the catalog."""
    room.prepare()
    asked = [bool(room.round(second * 1000).asked) for second in (6, 35, 36, 95, 96)]
    assert asked == [True, False, True, False, True]


def test_an_attempt_writes_no_byte_of_the_commitlog(room: Room) -> None:
    room.prepare(count=3)
    before = room.store.visible_end
    for second in (6, 36):
        assert room.round(second * 1000).unknown == 3
    room.store.sync_now()
    assert room.store.visible_end == before


def test_a_half_message_that_cannot_be_read_keeps_a_round_from_no_other(room: Room) -> None:
    """It is named in the report, and the others can be resolved by a person, too."""
    first, second = room.prepare(count=2)
    damage(room.store, first)
    room.told.outcomes[second.commitlog_offset] = Outcome.COMMITTED
    report = room.round(10 * MINUTE)
    assert (report.in_doubt, report.committed, len(report.errors)) == (2, 1, 1)
    assert f"offset {first.commitlog_offset}" in report.errors[0]
    (third,) = room.prepare()
    assert find(room.store, [str(third.commitlog_offset)]) == [third]
    with pytest.raises(broker.CorruptStore):
        find(room.store, [str(first.commitlog_offset)])


def test_who_could_not_be_asked_was_not_checked(room: Room) -> None:
    """A hundred rounds while everything is down or busy: no attempt is counted, nothing is parked."""
    (half,) = room.prepare()
    for outcome in (Outcome.DOWN, Outcome.RUNNING):
        room.told.default = outcome
        for number in range(1, 51):
            report = room.round(number * 3_600_000 * (1 if outcome is Outcome.DOWN else 100))
            assert (report.asked, report.newly_parked) == (1, 0)
    (attempt,) = attempts_of(room.store.path).values()
    assert attempt.checks == 0
    assert state(room, half) is TransactionState.PREPARED


@pytest.mark.parametrize("outcome", [Outcome.DOWN, Outcome.RUNNING])
def test_who_could_not_be_asked_is_asked_again_after_the_first_interval(room: Room, outcome: Outcome) -> None:
    """Whatever the interval of its checks has grown to: a database that was away for a minute is back."""
    room.prepare()
    for minutes in (1, 2):
        assert room.round(minutes * MINUTE).unknown == 1
    room.told.default = outcome
    assert room.round(4 * MINUTE).asked == 1
    assert room.round(4 * MINUTE + RULE.interval_ms - 1).asked == 0
    assert room.round(4 * MINUTE + RULE.interval_ms).asked == 1


def test_answers_are_done(room: Room) -> None:
    halves = room.prepare(count=3)
    room.told.outcomes = {
        halves[0].commitlog_offset: Outcome.COMMITTED,
        halves[1].commitlog_offset: Outcome.ROLLED_BACK,
    }
    report = room.round(MINUTE)
    assert (report.committed, report.rolled_back, report.unknown) == (1, 1, 1)
    assert [state(room, half) for half in halves] == [
        TransactionState.COMMITTED, TransactionState.ROLLED_BACK, TransactionState.PREPARED,
    ]  # fmt: skip
    assert list(attempts_of(room.store.path)) == [halves[2].commitlog_offset]


# The limit


def wear_out(room: Room, rule: Rule = RULE) -> RoundReport:
    """Ask until the limit; the report of the round that meets it."""
    for number in range(3):
        report = room.round((number + 1) * 10 * MINUTE, rule=rule)
        assert (report.asked, report.newly_parked) == (1, 0)
    return room.round(60 * MINUTE, rule=rule)


def test_at_the_limit_it_is_parked_and_nothing_is_lost(room: Room) -> None:
    (half,) = room.prepare()
    assert wear_out(room).newly_parked == 1
    assert state(room, half) is TransactionState.PARKED
    assert len(room.told.asked) == 3
    later = room.round(10_000 * MINUTE)
    assert (later.in_doubt, later.parked, later.asked) == (1, 1, 0)
    room.store.transactions.commit(half)
    assert state(room, half) is TransactionState.COMMITTED


@pytest.mark.parametrize(
    ("at_limit", "becomes"),
    [(AtLimit.COMMIT, TransactionState.COMMITTED), (AtLimit.ROLLBACK, TransactionState.ROLLED_BACK)],
)
def test_a_policy_may_decide_at_the_limit_and_says_so_in_the_end_record(
    room: Room, at_limit: AtLimit, becomes: TransactionState
) -> None:
    (half,) = room.prepare()
    rule = Rule(jitter=0.0, most_checks=3, at_limit=at_limit)
    report = wear_out(room, rule)
    assert (report.committed, report.rolled_back) == ((1, 0) if at_limit is AtLimit.COMMIT else (0, 1))
    assert state(room, half) is becomes
    room.store.sync_now()
    end = next(
        record
        for record in room.store.records()
        if record.prepared_transaction_offset == half.commitlog_offset
        and record.commitlog_offset != half.commitlog_offset
    )
    assert end.property_map[BY] == "test"
    assert f"asked 3 times, in doubt since {moment(half.store_timestamp_ms)} UTC: " in end.property_map[WHY]


@pytest.mark.parametrize(("outcome", "parked"), [(Outcome.DOWN, 1), (Outcome.REFUSED, 0)])
@pytest.mark.parametrize("at_limit", list(AtLimit))
def test_no_limit_decides_where_a_ledger_answers(room: Room, at_limit: AtLimit, outcome: Outcome, parked: int) -> None:
    """Its database is away for longer than the policy bears; of one that is refused, the right one is waited for."""
    (half,) = room.prepare(**{LEDGER_KEY: new_key(1)})
    room.told.default = outcome
    report = room.round(13 * 60 * MINUTE, rule=Rule(longest_ms=12 * 60 * MINUTE, at_limit=at_limit))
    assert (report.newly_parked, report.refused, report.committed, report.rolled_back) == (parked, 1 - parked, 0, 0)
    assert state(room, half) is (TransactionState.PARKED if parked else TransactionState.PREPARED)


def test_no_reason_stops_a_round(room: Room) -> None:
    """A resolver quotes what it met, such as bytes that are not UTF-8: neither a catalog nor a record takes them."""
    (half,) = room.prepare(**{LEDGER_KEY: new_key(1)})
    room.told.default, room.told.why = Outcome.DOWN, "no file f\udcfcr\x00\x01\x02"
    assert room.round(10 * MINUTE).down == 1
    assert room.round(13 * 60 * MINUTE, rule=Rule(longest_ms=12 * 60 * MINUTE)).newly_parked == 1
    (note,) = room.store.transactions.parked().values()
    assert note.why.endswith(r"no file f\udcfcr\x00\x01\x02")
    assert state(room, half) is TransactionState.PARKED


def test_at_the_limit_a_ledger_is_asked_once_more(room: Room) -> None:
    (half,) = room.prepare(**{LEDGER_KEY: new_key(1)})
    room.told.default = Outcome.COMMITTED
    report = room.round(13 * 60 * MINUTE, rule=Rule(longest_ms=12 * 60 * MINUTE))
    assert report.committed == 1
    assert state(room, half) is TransactionState.COMMITTED


# Limits of a round, and fairness


def test_a_flood_in_one_topic_does_not_starve_another(room: Room) -> None:
    room.prepare("flood", 50)
    room.prepare("orders", 5)
    report = room.round(MINUTE, limit=10)
    assert report.topics == {"flood": 5, "orders": 5}
    assert (report.due, report.left) == (55, 45)


def test_the_rounds_come_to_everybody(room: Room) -> None:
    """Each round asks about others until none is left."""
    room.prepare("flood", 25)
    for _ in range(3):
        room.round(MINUTE, limit=10)
    assert len({half.commitlog_offset for half in room.told.asked}) == 25


def test_a_topic_has_its_own_limit(room: Room) -> None:
    room.prepare("flood", 20)
    room.prepare("orders", 5)
    assert room.round(MINUTE, per_topic=3).topics == {"flood": 3, "orders": 3}


def test_the_longest_due_come_first(room: Room) -> None:
    halves = room.prepare("orders", 5)
    room.round(MINUTE, limit=2)
    assert [half.commitlog_offset for half in room.told.asked] == [half.commitlog_offset for half in halves[:2]]


def test_a_dry_run_asks_nobody_and_changes_nothing(room: Room) -> None:
    (half,) = room.prepare()
    report = room.round(MINUTE, dry_run=True)
    assert [plan["message_id"] for plan in report.planned] == [half.message_id]
    assert (room.told.asked, attempts_of(room.store.path)) == ([], {})
    assert state(room, half) is TransactionState.PREPARED


def test_what_is_not_yet_durable_is_not_asked_about(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut could still take the half message back, and with it what it would have decided."""
    (half,) = room.prepare()
    monkeypatch.setattr(type(room.store), "visible_end", property(lambda _: half.end - 1))
    report = room.round(MINUTE)
    assert (report.in_doubt, report.waiting, report.asked) == (1, 1, 0)


def test_a_half_message_whose_producer_died_before_it_was_forced_is_forced(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else nobody might, and it would wait for ever. A dry run forces nothing."""
    (half,) = room.prepare()
    forced: list[None] = []
    monkeypatch.setattr(type(room.store), "visible_end", property(lambda _: half.end - (not forced)))
    monkeypatch.setattr(room.store, "sync_now", lambda: forced.append(None))
    assert (room.round(MINUTE, dry_run=True).due, forced) == (0, [])
    assert room.round(MINUTE).asked == 1
    assert forced  # once, and with the engine half-op once more before the progress is written


# The catalog


def test_losing_the_catalog_loses_no_decision(room: Room, tmp_path: Path) -> None:
    """Deleted between rounds: checks are counted anew, and what was parked stays parked."""
    first, second = room.prepare(count=2)
    room.round(MINUTE)
    room.store.transactions.park(first, "by hand")
    room.close()
    path = tmp_path / "store"
    for file in (path / "checkback").glob("catalog.db*"):
        file.unlink()
    again = Room(path)
    again.stored_ms = room.stored_ms
    report = again.round(2 * MINUTE)
    assert (report.parked, report.unknown) == (1, 1)
    assert [attempt.checks for attempt in attempts_of(str(path)).values()] == [1]
    assert again.store.transactions.state(second) is TransactionState.PREPARED
    room.store = again.store
    again.catalogs[0].close()


def test_a_damaged_catalog_is_set_aside(room: Room) -> None:
    room.prepare()
    path = Path(Paths(room.store.path).catalog)
    path.write_bytes(b"this is no database, whatever its name says" * 100)
    assert room.round(MINUTE).unknown == 1
    assert path.with_name("catalog.db.damaged").exists()


def test_the_catalog_may_lie_in_another_database(room: Room, url: object) -> None:
    """SQLite elsewhere, or PostgreSQL."""
    from sqlalchemy import URL

    assert isinstance(url, URL)
    (half,) = room.prepare()
    catalog = Catalog.open(room.store.path, room.store.store_id, url.render_as_string(hide_password=False))
    room.catalogs.append(catalog)
    check = CheckBack(room.store, room.told, catalog=catalog, policy=Policy(RULE), by="test")
    check.round(room.stored_ms + MINUTE)
    assert catalog.known()[half.commitlog_offset].checks == 1
    (run,) = catalog.runs()
    assert (run["unknown"], run["by"]) == (1, "test")
    assert not Path(Paths(room.store.path).catalog).exists()


def test_a_catalog_that_cannot_be_used_is_a_sentence(room: Room) -> None:
    with pytest.raises(BrokerError, match="cannot be used"):
        Catalog.open(room.store.path, room.store.store_id, "sqlite:////proc/nowhere/catalog.db")


def test_a_round_that_finds_nothing_leaves_no_trace(room: Room) -> None:
    room.round(MINUTE)
    assert room.catalogs[-1].runs() == []


def test_only_the_last_runs_are_kept(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recovery.checkback.catalog._RUNS_KEPT", 3)
    catalog = Catalog.open(room.store.path, room.store.store_id)
    room.catalogs.append(catalog)
    for number in range(6):
        catalog.note_run(number, "test", {"asked": number})
    assert [run["asked"] for run in catalog.runs()] == [5, 4, 3]


def test_an_end_that_the_store_refuses_is_tried_again(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk: the round goes on, says so, and the next one ends it."""
    (half,) = room.prepare()
    room.told.default = Outcome.COMMITTED
    with monkeypatch.context() as patch:
        patch.setattr(room.store.transactions, "commit", _full)
        report = room.round(MINUTE)
        assert (report.down, report.committed) == (1, 0)
        assert half.message_id in report.errors[0]
    assert room.round(10 * MINUTE).committed == 1


def _full(*_: object, **__: object) -> None:
    raise broker.StoreFull("no room")


def test_the_store_id_is_the_stores(room: Room) -> None:
    assert len(room.store.store_id) == 32
