"""Messages that wait in a store that is taken over: they come when its broker would have sent them, or stay with it."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

import broker
from broker.errors import StoreError
from broker.format.commitlog import encode, make_record
from broker.format.consumequeue import Unit
from broker.format.kinds.timer import TimerCheck
from broker.format.properties import encode as encode_properties
from broker.format.topics import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from broker.store.disk.files import Disk
from broker.store.disk.paths import Paths
from broker.store.recover.due_times import BrokerDueTimes
from recovery.jobs import tasks
from recovery.repair import crash
from recovery.verify.verifier import verify
from tests.cli.command import command
from tests.rebuild.derived_files import on_disk
from tests.repair.popping import put_popped
from tests.scan.logs import Log, Wanted
from tests.store.build import HOST

FIRST = f"{0:020}"


def take_over(path: Path) -> None:
    crash.apply(crash.plan(crash.survey(path)), broker_is_stopped=True, still_s=0)


def store_with_delayed_messages(path: Path, delays: dict[int, int]) -> None:
    """A store of a broker with other delays of its levels, by level; each has two messages, one is dispatched."""
    log, stored_ms, units = Log(4096), int(time.time() * 1000) - 60_000, dict[int, bytes]()
    for number in range(2):
        for level, delay_ms in delays.items():
            at = log.append(Delayed(level, number, stored_ms))
            units.setdefault(level, Unit(at, len(log.records[at]), stored_ms + delay_ms).pack())
    log.write(path)
    for level, unit in units.items():
        queue = path / "consumequeue" / SCHEDULE_TOPIC / str(level - 1)
        queue.mkdir(parents=True)
        (queue / FIRST).write_bytes(unit.ljust(200, b"\0"))
    (path / "config").mkdir()
    queues = {"readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
    topics = {name: {"topicName": name, **queues} for name in ("Orders", HALF_TOPIC)}
    (path / "config" / "topics.json").write_text(json.dumps({"topicConfigTable": topics}))


@dataclass(frozen=True)
class Delayed:
    """A record that waits in the schedule topic."""

    level: int
    number: int
    stored_ms: int

    def at(self, offset: int, _segment_end: int) -> bytes:
        said = {"REAL_TOPIC": "Orders", "REAL_QID": "0", "DELAY": str(self.level), "KEYS": str(self.level)}
        record = make_record(
            SCHEDULE_TOPIC, b"later", encode_properties(said), born_host=HOST, store_host=HOST, queue_id=self.level - 1,
            queue_offset=self.number, commitlog_offset=offset, born_timestamp_ms=self.stored_ms,
            store_timestamp_ms=self.stored_ms,
        )  # fmt: skip
        return encode(record)


def test_delayed_messages_keep_the_delays_of_their_broker(tmp_path: Path) -> None:
    """As its messageDelayLevel said: a message of level 2 came after 5 s in place of two hours."""
    path = tmp_path / "store"
    store_with_delayed_messages(path, {2: 7_200_000, 18: 1000})
    take_over(path)
    with broker.open(path) as store, store.consumer("shop", "Orders") as consumer:
        received = [consumer.receive(timeout_s=20) for _ in range(2)]
        assert [list(one.keys) for one in received if one is not None] == [["18"], ["18"]]
        assert consumer.receive_now() is None
    assert verify(path).findings.counts["queue-missing"] == 0


DUE_MS = 1_900_000_000_000
TIMED = Wanted(
    topic=TIMER_TOPIC,
    properties=encode_properties({"TIMER_OUT_MS": str(DUE_MS), "REAL_TOPIC": "Orders", "UNIQ_KEY": "7F"}),
)


def put_timed_message(path: Path, at: int, size: int, file_bytes: int) -> None:
    """What a broker keeps of a record that is on its way into the timer wheel."""
    queue = path / "consumequeue" / TIMER_TOPIC / "0"
    queue.mkdir(parents=True)
    (queue / FIRST).write_bytes(Unit(at, size, 0).pack().ljust(file_bytes, b"\0"))
    (path / "config").mkdir(exist_ok=True)
    (path / "config" / "timercheck").write_bytes(TimerCheck(DUE_MS - 1000, 0, 0, 0, 0, 0, 0).pack().ljust(4096, b"\0"))


def assert_left_to_its_broker(path: Path) -> None:
    before = on_disk(path)
    with pytest.raises(
        StoreError, match=r"1 messages wait in the timer wheel, the last until 2030-03-17.*dump .* timers"
    ):
        take_over(path)
    assert on_disk(path) == before


def test_messages_in_the_timer_wheel_are_left_to_their_broker(tmp_path: Path) -> None:
    """Taken over, the store kept them, and nobody delivered them when they were due."""
    log = Log(4096)
    at = log.append(TIMED)
    log.write(tmp_path / "store")
    put_timed_message(tmp_path / "store", at, len(log.records[at]), 200)
    assert_left_to_its_broker(tmp_path / "store")


def test_without_apply_it_says_that_it_would_refuse(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It named the command that is refused; in Airflow a person was asked, and the run was red."""
    log, path = Log(4096), tmp_path / "store"
    at = log.append(TIMED)
    log.write(path)
    put_timed_message(path, at, len(log.records[at]), 200)
    ran = command(capsys, "recover", path)
    assert (ran.code, ran.out.count("--apply would refuse: "), "wait in the timer wheel" in ran.out) == (1, 1, True)
    (path / "abort").touch()
    with pytest.raises(StoreError, match="wait in the timer wheel"):
        tasks.plan_recovery(str(path), take_over=True)


def test_a_store_of_ours_with_which_a_broker_went_on_is_no_exception(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with broker.open(path, transactions="half-op") as store:
        store.append(broker.Message("Orders", b"now"))
    at = crash.survey(path).tail.end
    raw = TIMED.at(at, 1 << 40)
    with (path / "commitlog" / FIRST).open("r+b") as segment:
        segment.seek(at)
        segment.write(raw)
    put_timed_message(path, at, len(raw), (path / "consumequeue" / "Orders" / "0" / FIRST).stat().st_size)
    assert_left_to_its_broker(path)


def test_what_was_popped_and_is_not_acknowledged_is_left_to_its_broker(
    golden_copy: Callable[[str], Path], tmp_path: Path
) -> None:
    """The position of its group is behind it: no consumer of checkback gets it again."""
    (tmp_path / "kinds").mkdir()
    path = golden_copy("kinds/rocketmq-5.3.3-popped")
    with pytest.raises(StoreError, match=r"11 messages were popped, and are not acknowledged.*dump .* popped"):
        take_over(path)


def test_what_the_key_value_service_of_pop_knows_is_left_to_its_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With popConsumerKVServiceEnable: a store of 5.5.0 was taken over, and thirteen messages came to no consumer."""
    path = tmp_path / "store"
    store_with_delayed_messages(path, {2: 7_200_000})
    put_popped(path, 7, 9)
    before = on_disk(path)
    with pytest.raises(StoreError, match=r"2 messages were popped, and are not acknowledged.*dump .* popped"):
        take_over(path)
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    with pytest.raises(StoreError, match=r"kvStore is a RocksDB: reading it takes the package rocksdict"):
        take_over(path)
    assert on_disk(path) == before


@pytest.mark.parametrize("topic", ["%RETRY%shop_Orders", "%RETRY%shop+Orders"])
def test_what_waits_to_be_popped_again_is_left_to_its_broker(tmp_path: Path, topic: str) -> None:
    """In a topic that no consumer of checkback reads: of a store of 5.3.3 nine messages came to nobody."""
    path, log = tmp_path / "store", Log(4096)
    units = {
        name: [log.append(Wanted(topic=name, queue_offset=number)) for number in range(2)] for name in ("Orders", topic)
    }
    log.write(path)
    for name, places in units.items():
        queue = path / "consumequeue" / name / "0"
        queue.mkdir(parents=True)
        raw = b"".join(Unit(at, len(log.records[at]), 0).pack() for at in places)
        (queue / FIRST).write_bytes(raw.ljust(200, b"\0"))
    (path / "config").mkdir()
    positions = path / "config" / "consumerOffset.json"
    positions.write_text(json.dumps({"offsetTable": {"Orders@shop": {"0": 2}, f"{topic}@shop": {"0": 1}}}))
    before = on_disk(path)
    with pytest.raises(StoreError, match=r"1 messages that group shop popped and did not acknowledge wait in %RETRY%"):
        take_over(path)
    assert on_disk(path) == before
    positions.write_text(json.dumps({"offsetTable": {"Orders@shop": {"0": 2}, f"{topic}@shop": {"0": 2}}}))
    take_over(path)


def test_a_flipped_bit_in_a_unit_makes_no_delay(tmp_path: Path) -> None:
    """In a derived file: by 2^34 ms a message would come half a year late."""
    path = tmp_path / "store"
    with broker.open(path) as store:
        store.append(broker.Message("Orders", b"later"), extra_properties={"DELAY": "1"})
    unit = next((path / "consumequeue" / SCHEDULE_TOPIC / "0").iterdir())
    raw = bytearray(unit.read_bytes())
    raw[15] ^= 1 << 2  # bit 34 of the time at bytes 12 to 19
    unit.write_bytes(raw)
    with broker.open(path) as store, store.consumer("shop", "Orders") as consumer:
        assert consumer.receive(timeout_s=20) is not None


@pytest.mark.parametrize(("state", "expected"), [("taken over", 9_000), ("replaced", None)])
def test_units_that_a_rebuild_kept_aside_are_not_believed(tmp_path: Path, state: str, expected: int | None) -> None:
    """They may have been exchanged since they were wrong."""
    paths = Paths(str(tmp_path))
    kept = Path(paths.replaced) / "one"
    queue = kept / "consumequeue" / SCHEDULE_TOPIC / "1"
    queue.mkdir(parents=True)
    (queue / FIRST).write_bytes(Unit(64, 100, 9_000).pack().ljust(4000, b"\0"))
    (kept / "manifest.json").write_text(json.dumps({"state": state}))
    assert BrokerDueTimes(Disk(), paths).due_ms(1, 0, 64, 4_000) == expected
