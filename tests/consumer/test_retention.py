"""Retention waits for consumers: nothing that a living group has yet to acknowledge goes."""

from __future__ import annotations

import dataclasses
import itertools
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings

import broker
from broker.consuming.group.consumer_table import ConsumerTable
from broker.consuming.group.positions import Positions
from broker.errors import StoreFull
from broker.retainer import RETAIN_EVERY_S, Retainer
from broker.store.maintain.retention_registry import registered
from broker.store.read.layout import StoreLayout
from broker.testing.crash_disk import FakeClock
from recovery.verify.verifier import verify
from tests.consumer.retention_lives import (
    NOW,
    STEPS,
    TINY,
    cut_the_power,
    do_anything,
    kill_again_and_again,
    later_ms,
    send,
    take,
)  # fmt: skip
from tests.store.full_disk import fill_disk, small

__all__ = ["small"]

WEEK_MS = 7 * 86_400_000


def make_gone(store: broker.LiveStore, group: str, topic: str = "orders") -> None:
    """As if no consumer of the group was seen for more than a week, by a clock of another boot."""
    held = Positions(store)
    cell = held.cells.find(group, topic, -1)
    assert cell is not None
    held.cells.see(cell, later_ms() - WEEK_MS - 1000, 0)
    held.close()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[broker.LiveStore]:
    with broker.open(tmp_path / "store", layout=TINY, sync="os") as opened:
        yield opened


def test_what_a_group_has_not_acknowledged_stays(store: broker.LiveStore) -> None:
    """The slowest group decides, and the report says who it is and how much it has to read."""
    send(store, range(60))
    assert take(store, "fast", 60) == list(range(60))
    assert take(store, "slow", 25) == list(range(25))
    done = store.retain(NOW, now_ms=later_ms())
    assert 0 < len(done.segments) < done.due
    assert [(pin.kind, "slow" in pin.text) for pin in done.pins] == [("group", True)]
    assert done.unread_gone == 0
    assert {(one.group, one.topic, one.waiting) for one in done.unread} == {("slow", "orders", 35)}
    assert take(store, "slow", 99) == list(range(25, 60))
    assert take(store, "late", 99)[-1] == 59  # a new group gets what is left
    assert verify(store.path).ok


def test_of_several_that_wait_the_one_that_is_farthest_behind_decides(store: broker.LiveStore) -> None:
    send(store, range(60))
    assert take(store, "slow", 45) == list(range(45))
    assert take(store, "slowest", 15) == list(range(15))
    done = store.retain(NOW, now_ms=later_ms())
    assert ["slowest" in pin.text for pin in done.pins] == [True, False]
    assert done.unread_gone == 0
    assert take(store, "slowest", 99) == list(range(15, 60))


def test_what_is_not_acknowledged_in_between_stays(store: broker.LiveStore) -> None:
    """One message in hand keeps all behind it, acknowledged as they are; a store may be opened anew meanwhile."""
    send(store, range(40))
    with store.consumer("billing", "orders") as consumer:
        messages = [consumer.receive(1) for _ in range(40)]
        for message in messages[:10] + messages[11:]:
            assert message is not None
            consumer.ack(message)
        store.retain(NOW, now_ms=later_ms())
        held = messages[10]
        assert held is not None
        assert store.record(held.commitlog_offset) is not None
    assert take(store, "billing", 1) == [10]


def test_even_unread_takes_it_and_counts_it(store: broker.LiveStore, caplog: pytest.LogCaptureFixture) -> None:
    """In the report, in the log, and in what the store remembers."""
    send(store, range(60))
    take(store, "slow", 20)
    done = store.retain(broker.Retention(keep_s=0, even_unread=True), now_ms=later_ms())
    left = take(store, "slow", 99)
    assert done.unread_gone == 40 - len(left) > 0
    assert left == list(range(60 - len(left), 60))
    assert f"{done.unread_gone} message(s) of topic orders that group slow" in caplog.text
    assert store.retention_history()["unread"] == {"slow@orders": done.unread_gone}
    send(store, range(60, 90))
    again = store.retain(broker.Retention(keep_s=0, even_unread=True), now_ms=later_ms())
    assert store.retention_history()["unread"]["slow@orders"] == done.unread_gone + again.unread_gone


def test_a_group_that_is_gone_is_let_go_and_counted(store: broker.LiveStore, caplog: pytest.LogCaptureFixture) -> None:
    """While another one reads on; a member that comes back is waited for at once."""
    send(store, range(60))
    take(store, "dead", 10)
    take(store, "alive", 60)
    make_gone(store, "dead")
    with store.consumer("dead", "orders"):
        assert store.retain(NOW, now_ms=later_ms()).unread_gone == 0
    make_gone(store, "dead")
    done = store.retain(NOW, now_ms=later_ms())
    (dead,) = [one for one in done.unread if one.group == "dead"]
    assert (dead.is_gone, dead.going) == (True, done.unread_gone)
    assert done.unread_gone > 0
    assert "that group dead did not acknowledge" in caplog.text
    never = broker.Retention(keep_s=0, gone_after_s=None)
    send(store, range(60, 90))
    take(store, "alive", 30)
    assert store.retain(never, now_ms=later_ms()).unread_gone == 0


def test_what_nobody_consumes_waits_as_long_for_a_group(store: broker.LiveStore) -> None:
    """Then it goes by age, counted. What all groups that are gone have read is not waited for."""
    send(store, range(60))
    kept = store.retain(NOW, now_ms=later_ms())
    assert (kept.segments, [pin.kind for pin in kept.pins]) == ([], ["topic"])
    take(store, "dead", 30)
    make_gone(store, "dead")
    done = store.retain(NOW, now_ms=later_ms())
    assert done.segments
    assert done.unread_gone == 0
    assert take(store, "dead", 99) == list(range(30, 60))
    send(store, range(60, 120), "audit")
    gone = store.retain(NOW, now_ms=later_ms() + WEEK_MS)
    (audit,) = [one for one in gone.unread if one.topic == "audit"]
    assert 0 < audit.going < audit.waiting == 60


def test_delayed_messages_and_retries_stay(store: broker.LiveStore) -> None:
    """What waits for its time is delivered in the end, and what comes back to a group comes back."""
    store.append(broker.Message("later", b"0"), extra_properties={"DELAY": "1"})
    send(store, range(1, 2))
    with store.consumer("billing", "orders") as consumer:
        message = consumer.receive(1)
        assert message is not None
        consumer.retry(message, delay_level=1)
    send(store, range(2, 60))
    take(store, "billing", 58)
    done = store.retain(NOW, now_ms=later_ms())
    assert done.begin == 0
    assert "delay" in {pin.kind for pin in done.pins}
    with store.consumer("mail", "later") as mail, store.consumer("billing", "orders") as billing:
        again, late = billing.receive(15), mail.receive(15)
        assert again is not None
        assert late is not None
        assert (again.body[:1], late.body) == (b"1", b"0")
        store.retain(NOW, now_ms=later_ms())
        assert store.record(again.commitlog_offset) is not None
        billing.ack(again)
        mail.ack(late)
    assert store.retain(NOW, now_ms=later_ms()).begin > 0


def test_delayed_messages_that_retention_removed_hold_up_none_behind_them(
    tmp_path: Path, checkback_clock: FakeClock
) -> None:
    """However many they are, in one level: more than are looked at together."""
    layout = dataclasses.replace(TINY, consume_queue_bytes=4000)  # all in one file of the queue, which stays
    with broker.open(tmp_path / "store", layout=layout, sync="os") as store:
        for _ in range(80):
            store.append(broker.Message("orders", b"early"), extra_properties={"DELAY": "1"})
        send(store, range(20), "audit")
        gone = store.retain(broker.Retention(keep_s=0, even_unread=True), now_ms=later_ms())
        assert store.queue_range("SCHEDULE_TOPIC_XXXX", 0) == (80, 80)
        assert gone.unread_gone >= 80
        store.append(broker.Message("orders", b"late"), extra_properties={"DELAY": "1"})
        checkback_clock.advance(2)
        with store.consumer("billing", "orders") as consumer:
            late = consumer.receive(5)
            assert late is not None
            assert late.body == b"late"


def test_dead_letters_wait_for_a_person(store: broker.LiveStore) -> None:
    """As long as what nobody consumes."""
    send(store, range(1))
    with store.consumer("billing", "orders", max_retries=0) as consumer:
        message = consumer.receive(1)
        assert message is not None
        consumer.retry(message)
    send(store, range(1, 60))
    take(store, "billing", 59)
    done = store.retain(NOW, now_ms=later_ms())
    assert "%DLQ%billing" in done.pins[0].text
    assert store.queue_range("%DLQ%billing", 0) == (0, 1)
    assert store.message("%DLQ%billing", 0, 0) is not None
    assert store.retain(NOW, now_ms=later_ms() + WEEK_MS).begin > 0


def test_a_group_that_only_rocketmq_knows_is_waited_for(tmp_path: Path) -> None:
    """By config/consumerOffset.json; the cells are lost."""
    path = tmp_path / "store"
    with broker.open(path, layout=TINY, sync="os") as store:
        send(store, range(60))
        take(store, "billing", 20)
    (path / "checkback/consumers").unlink()
    with broker.open(path, sync="os") as store:
        done = store.retain(NOW, now_ms=later_ms())
        assert done.segments
        assert take(store, "billing", 99) == list(range(20, 60))


def test_the_background_removes_what_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process that has a retention, without a call; one without it removes nothing."""
    monkeypatch.setattr("broker.retainer.RETAIN_EVERY_S", 0.05)
    monkeypatch.setattr("broker.store.maintain.background.RETAIN_LOOK_S", 0.05)
    path = tmp_path / "store"
    with broker.open(path, layout=TINY, sync="os") as store:
        send(store, range(60))
        take(store, "billing", 30)
        time.sleep(0.3)
        assert store.begin_offset == 0
        assert store.retention is None
        with pytest.raises(broker.BrokerError, match="nothing says what may go"):
            store.retain()
    with broker.open(path, sync="os", retention=NOW) as store:
        deadline = time.monotonic() + 10
        while not store.retention_history():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert take(store, "billing", 99) == list(range(30, 60))
    assert RETAIN_EVERY_S == 10


def test_processes_with_different_settings_do_not_fight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The most careful counts while it has the store open, and no longer, however it ends."""
    monkeypatch.setattr("broker.store.maintain.background.RETAIN_LOOK_S", 1000)  # rounds are begun here alone
    path = tmp_path / "store"
    program = (
        "import broker, sys, time\n"
        f"store = broker.open({str(path)!r}, retention=broker.Retention(keep_s=3600))\n"
        "print('open', flush=True)\n"
        "time.sleep(60)\n"
    )
    with broker.open(path, layout=TINY, sync="os", retention=NOW) as store:
        send(store, range(60))
        take(store, "billing", 60)
        with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as other:
            assert other.stdout is not None
            assert other.stdout.readline() == b"open\n"
            assert store.retention == broker.Retention(keep_s=3600)
            assert store.retain(now_ms=later_ms()).due == 0
            other.kill()
        assert store.retention == NOW
        assert store.retain(now_ms=later_ms()).segments
    assert registered(store.writer.disk, store.writer.paths) == []


# Full disks


def test_a_full_disk_is_freed_of_what_is_read_and_of_nothing_else(small: Path) -> None:
    """StoreFull names the verb; retention works without a byte free, and what is unread is there afterwards."""
    layout = StoreLayout(256 << 10, 60_000, 24_000, 20_000, 100, 8000)
    with broker.open(small / "store", layout=layout) as store:
        body = bytes(30_000)
        for number in range(100):
            store.append(broker.Message("orders", b"%4d" % number + body))
        take_bodies = []
        with store.consumer("billing", "orders") as consumer:
            for _ in range(60):
                message = consumer.receive(1)
                assert message is not None
                take_bodies.append(int(message.body[:4]))
                consumer.ack(message)
        filler = fill_disk(small)
        with pytest.raises(StoreFull) as caught:  # noqa: PT012 - at which one depends on the file system
            for number in itertools.count(100):
                store.append(broker.Message("orders", b"%4d" % number + body))
        assert f"checkback retain {small / 'store'}" in str(caught.value)
        last = number
        done = store.retain(broker.Retention(free_bytes=1 << 20), now_ms=later_ms())
        assert len(done.segments) >= 4
        assert done.unread_gone == 0
        for number in range(last, last + 10):
            store.append(broker.Message("orders", b"%4d" % number + body))
        found = []
        with store.consumer("billing", "orders") as consumer:
            while (message := consumer.receive(0.5)) is not None:
                found.append(int(message.body[:4]))
                consumer.ack(message)
    assert take_bodies + found == list(range(last + 10))
    filler.unlink()
    assert verify(small / "store").ok


@pytest.mark.timeout(300)
def test_the_verb_makes_room_on_a_disk_without_a_free_block(small: Path) -> None:
    """The store is closed, and opening it takes a block: the verb has some in reserve."""
    layout = StoreLayout(256 << 10, 60_000, 24_000, 20_000, 100, 8000)
    path = small / "store"
    with broker.open(path, layout=layout) as store:
        for number in range(60):
            store.append(broker.Message("orders", b"%4d" % number + bytes(30_000)))
        take(store, "billing", 0)
        with store.consumer("billing", "orders") as consumer:
            for _ in range(40):
                message = consumer.receive(1)
                assert message is not None
                consumer.ack(message)
    fill_disk(small)
    command = [sys.executable, "-m", "recovery.cli.app", "retain", str(path), "--keep", "0s"]
    seen = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (seen.returncode, "May go: " in seen.stdout) == (1, True), seen.stderr
    done = subprocess.run([*command, "--apply"], capture_output=True, text=True, check=False)
    assert (done.returncode, "Removed " in done.stdout) == (0, True), done.stderr
    with broker.open(path) as store, store.consumer("billing", "orders") as consumer:
        message = consumer.receive(1)
        assert message is not None
        assert int(message.body[:4]) == 40


# Kills and power cuts


@pytest.mark.timeout(300)
def test_nothing_unread_is_lost_whoever_is_killed(tmp_path: Path) -> None:
    """A process sends, acknowledges and removes; killed at random, again and again."""
    kill_again_and_again(tmp_path / "store", lives=6)


@pytest.mark.timeout(300)
def test_a_power_cut_at_any_step_loses_nothing_unread(tmp_path: Path) -> None:
    """The position may be an older one afterwards: then the group goes on where the log begins."""
    cut_the_power(tmp_path, every=23)


# Anything, in any order


@pytest.mark.timeout(300)
@settings(max_examples=6, deadline=None)
@given(STEPS)
def test_whatever_happens_nothing_unread_of_a_living_group_disappears(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    """Sends, acknowledgements out of order, rounds by age and by size, the store opened anew."""
    do_anything(tmp_path_factory.mktemp("any") / "store", steps)


def test_the_clock_that_says_less_counts(tmp_path: Path) -> None:
    """A wall clock that is set forward makes nobody look gone; after another boot it is all there is."""
    table_dir = tmp_path / "own"
    table_dir.mkdir()
    disk = broker.store.disk.files.Disk()
    table = ConsumerTable(disk, str(table_dir), (1, 1), lambda _: None)
    with table.lock:
        cell = table.make("billing", "orders", -1, 0)
    assert table.idle_ms(cell, 10, 10) is None
    table.see(cell, 1_000_000, 500)
    assert table.idle_ms(cell, 9_000_000_000, 700) == 200
    assert table.idle_ms(cell, 900_000, 700) == 0
    table.close()
    table = ConsumerTable(disk, str(table_dir), (2, 2), lambda _: None)
    assert table.idle_ms(cell, 1_005_000, 3) == 5000
    table.close()


def test_a_retainer_of_a_closed_store_is_closed(store: broker.LiveStore) -> None:
    """Its part of the consumers' table goes with it."""
    send(store, range(5))
    take(store, "billing", 5)
    retainer = Retainer(store)
    retainer.run(NOW, dry_run=True)
    assert retainer._positions is not None
    retainer.close()
    retainer.close()
    with pytest.raises(ValueError, match="released"):
        retainer._positions.cells.position(0)
