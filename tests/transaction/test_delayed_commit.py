"""Delayed transactions, which RocketMQ lacks: the delay counts from the commit. And in order: that of the commits."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

import broker
from broker.format.sysflag import TransactionType
from broker.live import LiveStore, open_live
from broker.store.read.layout import StoreLayout
from broker.store.write.pending_record import draft
from broker.testing.crash_disk import CrashDisk, Crashed, FakeClock
from broker.transaction.events import BY, WHY
from recovery.rebuild.rebuilder import rebuild
from recovery.torture.second_reader import COMMIT, HALF_TOPIC, PREPARED, assert_one_truth, records
from recovery.transactions.in_doubt import Pending
from recovery.verify.verifier import verify

pytestmark = pytest.mark.usefixtures("each_engine")

SMALL = StoreLayout(1 << 18, 6000, 2400, 2000, 100, 400)
SCHEDULE = "SCHEDULE_TOPIC_XXXX"
LEVEL_1_MS, LEVEL_3_MS = 1_000, 10_000
WAIT_S = 20
TABLES = {"state-table": ["transaction"], "half-op": ["checkback/halfstates"]}


def opened(path: Path, **options: object) -> LiveStore:
    return broker.open(path / "store", layout=SMALL, **options)  # type: ignore[call-overload, no-any-return]


def prepare(store: LiveStore, text: str = "late", *, level: int = 3, topic: str = "orders") -> broker.Half:
    message = broker.Message(topic, text.encode(), tag="new", keys=[f"key-{text[:9]}"])
    return store.transactions.prepare(message, "shop", queue_id=2, extra_properties={"DELAY": str(level)})


def waiting(store: LiveStore, level: int = 3) -> tuple[int, int]:
    """What the queue of a level holds."""
    return store.queue_range(SCHEDULE, level - 1)


def clean(path: Path) -> dict[str, int]:
    """Verification finds nothing, and a rebuild makes the same files."""
    report = verify(path / "store")
    assert report.ok, [str(finding) for finding in report.findings][:4]
    assert rebuild(path / "store").differences == ()
    return report.transactions


def test_the_delay_counts_from_the_commit(
    tmp_path: Path, checkback_clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However old the half message is; delivered once, as it was sent, by a record that is no end."""
    for module in ("appender", "fast_append"):  # records follow the clock, too
        monkeypatch.setattr(f"broker.store.write.{module}._now_ns", checkback_clock.time_ns)
    with opened(tmp_path, sync="os") as store, store.consumer("billing", "orders") as consumer:
        half = prepare(store)
        checkback_clock.advance(3600)
        ended = store.transactions.commit(half)
        assert (ended.state, ended.queue_offset) == (broker.TransactionState.COMMITTED, None)
        assert waiting(store) == (0, 1)
        checkback_clock.advance(LEVEL_3_MS / 1000 - 1)
        assert consumer.receive(0.2) is None
        checkback_clock.advance(2)
        got = consumer.receive(WAIT_S)
        assert got is not None
        assert (got.topic, got.queue_id, got.body, got.tag, got.keys) == ("orders", 2, b"late", "new", ("key-late",))
        assert (got.unique_key, got.transaction_type) == (half.unique_key, TransactionType.NONE)
        assert got.properties["DELAY"] == "3"  # as RocketMQ delivers it
        assert consumer.ack(got)
        checkback_clock.advance(3600)
        assert consumer.receive(0.2) is None
        assert store.queue_end("orders", 2) == 1
    assert clean(tmp_path)["committed"] == 1
    assert_one_truth(tmp_path / "store")


def test_it_needs_no_more_than_its_second_by_the_real_clock(tmp_path: Path) -> None:
    with opened(tmp_path, sync="os") as store, store.consumer("billing", "orders") as consumer:
        half = prepare(store, level=1)
        began_ms = time.time_ns() // 1_000_000
        store.transactions.commit(half)
        got = consumer.receive(WAIT_S)
        assert got is not None
        assert got.store_timestamp_ms >= began_ms + LEVEL_1_MS


def test_the_commit_is_one_record_where_delayed_messages_wait(tmp_path: Path) -> None:
    """In RocketMQ's form: type 8, names the half, says where it belongs; its unit says when it is due."""
    with opened(tmp_path, sync="each") as store:
        half = prepare(store)
        said = {WHY: "the customer called", BY: "operator Zoë"}
        ended = store.transactions.commit(half.reference, extra_properties=said)
        assert ended.commitlog_offset is not None
        record, unit = store.record(ended.commitlog_offset), store.consumequeues.queue(SCHEDULE, 2)
        assert record is not None
        assert unit is not None
        assert (record.topic, record.queue_id, record.transaction_type) == (SCHEDULE, 2, TransactionType.COMMIT)
        assert (record.prepared_transaction_offset, record.body) == (half.commitlog_offset, b"late")
        real = {"REAL_TOPIC": "orders", "REAL_QID": "2", "DELAY": "3", **said}
        assert record.property_map.items() >= real.items()
        found = unit.get(0)
        assert found is not None
        assert found.tags_code == record.store_timestamp_ms + LEVEL_3_MS
        (by_key,) = store.by_key(SCHEDULE, "key-late")
        assert by_key.commitlog_offset == ended.commitlog_offset
    assert clean(tmp_path)["committed"] == 1


def test_a_rollback_of_a_delayed_one_waits_for_nothing(tmp_path: Path, checkback_clock: FakeClock) -> None:
    with opened(tmp_path, sync="os") as store, store.consumer("billing", "orders") as consumer:
        half = prepare(store)
        store.transactions.rollback(half)
        with pytest.raises(broker.AlreadyEnded):
            store.transactions.commit(half)
        assert waiting(store) == (0, 0)
        checkback_clock.advance(3600)
        assert consumer.receive(0.2) is None
    assert clean(tmp_path)["rolled_back"] == 1


def test_the_first_decision_stands_for_delayed_ones_too(tmp_path: Path) -> None:
    """Another opener, which reads the half from the log, and the first of all transactions, at CommitLog offset 0."""
    with opened(tmp_path) as store, opened(tmp_path) as other:
        halves = [prepare(store, f"late-{number}") for number in range(2)]
        other.transactions.commit(halves[0].reference)
        assert store.transactions.commit(halves[0]).again
        with pytest.raises(broker.AlreadyEnded):
            store.transactions.rollback(halves[0])
        assert other.transactions.state(halves[0]) is broker.TransactionState.COMMITTED
        assert store.transactions.in_doubt_slots() == [1]
        store.sync_now()
        assert waiting(store) == (0, 1)
        assert halves[0].commitlog_offset == 0
    left = [one.commitlog_offset for one in Pending(tmp_path / "store", time.time_ns() // 1_000_000)]
    assert left == [halves[1].commitlog_offset]
    counts = clean(tmp_path)
    assert (counts["committed"], counts["in_doubt"]) == (1, 1)


def test_which_topics_take_a_delayed_transaction(tmp_path: Path) -> None:
    """It is a transaction, as in RocketMQ, and it is delayed; it makes the schedule topic that it will need."""
    with opened(tmp_path, sync="os") as store:
        for kind in ("MIXED", "DELAY", "TRANSACTION"):
            store.create_topic(f"T{kind}", message_type=kind)
            prepare(store, topic=f"T{kind}")
        for kind in ("NORMAL", "FIFO"):
            store.create_topic(f"T{kind}", message_type=kind)
            with pytest.raises(broker.MessageRejected, match=f"takes {kind} messages"):
                prepare(store, topic=f"T{kind}")
        with pytest.raises(broker.MessageRejected, match="takes DELAY messages, and this is a TRANSACTION one"):
            store.transactions.prepare(broker.Message("TDELAY", b"x"), "shop")
        schedule = store.topic(SCHEDULE)
        assert schedule is not None
        assert schedule.write_queue_count == 18
        for wrong, why in (({"DELAY": "soon"}, "level"), ({"TIMER_DELAY_MS": "soon"}, "TIMER_DELAY_MS")):
            with pytest.raises(broker.MessageRejected, match=why):
                store.transactions.prepare(broker.Message("TMIXED", b"x"), "shop", extra_properties=wrong)
        assert store.transactions.in_doubt_slots() == [0, 1, 2]


def test_level_0_is_no_delay_and_what_is_above_the_last_is_the_last(tmp_path: Path) -> None:
    with opened(tmp_path, sync="each") as store:
        assert store.transactions.commit(prepare(store, level=0)).queue_offset == 0
        store.transactions.commit(prepare(store, level=99))
        assert store.message("orders", 2, 0) is not None
        assert waiting(store, 18) == (0, 1)
    assert clean(tmp_path)["committed"] == 2


def test_a_half_whose_commit_would_not_fit_is_refused(tmp_path: Path, each_engine: str) -> None:
    """The schedule topic's name is longer than "T", and an op message takes room: what is let in can be committed."""
    end_room = 40 if each_engine == "state-table" else 200
    with opened(tmp_path, sync="os") as store:
        room = store.writer.layout.record_bytes_max
        spare = room - prepare(store, "x", topic="T").size
        longest = 0
        for extra in range(spare - end_room, spare + 1):
            try:
                half = prepare(store, "x" * (1 + extra), topic="T")
            except broker.MessageRejected:
                continue
            longest = extra
            store.transactions.commit(half)
        assert spare - end_room < longest < spare
    clean(tmp_path)


@pytest.mark.parametrize("each_engine", ["state-table"], indirect=True)
def test_properties_alone_do_not_delay_what_another_program_prepared(tmp_path: Path) -> None:
    """3.x delays no transaction: a half that it wrote with DELAY, but without the place, is delivered by its commit."""
    with opened(tmp_path, sync="each") as store:
        half = store.transactions.prepare(broker.Message("orders", b"x"), "shop", extra_properties={"KEYS": "k"})
        plain = store.writer.appender.cached_half(half.commitlog_offset, half.slot)
        assert plain is not None
        assert plain.delay_queue == -1
        said = {"PGROUP": "shop", "TRAN_MSG": "true", "DELAY": "3"}
        made = draft("orders", b"y", said, queue_id=0, born_timestamp_ms=1, kind=TransactionType.PREPARED)
        placed = store.writer.append_one(made)
        foreign = store.transactions.half(placed.commitlog_offset)
        assert store.transactions.commit(foreign).queue_offset == 0
    assert clean(tmp_path)["committed"] == 1


def life(disk: CrashDisk, acknowledged: list[tuple[int, int]]) -> None:
    """Delayed transactions, until the power fails; notes what was acknowledged: the kind, and the half's offset."""
    store = open_live(disk.root / "store", disk=disk, layout=SMALL, sync="each")
    for number in range(3):
        half = prepare(store, f"late-{number}")
        acknowledged.append((PREPARED, half.commitlog_offset))
        if number != 1:
            store.transactions.commit(half)
            acknowledged.append((COMMIT, half.commitlog_offset))
        store.writer.checkpoint()
    store.close()


def judge(image: CrashDisk, acknowledged: list[tuple[int, int]]) -> None:
    """What survived, opened again: a slot says committed exactly when the record is there."""
    store = open_live(image.root / "store", disk=image, layout=SMALL, sync="each")
    log = assert_one_truth(image.root / "store")
    held = {(COMMIT, one.names) for one in log if one.kind == COMMIT}
    held |= {(PREPARED, one.commitlog_offset) for one in log if one.kind == PREPARED or one.topic == HALF_TOPIC}
    assert held >= set(acknowledged)
    in_doubt = [half.commitlog_offset for half in store.transactions.in_doubt()]
    assert in_doubt == [at for kind, at in sorted(held) if kind == PREPARED and (COMMIT, at) not in held]
    assert waiting(store) == (0, sum(kind == COMMIT for kind, _ in held))
    assert verify(image.root / "store").ok
    store.close()


@pytest.mark.sample("half-op-0")
@pytest.mark.parametrize("part", range(2))
def test_a_power_cut_at_any_step_between(tmp_path: Path, part: int) -> None:
    """Replay finds the half of a delayed commit by its target topic: the slot is settled exactly when the record is."""
    disk = CrashDisk(tmp_path / "dry")
    life(disk, [])
    steps, made = disk.steps, [name.startswith("reserve store/commitlog") for name in disk.trace].index(True)
    assert steps - made > 30
    for step in range(made + 3 * part, steps + 1, 6):
        disk = CrashDisk(tmp_path / f"life-{step}", crash_at=step)
        acknowledged: list[tuple[int, int]] = []
        with pytest.raises(Crashed):
            life(disk, acknowledged)
        for seed in (0, 1, step):
            judge(CrashDisk(disk.survivors(seed)), acknowledged)


def test_killed_before_the_slot_was_settled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record is published, its derived files are not: whoever comes next settles the slot."""

    class Killed(BaseException):
        pass

    def dies(*_: object, **__: object) -> None:
        raise Killed

    with opened(tmp_path) as other:
        store = opened(tmp_path)
        half = prepare(store)
        with monkeypatch.context() as patch:
            patch.setattr(store.writer.dispatcher, "dispatch", dies)
            with pytest.raises(Killed):
                store.transactions.commit(half)
        store.writer.lock.release()
        store.writer.append_lock.close()
        assert other.transactions.state(half) is broker.TransactionState.COMMITTED
        assert other.transactions.commit(half).again
        other.sync_now()
        assert waiting(other) == (0, 1)
    assert clean(tmp_path)["committed"] == 1


@pytest.mark.parametrize("each_engine", ["state-table"], indirect=True)
def test_what_the_redo_log_lacks_is_found(tmp_path: Path) -> None:
    """REAL_QID stands in what 4.x and 5.x deliver, too, and those keep no redo log; a delayed transaction has units."""
    with opened(tmp_path, sync="os") as store:
        prepare(store, "first")
        store.transactions.commit(prepare(store))
    redo_log = tmp_path / "store" / "transaction" / "redolog" / ("TRANSACTION_REDOLOG_TOPIC_" + "X" * 4) / "0"
    for path in redo_log.iterdir():
        path.write_bytes(bytes(path.stat().st_size))
    missing = [finding for finding in verify(tmp_path / "store").findings if finding.kind == "redo-missing"]
    assert len(missing) == 3


def test_reopened_and_rebuilt_it_is_the_same(
    tmp_path: Path, checkback_clock: FakeClock, each_engine: str
) -> None:  # fmt: skip
    """Closed before it was due: the next process delivers it. `rebuild --apply` puts the same files in place."""
    with opened(tmp_path, sync="os") as store:
        halves = [prepare(store, f"late-{number}") for number in range(6)]
        for half in halves[:4]:
            store.transactions.commit(half)
        store.transactions.rollback(halves[4])
    for path in ("consumequeue", "index", *TABLES[each_engine]):
        shutil.rmtree(tmp_path / "store" / path)
    (tmp_path / "store" / "checkback" / "checkpoint").unlink()
    assert rebuild(tmp_path / "store", apply=True).applied
    counts = clean(tmp_path)
    assert (counts["committed"], counts["rolled_back"], counts["in_doubt"]) == (4, 1, 1)
    with opened(tmp_path, sync="os") as store, store.consumer("billing", "orders") as consumer:
        store.transactions.commit(halves[5])
        checkback_clock.advance(LEVEL_3_MS / 1000 + 1)
        got = []
        while (message := consumer.receive(0.5)) is not None:
            got.append(message.body.decode())
            consumer.ack(message)
        assert got == [f"late-{number}" for number in (0, 1, 2, 3, 5)]
    assert clean(tmp_path)["committed"] == 5


def test_the_order_is_that_of_the_commits(tmp_path: Path) -> None:
    """One sharding key, one queue: what was prepared first but committed last comes last."""
    with opened(tmp_path, sync="os") as store:
        store.create_topic("orders", message_type="TRANSACTION")
        producer = store.producer("shop", topics=["orders"], resolver=lambda *_: None)
        begun = [producer.begin_transaction() for _ in range(5)]
        for number, transaction in enumerate(begun):
            producer.send(broker.Message("orders", b"%d" % number), transaction, sharding_key="order 4711")
        turns = [3, 0, 4, 2, 1]
        for number in turns:
            begun[number].commit()
        queues = {record.queue_id for record in store.records() if record.topic == "orders"}
        assert len(queues) == 1
        with store.consumer("billing", "orders", ordered=True) as consumer:
            got = []
            for _ in turns:
                message = consumer.receive(WAIT_S)
                assert message is not None
                got.append(int(message.body))
                consumer.ack(message)
        assert got == turns
    log = [one for one in records(tmp_path / "store") if one.kind == COMMIT]
    assert [int(one.body) for one in log] == turns
    assert [one.queue_offset for one in log] == list(range(5))
