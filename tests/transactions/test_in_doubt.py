"""Which transactions are in doubt: against what the producers of the golden stores did, and in small stores."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from broker.errors import NotAStore
from broker.format.topics import HALF_TOPIC
from broker.store.disk.files import Disk
from broker.store.read.store import Store
from broker.transaction.events import checks
from recovery.transactions.in_doubt import Pending, PendingHalf
from recovery.verify.verifier import verify
from tests.scan.small_broker import STEP_MS, V3, V5, SmallBroker
from tests.scan.small_stores import build

Golden = Callable[[str], Path]

NOW_MS = 1_800_000_000_000
STORES = (
    "rocketmq-3.1.5-clean",
    "rocketmq-3.1.5-killed",
    "rocketmq-3.1.5-recovered",
    "rocketmq-5.3.3-clean",
    "rocketmq-5.3.3-killed",
)


def pending(path: Path, *, parked: bool = False) -> list[PendingHalf]:
    return list(Pending(path, NOW_MS, parked=parked))


@pytest.mark.parametrize("name", STORES)
def test_as_many_as_the_verification_counts(name: str, golden: Golden) -> None:
    """In log order, each once; with --parked those that were given up as well."""
    said = verify(golden(name)).transactions
    found = pending(golden(name), parked=True)
    assert sum(half.state == "in_doubt" for half in found) == said["in_doubt"]
    assert sum(half.state == "parked" for half in found) == said["parked"]
    offsets = [half.commitlog_offset for half in found]
    assert offsets == sorted(set(offsets))
    assert pending(golden(name)) == [half for half in found if half.state == "in_doubt"]


@pytest.mark.parametrize("name", ["rocketmq-3.1.5-killed", "rocketmq-5.3.3-killed"])
def test_they_are_what_the_producers_sent(
    name: str, golden: Golden, truth: Callable[[str], list[dict[str, Any]]]
) -> None:
    """By key, topic and unique key, as the producers wrote them down."""
    sent = {line["key"]: line for line in truth(name) if line["event"] == "half"}
    for half in pending(golden(name), parked=True):
        (key,) = half.keys
        assert half.topic == sent[key]["topic"]
        assert half.producer_group == "order_producer"
        assert half.unique_key == (sent[key]["msgId"] if "5.3.3" in name else None)


def test_the_state_table_says_slots(tmp_path: Path) -> None:
    broker = build(V3, tmp_path / "store")
    found = pending(tmp_path / "store")
    slots = [number for number, slot in enumerate(broker.table) if slot.state == 4]
    assert [half.slot for half in found] == slots
    first = found[0].as_json()
    assert list(first) == [
        "commitlog_offset", "slot", "producer_group", "topic", "keys", "unique_key", "age_s", "checks",
    ]  # fmt: skip
    assert first["commitlog_offset"] == broker.table[slots[0]].commitlog_offset
    assert "state" in found[0].as_json(with_state=True)


def test_a_half_is_as_old_as_its_record(tmp_path: Path) -> None:
    build(V3, tmp_path / "store")
    found = pending(tmp_path / "store")
    with Store(str(tmp_path / "store"), Disk()) as store:
        stored = [record.store_timestamp_ms for half in found if (record := store.record(half.commitlog_offset))]
    assert [half.age_s for half in found] == [(NOW_MS - stored_ms) / 1000 for stored_ms in stored]
    assert len(set(stored)) > 1


def test_a_renewed_half_is_as_old_as_its_first(tmp_path: Path) -> None:
    """RocketMQ stores a half that it asked about anew: the place is the last one's, the age the first one's."""
    broker = SmallBroker(V5)
    values = {
        "UNIQ_KEY": "U1",
        "PGROUP": "payer",
        "REAL_TOPIC": "Orders",
        "REAL_QID": "0",
        "KEYS": "k-1 k-2",
        "TRAN_MSG": "true",
    }
    first = broker.append("half", HALF_TOPIC, b"x", values)
    broker.append("plain", "Orders", b"y", {"KEYS": "z"})
    last = broker.append("half", HALF_TOPIC, b"x", {**values, "TRANSACTION_CHECK_TIMES": "2"})
    (tmp_path / "store").mkdir()
    broker.write(tmp_path / "store")
    (half,) = Pending(tmp_path / "store", last.store_timestamp_ms + 500)
    assert half.as_json() == {
        "commitlog_offset": last.commitlog_offset,
        "queue_offset": 1,
        "producer_group": "payer",
        "topic": "Orders",
        "keys": ["k-1", "k-2"],
        "unique_key": "U1",
        "age_s": (2 * STEP_MS + 500) / 1000,
        "checks": 2,
    }
    assert first.store_timestamp_ms + 2 * STEP_MS == last.store_timestamp_ms


def test_a_clock_behind_the_store_gives_no_negative_age(tmp_path: Path) -> None:
    build(V3, tmp_path / "store")
    assert {half.age_s for half in Pending(tmp_path / "store", 0)} == {0}


def test_no_store_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(NotAStore):
        Pending(tmp_path, NOW_MS)


@pytest.mark.parametrize(("text", "times"), [("3", 3), ("", 0), ("\u00b2", 0), ("-1", 0), ("9" * 5000, 0)])
def test_a_count_of_checks_that_is_not_a_number_is_none(text: str, times: int) -> None:
    """A client may state any text; no view and no verification may fail because of it."""
    assert checks({"TRANSACTION_CHECK_TIMES": text}) == times
