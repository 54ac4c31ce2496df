"""What a message becomes on its way to a cluster, and where groups go on there: pure."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from broker.errors import StoreError
from broker.format import properties as names
from broker.format.commitlog import make_record
from broker.format.sysflag import COMPRESSED, TransactionType
from broker.message import ReceivedMessage
from broker.store.write.pending_record import LOCAL_HOST
from recovery.moving.conversion import ORIGIN, BrokerAbility, carried, difference, due_of, origin_of
from recovery.moving.read_back import GroupPlaces
from recovery.views.history_half_op import prepared
from tests.moving.shops import TOPIC


def test_groups_go_on_before_what_they_have_not_had() -> None:
    places = GroupPlaces({"all": 9, "none": 0, "some": 5})
    for target_offset, queue_offset in ((20, 3), (21, 5), (22, 6)):
        places.see(target_offset, queue_offset)
    assert places.finish(23) == {"all": 23, "none": 20, "some": 21}
    places = GroupPlaces({"all": 9, "some": 5})
    for target_offset, queue_offset in ((20, 3), (21, None), (22, 5)):  # another's message, which nobody had
        places.see(target_offset, queue_offset)
    assert places.finish(23) == {"all": 21, "some": 21}


def test_a_delay_is_kept_or_longer_and_never_shorter() -> None:
    levels = (1000, 5000, 60_000)
    old, new = BrokerAbility(407, levels), BrokerAbility(479, levels)
    assert old.delay_of(5_000, 10_000) == new.delay_of(5_000, 10_000) == {}
    assert old.delay_of(15_001, 10_000) == {names.DELAY: "3"}
    assert new.delay_of(15_001, 10_000) == {names.TIMER_DELIVER_MS: "15001"}
    with pytest.raises(StoreError, match="at most"):
        old.delay_of(70_001, 10_000)


@pytest.mark.parametrize(("text", "offset"), [("s:7", 7), ("s:" + "9" * 5000, None), ("s:\u0665", None), ("t:7", None)])
def test_an_origin_that_is_no_offset_is_none(text: str, offset: int | None) -> None:
    """A client of the cluster may state any text."""
    message = SimpleNamespace(properties={ORIGIN: text})
    assert origin_of(message, "s") == offset  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["9" * 5000, "\u0665", "soon"])
def test_a_time_of_delivery_that_is_not_a_number_is_that_of_its_level(text: str) -> None:
    """A client may state any text."""
    said = names.encode({names.TIMER_OUT_MS: text})
    record = make_record(
        "SCHEDULE_TOPIC_XXXX", b"x", said, born_host=LOCAL_HOST, store_host=LOCAL_HOST, born_timestamp_ms=1,
        store_timestamp_ms=7, queue_id=1,
    )  # fmt: skip
    assert due_of(record, [1000, 5000]) == 7 + 5000


@pytest.mark.parametrize(
    "said",
    [{}, {names.REAL_QID: "0"}, {names.REAL_TOPIC: TOPIC, names.REAL_QID: "soon"}],
    ids=["nothing", "a queue", "no number"],
)
def test_a_delayed_message_that_goes_nowhere_is_refused(said: dict[str, str]) -> None:
    """The plan had it sent to a topic without a name, in the middle of the move, or was a traceback."""
    record = make_record(
        "SCHEDULE_TOPIC_XXXX", b"x", names.encode(said), born_host=LOCAL_HOST, store_host=LOCAL_HOST,
        born_timestamp_ms=1, store_timestamp_ms=7,
    )  # fmt: skip
    with pytest.raises(StoreError, match=r"without a place to go: .* let retention remove it \(checkback retain\)"):
        carried(record, "here", due_ms=1)


def test_a_body_that_only_begins_as_a_compressed_one_is_carried_and_told_as_it_is() -> None:
    """Its consumers get it so, before the move and behind it."""
    record = make_record(
        TOPIC, b"x\x9cnot zlib's", born_host=LOCAL_HOST, store_host=LOCAL_HOST, born_timestamp_ms=1,
        store_timestamp_ms=7, sys_flag=COMPRESSED | TransactionType.PREPARED,
    )  # fmt: skip
    sent = carried(record, "here")
    assert (sent.body, sent.plain_body) == (record.body, record.body)
    found = ReceivedMessage.of(replace(record, properties=names.encode(dict(sent.properties))))
    assert difference(sent, found) == ""
    assert prepared(record)["bytes"] == len(record.body)
