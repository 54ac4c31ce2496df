"""Transactions of both engines: prepare, commit and rollback, the first decision, and what is refused."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import broker
from broker.errors import TransactionError
from broker.format.sysflag import TransactionType
from broker.transaction.events import BY, WHY
from broker.transaction.parking import ParkTopic
from broker.transaction.service import HalfReference
from broker.transaction.statetable import StateTableService
from recovery.verify.verifier import verify
from tests.transaction.opened import SMALL, message, opened

pytestmark = pytest.mark.usefixtures("each_engine")


def bodies(store: broker.Store, topic: str = "orders", queue_id: int = 0) -> list[bytes]:
    """What consumers of a queue get."""
    found = []
    while (one := store.message(topic, queue_id, len(found))) is not None:
        found.append(one.body)
    return found


def test_a_commit_delivers_the_message_once(tmp_path: Path) -> None:
    with opened(tmp_path, sync="each") as store:
        half = store.transactions.prepare(message(), "shop", queue_id=2)
        assert bodies(store, queue_id=2) == []
        ended = store.transactions.commit(half)
        assert (ended.state, ended.queue_offset, ended.again) == (broker.TransactionState.COMMITTED, 0, False)
        (found,) = [store.message("orders", 2, 0)]
        assert found is not None
        assert (found.body, found.tag, found.keys, found.unique_key) == (b"body", "new", ("key-body",), half.unique_key)
        assert found.commitlog_offset == ended.commitlog_offset
        assert found.properties["colour"] == "blue"
        assert store.queue_end("orders", 2) == 1
    assert verify(tmp_path / "store").ok


def test_a_rollback_delivers_nothing(tmp_path: Path, each_engine: str) -> None:
    with opened(tmp_path, sync="each") as store:
        half = store.transactions.prepare(message(), "shop")
        ended = store.transactions.rollback(half)
        assert (ended.state, ended.queue_offset) == (broker.TransactionState.ROLLED_BACK, None)
        assert bodies(store) == []
        assert ended.commitlog_offset is not None
        record = store.record(ended.commitlog_offset)
        assert record is not None
        says = {"state-table": (b"", TransactionType.ROLLBACK), "half-op": (b"0", TransactionType.NONE)}
        assert (record.body, record.transaction_type) == says[each_engine]
    assert verify(tmp_path / "store").ok


def fullest(store: broker.LiveStore, of: str, **options: str) -> broker.Half:
    """A half message whose properties, or whose body, take all the room that there is."""
    most = {"properties": 32_700, "body": SMALL.record_bytes_max}[of]
    for size in range(most, most - 1000, -1):
        properties, body = ({"x": "y" * size}, b"x") if of == "properties" else ({}, b"x" * size)
        with contextlib.suppress(broker.MessageRejected):
            full = broker.Message("orders", body, properties=properties)
            return store.transactions.prepare(full, "shop", extra_properties=options)
    raise AssertionError


@pytest.mark.parametrize("of", ["properties", "body"])
@pytest.mark.parametrize("options", [{}, {"DELAY": "3"}])
@pytest.mark.parametrize("why", ["", "w" * 300])
def test_what_was_stored_can_be_ended_however_full_it_is(
    tmp_path: Path, options: dict[str, str], why: str, of: str
) -> None:
    """Why it was decided so is left out where there is no room for it."""
    with opened(tmp_path, sync="each") as store:
        for end in (store.transactions.commit, store.transactions.rollback):
            ended = end(fullest(store, of, **options), extra_properties={WHY: why, BY: "me"} if why else None)
            assert ended.state in (broker.TransactionState.COMMITTED, broker.TransactionState.ROLLED_BACK)
        assert store.transactions.in_doubt_slots() == []
    assert verify(tmp_path / "store").ok


def test_a_reference_to_a_place_inside_a_record_names_no_half_message(tmp_path: Path) -> None:
    """Whatever stands there: what it claims to be, up to a whole segment, is not read."""
    body = (100_000).to_bytes(4, "big") * 64
    with opened(tmp_path) as store:
        half = store.transactions.prepare(broker.Message("orders", body), "shop")
        for offset in range(half.commitlog_offset + 1, half.end, 7):
            wrong = HalfReference(offset, half.slot, "shop")
            with pytest.raises(broker.TransactionError, match="no half message"):
                store.transactions.commit(wrong)
            with pytest.raises(broker.CorruptRecord, match="no record begins here"):
                store.writer.appender.read(offset)
        assert store.transactions.commit(half).queue_offset == 0


@pytest.mark.parametrize(
    ("place", "value"),
    [("commitlog_offset", None), ("commitlog_offset", "0"), ("commitlog_offset", 0.0), ("commitlog_offset", 1 << 64),
     ("slot", None), ("slot", "0"), ("slot", 0.0), ("slot", 1 << 64), ("slot", np.arange(2)), ("producer_group", None)],
)  # fmt: skip
def test_a_reference_of_other_types_is_refused_in_a_sentence(tmp_path: Path, place: str, value: Any) -> None:
    """As a driver or a page hands them on: text, a float, nothing."""
    with opened(tmp_path) as store:
        half = store.transactions.prepare(message(), "shop")
        wrong, calls = half.reference._replace(**{place: value}), store.transactions
        for call in (calls.commit, calls.rollback, calls.state, calls.delete_prepare):
            with pytest.raises(broker.TransactionError, match="a HalfReference has a CommitLog offset"):
                call(wrong)
        assert calls.state(half) is broker.TransactionState.PREPARED


def test_a_reference_may_hold_numbers_of_numpy(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        half = store.transactions.prepare(message(), "shop")
        reference = HalfReference(np.int64(half.commitlog_offset), np.uint32(half.slot), "shop")  # type: ignore[arg-type]
        assert store.transactions.state(reference) is broker.TransactionState.PREPARED
        assert store.transactions.commit(reference).queue_offset == 0


def test_a_damaged_slot_is_named(tmp_path: Path, each_engine: str) -> None:
    path = tmp_path / "store"
    with opened(tmp_path, sync="os") as store:
        half = store.transactions.prepare(message(), "shop")
    directory = path / ("checkback/halfstates" if each_engine == "half-op" else "transaction/statetable")
    (table,) = [file for file in directory.rglob("*") if file.is_file()]
    with table.open("r+b") as file:
        file.seek(20)
        file.write((77).to_bytes(4, "big"))
    with broker.open(path) as store:
        for ask in (store.transactions.state, store.transactions.commit):
            with pytest.raises(TransactionError, match=rf"^slot 0 of {path}.* holds the state 77: it is damaged"):
                ask(half)


@pytest.mark.parametrize("bounds", [{"limit": -1}, {"limit": "3"}, {"limit": 1.5}, {"after_slot": None}])
def test_bounds_that_are_no_numbers_are_refused_by_the_call(tmp_path: Path, bounds: dict[str, Any]) -> None:
    """And not by the first half message of what it returns."""
    with opened(tmp_path) as store, pytest.raises(broker.TransactionError, match=f"{next(iter(bounds))} is a"):
        store.transactions.in_doubt(**bounds)


@pytest.mark.parametrize("first", ["commit", "rollback"])
def test_the_first_decision_stands(tmp_path: Path, first: str) -> None:
    """The same again says so and writes nothing; a contrary one is refused."""
    second = {"commit": "rollback", "rollback": "commit"}[first]
    with opened(tmp_path) as store:
        half = store.transactions.prepare(message(), "shop")
        state = getattr(store.transactions, first)(half).state
        end = store.writer.appender.control.words[8]
        again = getattr(store.transactions, first)(half.reference)
        assert (again.state, again.again, again.commitlog_offset) == (state, True, None)
        with pytest.raises(broker.AlreadyEnded, match="the first decision stands") as refused:
            getattr(store.transactions, second)(half)
        assert (refused.value.state, refused.value.message_id) == (state, half.message_id)
        assert store.transactions.state(half) is state
        assert store.writer.appender.control.words[8] == end
    assert verify(tmp_path / "store").ok


def test_whoever_knows_the_reference_can_decide(tmp_path: Path) -> None:
    """Another opener, which never saw the message, with a half that is larger than what is kept at hand."""
    with opened(tmp_path) as store, opened(tmp_path) as other:
        half = store.transactions.prepare(message("x" * 50_000), "shop")
        found = other.transactions.half(half.commitlog_offset)
        assert found == half
        assert other.transactions.message(found).body == b"x" * 50_000
        other.transactions.commit(half.reference)
        assert store.transactions.commit(half).again
    with broker.open(tmp_path / "store", read_only=True) as store:
        assert bodies(store) == [b"x" * 50_000]
    assert verify(tmp_path / "store").ok


def test_what_does_not_name_the_half_is_refused(tmp_path: Path) -> None:
    """RocketMQ's three checks, and the one that it lacks: that the record is a half message at all."""
    with opened(tmp_path) as store:
        plain = store.append(message(topic="plain"))
        half = store.transactions.prepare(message(), "shop")
        at, slot, group = half.reference
        wrong = [
            (at, slot, "other", "the producer group is shop, not other"),
            (at, slot + 1, group, "the slot is 0, not 1"),
            (at + 1, slot, group, "there is no half message"),
            (plain.commitlog_offset, 0, group, "is not a half message"),
            (half.end, slot, group, "nothing is there"),
            (1 << 40, slot, group, "nothing is there"),
            (-1, slot, group, "nothing is there"),
        ]
        for commitlog_offset, number, name, reason in wrong:
            reference = HalfReference(commitlog_offset, number, name)
            for end in (store.transactions.commit, store.transactions.rollback):
                with pytest.raises(broker.TransactionError, match=reason):
                    end(reference)
        with pytest.raises(broker.TransactionError, match="no half message"):
            store.transactions.half(plain.commitlog_offset)
        assert store.transactions.in_doubt_slots() == [0]
        assert not list((tmp_path / "store" / "commitlog").glob("0000000109*"))
    assert verify(tmp_path / "store").transactions["in_doubt"] == 1


def test_who_decided_and_why_is_kept(tmp_path: Path, each_engine: str) -> None:
    """In the end record, and it is no finding that the half message has it not."""
    with opened(tmp_path) as store:
        halves = [store.transactions.prepare(message(), "shop") for _ in range(2)]
        said = {WHY: "the customer called", BY: "operator Zoë"}
        ended = [
            store.transactions.commit(halves[0], extra_properties=said),
            store.transactions.rollback(halves[1], extra_properties=said),
        ]
        store.sync_now()
        for one, half in zip(ended, halves, strict=True):
            assert one.commitlog_offset is not None
            record = store.record(one.commitlog_offset)
            assert record is not None
            if each_engine == "half-op" and one.state is broker.TransactionState.ROLLED_BACK:
                assert record.property_map.items() >= {"TAGS": "d", **said}.items()
            else:
                assert record.property_map.items() >= {**half.properties, **said}.items()
        with pytest.raises(broker.MessageRejected, match="nothing else of its own"):
            store.transactions.commit(halves[0], extra_properties={"colour": "red"})
    assert verify(tmp_path / "store").ok


def test_in_doubt_is_what_nobody_ended(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        halves = [store.transactions.prepare(message(str(number)), "shop") for number in range(300)]
        for half in halves[:150]:
            store.transactions.commit(half)
        for half in halves[200:]:
            store.transactions.rollback(half)
        assert store.transactions.in_doubt_slots() == list(range(150, 200))
        assert list(store.transactions.in_doubt()) == halves[150:200]
        assert list(store.transactions.in_doubt(after_slot=160, limit=3)) == halves[161:164]
        assert store.transactions.delete_prepare(halves[0])
        assert not store.transactions.delete_prepare(halves[160])
    with opened(tmp_path) as store:
        assert list(store.transactions.in_doubt()) == halves[150:200]
        store.transactions.commit(next(store.transactions.in_doubt()))
        assert store.transactions.state(halves[150]) is broker.TransactionState.COMMITTED
    report = verify(tmp_path / "store")
    assert report.ok
    assert report.transactions["in_doubt"] == 49


def test_parking_is_a_record_and_no_decision(tmp_path: Path) -> None:
    with opened(tmp_path) as store, opened(tmp_path) as other:
        halves = [store.transactions.prepare(message(), "shop") for _ in range(3)]
        assert store.transactions.park(halves[0], "nobody answers")
        assert not store.transactions.park(halves[0], "again")
        assert not store.transactions.unpark(halves[1], "it was not parked")
        assert list(other.transactions.parked()) == [halves[0].commitlog_offset]
        assert other.transactions.state(halves[0]) is broker.TransactionState.PARKED
        assert list(other.transactions.in_doubt()) == halves
        assert other.transactions.unpark(halves[0], "the database is back")
        assert store.transactions.parked() == {}
        assert store.transactions.park(halves[0], "and gone again")
        assert store.transactions.park(halves[1], "this too")
        store.transactions.commit(halves[0])
        assert list(other.transactions.parked()) == [halves[1].commitlog_offset]
        assert not other.transactions.park(halves[0], "too late")
    report = verify(tmp_path / "store")
    assert report.ok, [str(finding) for finding in report.findings]
    counts = report.transactions
    assert (counts["committed"], counts["parked"], counts["in_doubt"]) == (1, 1, 1)


def test_a_process_keeps_no_note_of_what_was_ended(tmp_path: Path) -> None:
    """It would keep one for each transaction that was ever parked, as long as it lives."""
    with opened(tmp_path, sync="os") as store:
        halves = [store.transactions.prepare(message(str(number)), "shop") for number in range(20)]
        for half in halves:
            store.transactions.park(half, "nobody answers")
        for half in halves[1:]:
            store.transactions.rollback(half)
        assert list(store.transactions.parked()) == [halves[0].commitlog_offset]
        assert isinstance(store.transactions, StateTableService)
        assert list(store.transactions._park_topic.notes()) == [halves[0].commitlog_offset]


def test_the_state_of_one_half_message_copies_no_notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To park each of many cost as much as all that were parked before it."""
    with opened(tmp_path, sync="os") as store, monkeypatch.context() as patched:
        half = store.transactions.prepare(message(), "shop")
        patched.setattr(ParkTopic, "notes", lambda _self: pytest.fail("all notes were copied"))
        assert store.transactions.park(half, "nobody answers")
        assert store.transactions.state(half) is broker.TransactionState.PARKED


def test_what_is_parked_is_known_behind_what_retention_removed(tmp_path: Path) -> None:
    """A process that looked long ago waited at a record that is gone: for it nothing was parked any more."""
    with opened(tmp_path, sync="os") as store, opened(tmp_path, sync="os") as waits:
        for number in range(400):
            half = store.transactions.prepare(message(str(number)), "shop")
            store.transactions.park(half, "nobody answers")
            if number == 1:
                assert len(waits.transactions.parked()) == 2  # and it looks no more until it leads
            if number < 2:
                continue
            store.transactions.rollback(half)
        for one in list(store.transactions.in_doubt()):
            store.transactions.rollback(one)
        now_ms = time.time_ns() // 1_000_000 + 60_000
        assert len(store.retain(broker.Retention(keep_s=0, even_unread=True), now_ms=now_ms).segments) > 0
        last = store.transactions.prepare(message("last"), "shop")
        store.transactions.park(last, "nobody answers")
        assert list(waits.transactions.parked()) == [last.commitlog_offset]


def test_a_half_message_is_whole(tmp_path: Path, each_engine: str) -> None:
    """As the Java producer marks it, with a key of its own; what the library says of it comes along."""
    with opened(tmp_path, sync="os") as store:
        extra = {"CHECK_IMMUNITY_TIME_IN_SECONDS": "30"}
        half = store.transactions.prepare(message(), "shop", extra_properties=extra)
        record = store.record(half.commitlog_offset)
        assert record is not None
        said = record.property_map
        said.pop("__CRC32#")
        moved_aside, kind = {}, TransactionType.PREPARED
        if each_engine == "half-op":
            assert record.topic == "RMQ_SYS_TRANS_HALF_TOPIC"
            moved_aside = {"REAL_TOPIC": "orders", "REAL_QID": "0", "__transactionId__": half.unique_key}
            kind = TransactionType.NONE
        assert said == {
            "colour": "blue", "TAGS": "new", "KEYS": "key-body", "UNIQ_KEY": half.unique_key, "TRAN_MSG": "true",
            "PGROUP": "shop", **extra, **moved_aside,
        }  # fmt: skip
        assert (record.transaction_type, record.queue_offset) == (kind, half.slot)
        assert half.message_id == broker.ReceivedMessage.of(record).message_id
        with pytest.raises(broker.MessageRejected, match="needs a producer group"):
            store.transactions.prepare(message(), "")
        for group in ("shop\x01", "sh\x02op"):  # it ended the property, and the half message was another group's
            with pytest.raises(broker.MessageRejected, match="0x01 or 0x02"):
                store.transactions.prepare(message(), group)


def test_a_slave_refuses_sends_and_ends(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        half = store.transactions.prepare(message(), "shop")
        with opened(tmp_path, role="slave") as slave:
            refused = [
                lambda: slave.transactions.commit(half),
                lambda: slave.transactions.rollback(half),
                lambda: slave.transactions.prepare(message(), "shop"),
                lambda: slave.transactions.prepare_async(message(), "shop"),
                lambda: slave.transactions.park(half, "no"),
                lambda: slave.append(message(topic="plain")),
                lambda: slave.append_batch([message(topic="plain")]),
                lambda: slave.create_topic("plain"),
            ]
            for call in refused:
                with pytest.raises(broker.NotPermitted, match="opened as a slave") as error:
                    call()
                assert error.value.code == "SLAVE_NOT_AVAILABLE"
            assert list(slave.transactions.in_doubt()) == [half]
        assert store.transactions.commit(half).again is False


def test_transactional_messages_can_be_refused(tmp_path: Path) -> None:
    """RocketMQ: rejectTransactionMessage. What was prepared before can still be ended."""
    with opened(tmp_path) as store:
        half = store.transactions.prepare(message(), "shop")
    with opened(tmp_path, reject_transactions=True) as store:
        for prepare in (store.transactions.prepare, store.transactions.prepare_async):
            with pytest.raises(broker.NotPermitted, match="no transactional messages") as refused:
                prepare(message(), "shop")
            assert refused.value.code == "NO_PERMISSION"
        store.append(message(topic="plain"))
        assert store.transactions.rollback(half).again is False
