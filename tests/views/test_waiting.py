"""What waits in stores of real brokers: timers, and messages that were popped and not acknowledged."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import broker
from broker.format import properties as names
from broker.format.commitlog import encode, make_record
from broker.format.kinds.timer import DELETES, ROLLED, TimerCheck, TimerSlot, TimerUnit
from broker.format.topics import REVIVE_PREFIX, TIMER_TOPIC
from broker.store.write.pending_record import LOCAL_HOST
from recovery.verify.verifier import verify
from recovery.views.info import look
from recovery.views.messages import waiting as waiting_messages
from recovery.views.messages.waiting import popped, timers
from tests.cli.command import command
from tests.repair.popping import put_popped
from tests.spark.inline import comparable, verify_inline

# What the client of the golden store said that it did not acknowledge: queue, queue offset.
NOT_ACKNOWLEDGED = {(0, 5), (0, 7), (0, 9), (0, 16), (0, 18), (1, 0), (1, 2), (1, 4), (1, 10), (1, 12), (1, 14)}


@pytest.fixture
def timed(golden_copy: Callable[[str], Path], tmp_path: Path) -> Path:
    """A store with sixteen messages in its timer wheel, among them delayed half messages."""
    (tmp_path / "kinds").mkdir()
    return golden_copy("kinds/rocketmq-5.3.3-timed-halves")


def test_what_is_due_when(timed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    waiting = timers(str(timed))
    assert len(waiting) == 16
    assert [one.due_ms for one in waiting] == sorted(one.due_ms for one in waiting)
    assert {one.topic for one in waiting} == {"Plain", "RMQ_SYS_TRANS_HALF_TOPIC"}
    assert len({one.unique_key for one in waiting}) == 16
    counted = look(timed).timers
    assert counted is not None
    assert (counted.waiting, counted.first_due_ms, counted.last_due_ms) == (16, waiting[0].due_ms, waiting[-1].due_ms)
    ran = command(capsys, "dump", timed, "timers", "--json", "--limit", "3")
    assert [one["due_ms"] for one in json.loads(ran.out)] == [one.due_ms for one in waiting[:3]]
    assert command(capsys, "info", timed).out.count("timers        16 messages, due 2026-11-22 06:10:55.000") == 1


def test_what_its_client_recalled_does_not_wait(timed: Path) -> None:
    """A broker of 5.4 puts a second unit into the slot, which takes the first back; here it is made by its bit."""
    wheel, log = timed / "timerwheel", timed / "timerlog" / f"{0:020}"
    before, counted = timers(str(timed)), look(timed).timers
    at = _slots(timed)[0]
    slot = TimerSlot.unpack_from(wheel.read_bytes(), at)
    unit = TimerUnit.unpack_from(log.read_bytes(), slot.last_position)
    recalled = next(one for one in before if one.commitlog_offset == unit.commitlog_offset)
    properties = names.encode({names.TIMER_DEL_UNIQKEY: recalled.unique_key, names.TIMER_OUT_MS: str(unit.due_ms)})
    end = len(log.read_bytes().rstrip(b"\0")) + 100
    place = (timed / "commitlog" / f"{0:020}").read_bytes().rstrip(b"\0")
    record = make_record(
        TIMER_TOPIC, b"0", properties, born_host=LOCAL_HOST, store_host=LOCAL_HOST, born_timestamp_ms=1,
        store_timestamp_ms=7, commitlog_offset=len(place) + 8,
    )  # fmt: skip
    _overwrite(timed / "commitlog" / f"{0:020}", len(place) + 8, encode(record))
    takes_back = replace(
        unit, previous_position=slot.last_position, magic=unit.magic | DELETES, commitlog_offset=len(place) + 8
    )
    _overwrite(log, end, takes_back.pack())
    _overwrite(wheel, at, replace(slot, last_position=end, count=slot.count - 1).pack())
    assert timers(str(timed)) == [one for one in before if one != recalled]
    assert (look(timed).timers, counted) != (None, None)
    assert look(timed).timers.waiting == counted.waiting - 1  # type: ignore[union-attr]


def test_of_the_snapshots_of_a_wheel_the_newest_counts(timed: Path) -> None:
    """With timerWheelSnapshotFlush a broker of 5.4 keeps the wheel in memory: its messages were called missing."""
    wheel, before = timed / "timerwheel", timers(str(timed))
    content = wheel.read_bytes()
    (timed / "timerwheel.7").write_bytes(bytes(len(content)))
    assert timers(str(timed)) == before, "an old one of a broker that writes none any more"
    wheel.rename(timed / "timerwheel.1924")
    wheel.write_bytes(bytes(len(content)))
    (timed / "timerwheel.2000.tmp").touch()
    assert timers(str(timed)) == before
    report = verify(timed)
    assert not report.findings.counts["timer-missing"] + report.findings.counts["timer-orphan"]
    assert not report.not_judged


@pytest.mark.parametrize("number", ["\u00b2", "9" * 5000])
def test_a_time_that_is_not_a_number_counts_as_none(timed: Path, monkeypatch: pytest.MonkeyPatch, number: str) -> None:
    """A client may state any text."""
    said = names.encode({names.TIMER_OUT_MS: number, names.REAL_QID: number, names.REAL_TOPIC: "orders"})
    record = make_record(
        TIMER_TOPIC, b"x", said, born_host=LOCAL_HOST, store_host=LOCAL_HOST, born_timestamp_ms=1, store_timestamp_ms=7
    )
    monkeypatch.setattr(waiting_messages, "_timed_records", lambda _store: iter([(False, record)]))
    assert [(one.due_ms, one.topic, one.queue_id) for one in timers(str(timed))] == [(0, "orders", 0)]


def test_what_was_popped_and_not_acknowledged(
    golden_copy: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "kinds").mkdir()
    path = golden_copy("kinds/rocketmq-5.3.3-popped")
    batches = popped(str(path))
    assert {(one.queue_id, offset) for one in batches for offset in one.queue_offsets} == NOT_ACKNOWLEDGED
    assert {(one.topic, one.group, one.visible_ms - one.popped_ms) for one in batches} == {("Plain", "pop_g", 10_000)}
    ran = command(capsys, "dump", path, "popped")
    assert ran.out.count("visible again") == len(batches)
    assert verify(path).ok


@pytest.mark.parametrize(
    ("tag", "note"),
    [
        *(("ck", note) for note in (b'{"so":"x"}', b'{"n":"x"}', b'{"q":[]}', b'{"t":[]}', b'{"d":5}', b'{"d":["a"]}')),
        *(("ck", note) for note in (b'{"n":1e400}', b'{"n":50000000}', b'{"bm":true,"n":1}', b'{"pt":1.5,"n":1}')),
        *(("ack", note) for note in (b'{"aol":5}', b'{"aol":[[1]]}', b'{"ao":[1]}', b"[]")),
    ],
)
def test_a_note_of_pop_that_no_broker_wrote_is_none(tmp_path: Path, tag: str, note: bytes) -> None:
    """Any client may send to the topic of the notes: one of another shape was a traceback, or 50,000,000 messages."""
    said = {"so": 5, "bm": 2, "n": 3, "pt": 1, "it": 2, "q": 1, "t": "orders", "c": "billing", "d": None}
    with broker.open(tmp_path / "store") as store:
        store.append(broker.Message(f"{REVIVE_PREFIX}Cluster", json.dumps(said).encode(), tag="ck"))
        store.append(broker.Message(f"{REVIVE_PREFIX}Cluster", note, tag=tag))
    (batch,) = popped(str(tmp_path / "store"))
    assert (batch.topic, batch.queue_id, batch.group, batch.queue_offsets) == ("orders", 1, "billing", (5, 7))
    assert (batch.popped_ms, batch.visible_ms) == (1, 3)


def test_what_the_key_value_service_of_pop_knows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With popConsumerKVServiceEnable of 5.4 and later nothing of it is in the log: it was not listed."""
    with broker.open(tmp_path / "store"):
        pass
    path = tmp_path / "store"
    put_popped(path, 7, 9)
    (batch,) = popped(str(path))
    assert (batch.topic, batch.queue_id, batch.group, batch.queue_offsets) == ("Plain", 1, "pop_g", (7, 9))
    assert (batch.visible_ms - batch.popped_ms, batch.commitlog_offset) == (30_000, None)
    assert "queue offsets 7, 9" in command(capsys, "dump", path, "popped").out
    put_popped(path, 11, without=("offset",))
    ran = command(capsys, "dump", path, "popped")
    assert ran.code == 4
    assert f"{path}/kvStore: a row of popState is not what RocketMQ 5.4 and 5.5 write" in ran.err


def test_what_is_due_later_than_the_wheel_says_or_is_not_in_it_is_counted_apart(
    timed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A message beyond the wheel's span has a place in it all the same: where the broker looks at it again."""
    last = max(timers(str(timed)), key=lambda one: one.due_ms)
    log = timed / "timerlog" / f"{0:020}"
    raw = log.read_bytes()
    units = range(0, len(raw) - TimerUnit.SIZE + 1, TimerUnit.SIZE)
    at = next(at for at in units if TimerUnit.unpack_from(raw, at).commitlog_offset == last.commitlog_offset)
    rolled = replace(TimerUnit.unpack_from(raw, at), magic=TimerUnit.unpack_from(raw, at).magic | ROLLED)
    _overwrite(log, at, rolled.pack())
    counted = look(timed).timers
    assert counted is not None
    assert (counted.waiting, counted.rolled, counted.not_in_wheel) == (16, 1, 0)
    assert counted.last_due_ms < last.due_ms
    assert "; 1 message put into the wheel again before due\n" in command(capsys, "info", timed).out
    place = timed / "config" / "timercheck"
    check = TimerCheck.unpack_from(place.read_bytes())
    place.write_bytes(replace(check, queue_offset=check.queue_offset - 3).pack())
    (timed / "timerwheel").write_bytes(b"")
    ran = command(capsys, "info", timed)
    assert "timers        3 records of rmq_sys_wheel_timer not in the wheel yet\n" in ran.out


def test_what_takes_back_and_is_rolled_alone_makes_no_count_below_zero(
    timed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message was put into the wheel again since, and is not rolled any more: info spoke of -1 messages."""
    log = timed / "timerlog" / f"{0:020}"
    waiting = {one.commitlog_offset for one in timers(str(timed))}
    raw = log.read_bytes()
    units = range(0, len(raw) - TimerUnit.SIZE + 1, TimerUnit.SIZE)
    at = next(at for at in units if TimerUnit.unpack_from(raw, at).commitlog_offset in waiting)
    unit = TimerUnit.unpack_from(raw, at)
    _overwrite(log, at, replace(unit, magic=unit.magic | ROLLED | DELETES).pack())
    counted = look(timed).timers
    assert counted is not None
    assert (counted.waiting, counted.rolled) == (15, 0)
    assert "timers        15 messages, due " in command(capsys, "info", timed).out


def _slots(path: Path) -> list[int]:
    """Where the slots in use lie that are not read yet."""
    raw = (path / "timerwheel").read_bytes()
    read_ms = TimerCheck.unpack_from((path / "config" / "timercheck").read_bytes()).read_ms
    return [
        at for at in range(0, len(raw), TimerSlot.SIZE)
        if TimerSlot.unpack_from(raw, at).moment * 1000 >= read_ms + 60_000
    ]  # fmt: skip


def _overwrite(file: Path, at: int, raw: bytes) -> None:
    with file.open("r+b") as opened:
        opened.seek(at)
        opened.write(raw)


def test_damage_of_the_wheel_is_found_by_both_engines(timed: Path) -> None:
    before = verify(timed).findings.counts
    assert not before["timer-missing"] + before["timer-orphan"]
    at = _slots(timed)[0]
    wheel, log = timed / "timerwheel", timed / "timerlog" / f"{0:020}"
    slot = TimerSlot.unpack_from(wheel.read_bytes(), at)
    unit = log.read_bytes()[slot.last_position : slot.last_position + TimerUnit.SIZE]
    for file, where, raw, counts in (
        (wheel, at, bytes(TimerSlot.SIZE), {"timer-missing": slot.count}),
        (wheel, at, TimerSlot(slot.moment + 1, slot.first_position, slot.last_position, slot.count, 0).pack(),
         {"timer-missing": slot.count, "timer-orphan": 1}),
        (wheel, at + TimerSlot.OFFSET["count"], b"\0\0\0\7", {"timer-orphan": 1}),
        (log, slot.last_position + TimerUnit.OFFSET["commitlog_offset"], bytes(8),
         {"timer-missing": 1, "timer-orphan": 1}),
    ):  # fmt: skip
        _overwrite(file, where, raw)
        report = verify(timed)
        assert dict(report.findings.counts - before) == counts
        assert comparable(verify_inline(str(timed), 4000)) == comparable(report)
        _overwrite(wheel, at, slot.pack())
        _overwrite(log, slot.last_position, unit)
    wheel.unlink()
    assert verify(timed).findings.counts["timer-missing"] > 5
    (timed / "abort").touch()
    assert not verify(timed).findings.counts["timer-missing"], "a killed broker makes its wheel again"


def test_a_chain_that_does_not_end_is_one_finding(timed: Path) -> None:
    at = _slots(timed)[0]
    slot = TimerSlot.unpack_from((timed / "timerwheel").read_bytes(), at)
    log = timed / "timerlog" / f"{0:020}"
    place = slot.last_position + TimerUnit.OFFSET["previous_position"]
    _overwrite(timed / "timerwheel", at + TimerSlot.OFFSET["first_position"], (0).to_bytes(8, "big"))
    _overwrite(log, place, slot.last_position.to_bytes(8, "big"))
    assert verify(timed).findings.counts["timer-orphan"] == 1
    assert len(timers(str(timed))) == 16
