"""Rounds of check-back by the service itself, and the implementations that entry points name."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

import broker
from broker.store.read.store import Store
from broker.transaction.rounds import is_due
from broker.transaction.service import CheckListener, TransactionalMessageService
from broker.transaction.statetable import StateTableService
from recovery.verify.verifier import verify
from tests.transaction.opened import SMALL, damage, message, opened

pytestmark = pytest.mark.usefixtures("each_engine")

COMMIT, ROLLBACK, UNKNOW = broker.LocalTransactionState


class Answers(CheckListener):
    """Answers by the body; what it has no answer for is an error."""

    def __init__(self, **answers: broker.LocalTransactionState) -> None:
        self.answers = answers
        self.asked: list[str] = []

    def resolve_half_message(self, half: broker.Half, message: broker.ReceivedMessage) -> broker.LocalTransactionState:
        assert half.commitlog_offset == message.commitlog_offset
        self.asked.append(message.body.decode())
        return self.answers[message.body.decode()]


def test_a_round_settles_what_is_known(tmp_path: Path) -> None:
    """Each half is asked about once; UNKNOW and an exception leave it in doubt."""
    with opened(tmp_path) as store:
        halves = {text: store.transactions.prepare(message(text), "shop") for text in ("yes", "no", "perhaps", "what")}
        listener = Answers(yes=COMMIT, no=ROLLBACK, perhaps=UNKNOW)
        assert store.transactions.check(0, 15, listener) == 4
        assert listener.asked == ["yes", "no", "perhaps", "what"]
        states = [store.transactions.state(half).name for half in halves.values()]
        assert states == ["COMMITTED", "ROLLED_BACK", "PREPARED", "PREPARED"]
        assert store.transactions.check(0, 15, listener) == 2
    assert verify(tmp_path / "store").ok


def test_what_is_never_answered_is_parked(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        half = store.transactions.prepare(message("perhaps"), "shop")
        listener = Answers(perhaps=UNKNOW)
        assert [store.transactions.check(0, 2, listener) for _ in range(5)] == [1, 1, 0, 0, 0]
        assert store.transactions.state(half) is broker.TransactionState.PARKED
        end = store.writer.appender.control.words[8]
        store.transactions.check(0, 2, listener)
        assert store.writer.appender.control.words[8] == end
        store.transactions.commit(half)
    assert verify(tmp_path / "store").ok


def test_what_cannot_be_discarded_is_raised_once_the_others_were_checked(tmp_path: Path) -> None:
    """As where a listener puts it into a database that is away: those behind it would never be asked about."""

    class Away(Answers):
        def resolve_discard_message(self, _service: TransactionalMessageService, half: broker.Half) -> None:
            raise OSError(f"no database for {half.slot}")

    with opened(tmp_path) as store:
        store.transactions.prepare(message("perhaps"), "shop")
        listener = Away(perhaps=UNKNOW, later=UNKNOW)
        assert store.transactions.check(0, 1, listener) == 1
        store.transactions.prepare(message("later"), "shop")
        for _ in range(2):
            with pytest.raises(OSError, match="no database for 0"):
                store.transactions.check(0, 1, listener)
        assert listener.asked == ["perhaps", "later"], "each as often as check_max says"


def test_a_half_message_that_cannot_be_read_is_raised_once_the_others_were_checked(tmp_path: Path) -> None:
    """It can be read by nobody; the list of all in doubt says so at once, unless its caller collects the damage."""
    with opened(tmp_path, sync="os") as store:
        halves = [store.transactions.prepare(message(text), "shop") for text in ("lost", "yes", "no")]
        damage(store, halves[0])
        with pytest.raises(broker.CorruptStore):
            store.transactions.check(0, 15, Answers(yes=COMMIT, no=ROLLBACK))
        assert [store.transactions.state(half).name for half in halves[1:]] == ["COMMITTED", "ROLLED_BACK"]
        with pytest.raises(broker.CorruptStore):
            list(store.transactions.in_doubt())
        damaged: list[broker.CorruptStore] = []
        assert (list(store.transactions.in_doubt(damaged=damaged)), len(damaged)) == ([], 1)


def test_a_half_message_that_names_no_queue_is_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An older version stored such ones: nobody could list what was in doubt any more."""
    with broker.open(tmp_path / "odd", layout=SMALL, transactions="half-op", sync="os") as store:
        odd, half = (store.transactions.prepare(message(text), "shop", queue_id=1) for text in ("odd", "yes"))
        record = store.record(odd.commitlog_offset)
        assert record is not None
        as_stored = replace(record, properties=record.properties.replace(b"REAL_QID\x011", b"REAL_QID\x011.0"))
        read = Store.record
        monkeypatch.setattr(Store, "record", lambda *asked: as_stored if asked[1] == 0 else read(*asked))
        with pytest.raises(broker.CorruptStore, match=r"offset 0: .*REAL_QID '1\.0'"):
            list(store.transactions.in_doubt())
        damaged: list[broker.CorruptStore] = []
        assert (list(store.transactions.in_doubt(damaged=damaged)), len(damaged)) == ([half], 1)


def test_what_is_listed_as_in_doubt_is_durable(tmp_path: Path) -> None:
    """Who decides about it must not meet it undone by a power cut, its half message and all."""
    with opened(tmp_path, sync="group") as store:
        half = store.transactions.prepare(message("perhaps"), "shop", wait=False)
        assert list(store.transactions.in_doubt()) == [half]
        assert store.visible_end >= half.end


def test_an_attempt_writes_nothing(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.transactions.prepare(message("perhaps"), "shop")
        end = store.writer.appender.control.words[8]
        store.transactions.check(0, 15, Answers(perhaps=UNKNOW))
        assert store.writer.appender.control.words[8] == end


def test_it_asks_when_it_is_time(tmp_path: Path) -> None:
    """After the time-out, or after the producer's own immunity; what is no number is none."""
    with opened(tmp_path) as store:
        plain = store.transactions.prepare(message("yes"), "shop")
        extra = {"CHECK_IMMUNITY_TIME_IN_SECONDS": "60"}
        immune = store.transactions.prepare(message("yes"), "shop", extra_properties=extra)
        odd = store.transactions.prepare(
            message("yes"), "shop", extra_properties={"CHECK_IMMUNITY_TIME_IN_SECONDS": "-1"}
        )
        for half, due_after_ms in ((plain, 6_000), (immune, 60_000), (odd, 6_000)):
            assert not is_due(half, 6_000, half.born_timestamp_ms + due_after_ms - 1)
            assert is_due(half, 6_000, half.born_timestamp_ms + due_after_ms)
        stored_ms = plain.store_timestamp_ms
        ahead = replace(plain, born_timestamp_ms=stored_ms + 3_600_000)  # by a producer whose clock is wrong
        assert not is_due(ahead, 6_000, stored_ms + 5_999)
        assert is_due(ahead, 6_000, stored_ms + 6_000)
        assert store.transactions.check(3_600_000, 15, Answers(yes=COMMIT)) == 0


PLUGIN = """
from broker.transaction.statetable import StateTableService

class Loud(StateTableService):
    opened = False
    def open(self):
        self.opened = True

def not_a_service(bridge):
    return 42
"""
ENTRIES = """[checkback.transaction_service]
loud = loud_service:Loud
wrong = loud_service:not_a_service
"""


def test_a_service_of_another_distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by entry point, as RocketMQ finds its own by service provider."""
    site = tmp_path / "site"
    info = site / "loud-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "loud_service.py").write_text(PLUGIN)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: loud\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRIES)
    monkeypatch.syspath_prepend(str(site))
    with opened(tmp_path, transactions="loud") as store:
        assert type(store.transactions).__name__ == "Loud"
        assert store.transactions.opened  # type: ignore[attr-defined]
        store.transactions.commit(store.transactions.prepare(message(), "shop"))
    with pytest.raises(broker.BrokerError, match="makes 42, which is not a TransactionalMessageService"):
        opened(tmp_path, transactions="wrong")
    with pytest.raises(broker.BrokerError, match=r"there is no 'quiet' .* it has half-op, loud, state-table, wrong"):
        opened(tmp_path, transactions="quiet")
    with opened(tmp_path) as store:  # what failed left the store free
        assert isinstance(store.transactions, StateTableService)
    sys.modules.pop("loud_service", None)


def test_a_million_slots_are_looked_through_fast(tmp_path: Path) -> None:
    """1 M settled and 1,000 in doubt, well under 100 ms: of each slot only the state is looked at."""
    layout = broker.StoreLayout(state_table_bytes=24 * 1_001_000)
    with broker.open(tmp_path / "store", sync="os", layout=layout) as store:
        slots = 1_001_000
        view, _ = store.writer.dispatcher.table.at(0)
        settled, doubtful = bytes(23) + b"\x08", bytes(23) + b"\x04"
        view[: slots * 24] = (settled * 1000 + doubtful) * 1000
        words = store.writer.control.words
        before, words[14] = words[14], slots
        took_s = []
        for _ in range(5):
            start = time.process_time()
            found = store.transactions.in_doubt_slots()
            took_s.append(time.process_time() - start)
        words[14] = before
        view[: slots * 24] = bytes(slots * 24)
        assert found == [1001 * number + 1000 for number in range(1000)]
        assert min(took_s) < 0.1
