"""The verbs that write: send, topic, end; and tail, which reads on."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from typing import Any

import pytest

import broker
from broker.enlisting.ledger_key import LEDGER_KEY, new_key
from broker.store.read.layout import StoreLayout
from broker.transaction.events import BY, WHY, TransactionState
from recovery.cli import messages as sending
from recovery.verify.verifier import verify
from tests.cli.command import Ran, command

SMALL = StoreLayout(1 << 18, 6000, 2400, 2000, 100, 400)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A small store with nothing in it."""
    broker.open(tmp_path / "shop.store", layout=SMALL).close()
    return tmp_path / "shop.store"


def run(capsys: pytest.CaptureFixture[str], *words: Any) -> Any:
    """What a verb answers with --json, when all is well."""
    ran = command(capsys, *words, "--json")
    assert (ran.code, ran.err) == (0, "")
    return json.loads(ran.out)


def half(store: Path, text: str = "locked") -> broker.Half:
    with broker.open(store) as opened:
        return opened.transactions.prepare(broker.Message("stock", text.encode()), "shop")


def test_what_is_sent_is_seen(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["send", store, "orders", "--body", "paid", "--tag", "new", "--key", "4711", "--key", "4712", "--queue", 3]
    sent = run(capsys, *words, "--property", "colour=blue")
    assert (sent["topic"], sent["queue_id"], sent["queue_offset"]) == ("orders", 3, 0)
    (seen,) = run(capsys, "tail", store, "orders")
    assert (seen["body"], seen["tag"], seen["keys"], seen["unique_key"]) == (
        "paid", "new", ["4711", "4712"], sent["unique_key"],
    )  # fmt: skip
    assert seen["properties"]["colour"] == "blue"
    ran = command(capsys, "send", store, "orders", "--body", "again")
    assert re.fullmatch(
        r"Sent to orders: queue 0, queue offset 0, CommitLog offset \d+, unique key [0-9A-F]{32}\n", ran.out
    )
    assert verify(store).ok


def test_a_body_comes_from_standard_input(
    store: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Input:
        class buffer:  # noqa: N801
            @staticmethod
            def read() -> bytes:
                return b"\xff\x00from a pipe"

    monkeypatch.setattr("sys.stdin", Input)
    run(capsys, "send", store, "orders")
    (seen,) = run(capsys, "tail", store, "orders")
    assert bytes.fromhex(seen["body_hex"]) == b"\xff\x00from a pipe"
    assert "\\xff\\x00from a pipe" in command(capsys, "tail", store, "orders").out


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        (["send", "STORE", "SCHEDULE_TOPIC_XXXX", "--body", "x"], 2, "the broker's own topic"),
        (["send", "STORE", "orders", "--body", ""], 2, "the body is empty"),
        (["send", "STORE", "orders", "--body", "x", "--queue", "9"], 2, "no queue 9"),
        (["send", "STORE", "orders", "--body", "x", "--property", "colour"], 2, "is not NAME=VALUE"),
        (["send", "STORE-not", "orders", "--body", "x"], 2, "there is no such directory"),
        (["tail", "STORE-not", "orders"], 2, "there is no such directory"),
        (["tail", "STORE", "orders", "--from", "yesterday"], 2, "is neither first, last"),
        (["topic", "STORE", "orders"], 1, "has no topic orders"),
        (["topic", "STORE", "--create"], 2, "needs the NAME"),
        (["topic", "STORE", "a b", "--create"], 2, "may only have ASCII letters"),
        (["topic", "STORE", "orders", "--create", "--type", "ODD"], 2, "ODD"),
        (["end", "STORE", "1", "--why", "x"], 2, "one of --commit and --rollback"),
        (["end", "STORE", "1", "--why", "x", "--commit", "--rollback"], 2, "one of --commit and --rollback"),
        (["end", "STORE", "1", "--why", " ", "--commit"], 2, "say why"),
        (["end", "STORE", "12345", "--why", "x", "--commit"], 2, "no half message at CommitLog offset 12345"),
        (["end", "STORE", "nobody", "--why", "x", "--commit"], 2, "checkback pending"),
        (["end", "STORE-not", "1", "--why", "x", "--commit"], 2, "there is no such directory"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence(
    store: Path, capsys: pytest.CaptureFixture[str], words: list[str], code: int, reason: str
) -> None:
    ran = command(capsys, *(word.replace("STORE", str(store)) if word.startswith("STORE") else word for word in words))
    assert (ran.code, ran.out) == (code, "")
    assert reason in re.sub(r"\s*│\s*", " ", ran.err.replace("\n", " "))
    assert not Path(f"{store}-not").exists()


def test_tail_begins_where_it_is_told(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with broker.open(store, sync="os") as opened:
        for number in range(30):
            opened.append(broker.Message("orders", b"%d" % number), queue_id=number % 4)
        times = [record.store_timestamp_ms for record in opened.records()]

    def seen(*words: Any) -> list[int]:
        return [int(message["body"]) for message in run(capsys, "tail", store, "orders", *words)]

    assert seen() == list(range(20, 30))
    assert seen("--from", "last", "-n", 3) == [27, 28, 29]
    assert seen("--from", "last", "-n", 0) == []
    assert seen("--from", "first") == list(range(30))
    assert seen("--from", times[17]) == [number for number in range(30) if times[number] >= times[17]]
    assert seen("--from", "2100-01-01") == []
    assert seen("--from", "1970-01-01T00:00:00+05:00") == list(range(30))
    assert len(command(capsys, "tail", store, "orders").out.splitlines()) == 10


def test_tail_reads_only_what_it_shows(
    store: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last few of a long topic come at once."""
    with broker.open(store, sync="os") as opened:
        for number in range(60):
            opened.append(broker.Message("orders", b"%d" % number), queue_id=number % 2)
    read: list[int] = []
    message = broker.Store.message
    monkeypatch.setattr(
        broker.Store,
        "message",
        lambda self, *place: read.append(place[-1]) or message(self, *place),  # type: ignore[func-returns-value]
    )
    assert [one["body"] for one in run(capsys, "tail", store, "orders", "-n", 2)] == ["58", "59"]
    assert min(read) == 28


def test_tail_of_a_topic_that_is_not_there(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A mistyped name is told from a topic without messages."""
    ran = command(capsys, "tail", store, "ordres", "--json")
    assert (ran.code, json.loads(ran.out)) == (0, [])
    assert ran.err == (f"checkback: {store} has no topic ordres: see those that it has with: checkback topic {store}\n")
    command(capsys, "topic", store, "orders", "--create")
    assert run(capsys, "tail", store, "orders") == []


def test_tail_goes_on_behind_what_retention_removed(store: Path) -> None:
    """While it waited, at a place that is gone."""

    def nap(_: float) -> None:
        raise KeyboardInterrupt

    with broker.open(store, sync="os") as opened:
        for number in range(200):
            opened.append(broker.Message("orders", b"%d" % number + bytes(4000)))
        messages = sending.tail(str(store), "orders", "first", last=10, follow=True, nap=nap)
        assert next(messages).body.startswith(b"0\0")
        opened.retain(broker.Retention(keep_s=0, even_unread=True))
        least, end = opened.queue_range("orders", 0)
        rest: list[int] = []
        with pytest.raises(KeyboardInterrupt):
            rest.extend(message.queue_offset for message in messages)
    assert rest[-1] == end - 1
    assert least > 1


def test_tail_follows(store: Path) -> None:
    """What comes while it waits, in queues that were not there before, and from another opener."""
    rounds = []

    def nap(_: float) -> None:
        if len(rounds) == 3:
            raise KeyboardInterrupt
        rounds.append(len(rounds))
        with broker.open(store, sync="os") as opened:
            opened.append(broker.Message("orders", b"%d" % len(rounds)), queue_id=len(rounds))

    told: list[tuple[int, bytes]] = []
    messages = sending.tail(str(store), "orders", "first", last=10, follow=True, nap=nap)
    with pytest.raises(KeyboardInterrupt):
        told.extend((message.queue_id, message.body) for message in messages)
    assert told == [(1, b"1"), (2, b"2"), (3, b"3")]


def test_topics_are_listed_and_created(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the first one the store is made."""
    store = tmp_path / "new.store"
    made = run(capsys, "topic", store, "orders", "--create", "--queues", 8, "--type", "TRANSACTION")
    assert made == {"topic": "orders", "message_type": "TRANSACTION", "read_queues": 8, "write_queues": 8, "perm": 6}
    command(capsys, "topic", store, "bills", "--create")
    assert [one["topic"] for one in run(capsys, "topic", store)] == ["bills", "orders"]
    assert run(capsys, "topic", store, "orders") == made
    assert command(capsys, "topic", store).out.split() == (
        "bills NORMAL 4 queues perm 6 orders TRANSACTION 8 queues perm 6".split()
    )


def test_what_is_not_given_of_a_topic_stays(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command that a refused send names makes no queue, and no message in it, go away."""
    run(capsys, "topic", store, "orders", "--create", "--queues", 8)
    with broker.open(store) as opened:
        opened.append(broker.Message("orders", b"1"), queue_id=7)
    mixed = run(capsys, "topic", store, "orders", "--create", "--type", "MIXED")
    assert (mixed["message_type"], mixed["read_queues"], mixed["perm"]) == ("MIXED", 8, 6)
    assert run(capsys, "topic", store, "orders", "--create", "--perm", 4) == {**mixed, "perm": 4}
    with broker.open(store) as opened:
        opened.create_topic("orders", queues=8, message_type="MIXED", write_queues=2)
    changed = run(capsys, "topic", store, "orders", "--create", "--type", "NORMAL")
    assert (changed["read_queues"], changed["write_queues"]) == (8, 2)
    assert command(capsys, "topic", store).out.split() == "orders NORMAL 8 queues, 2 to write to perm 6".split()


@pytest.mark.parametrize("name", ["commitlog_offset", "unique_key", "message_id"])
@pytest.mark.parametrize("decision", ["commit", "rollback"])
def test_a_person_decides(store: Path, capsys: pytest.CaptureFixture[str], name: str, decision: str) -> None:
    """By any name of the transaction; who and why stays in the store, the first decision stands."""
    found, _ = half(store), half(store, "another")
    words = ["end", store, getattr(found, name), "--why", "the customer called"]
    decided = run(capsys, *words, f"--{decision}", "--by", "Zoë")
    state = {"commit": "committed", "rollback": "rolled_back"}[decision]
    assert (decided["state"], decided["again"], decided["half_offset"]) == (state, False, found.commitlog_offset)
    with broker.open(store, read_only=True) as opened:
        record = opened.record(decided["commitlog_offset"])
        assert record is not None
        assert record.property_map.items() >= {WHY: "the customer called", BY: "Zoë"}.items()
        delivered = opened.message("stock", 0, 0)
        assert (delivered.body if delivered else None) == {"commit": b"locked", "rollback": None}[decision]
    again = command(capsys, *words, f"--{decision}")
    place, said = f"CommitLog offset {found.commitlog_offset} (stock)", state.replace("_", " ")
    assert (again.code, again.out) == (0, f"The transaction at {place} was {said} before: nothing was written.\n")
    other = {"commit": "--rollback", "rollback": "--commit"}[decision]
    refused = command(capsys, *words, other)
    assert (refused.code, refused.out) == (1, "")
    assert "the first decision stands" in refused.err
    assert verify(store).ok


@pytest.mark.parametrize("decision", ["commit", "rollback"])
def test_what_a_ledger_knows_is_not_decided_without_it(
    store: Path, capsys: pytest.CaptureFixture[str], decision: str
) -> None:
    """Its message would be delivered without the order, or the order saved without its message."""
    with broker.open(store) as opened:
        key = {LEDGER_KEY: new_key(1)}
        found = opened.transactions.prepare(broker.Message("stock", b"locked"), "shop", extra_properties=key)
        words = ["end", store, found.commitlog_offset, "--why", "the customer called", f"--{decision}"]
        refused = command(capsys, *words)
        assert (refused.code, refused.out) == (2, "")
        assert f"checkback resolve {store} {found.commitlog_offset} --{decision} --why TEXT --ledger" in refused.err
        assert opened.transactions.state(found) is TransactionState.PREPARED
        getattr(opened.transactions, decision)(found)
        assert run(capsys, *words)["again"]


def test_others_may_have_the_store_open(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with broker.open(store) as opened:
        found = opened.transactions.prepare(broker.Message("stock", b"locked"), "shop")
        decided = run(capsys, "end", store, found.commitlog_offset, "--commit", "--why", "the row is there")
        assert decided["queue_offset"] == 0
        assert sending.who() == opened.record(decided["commitlog_offset"]).property_map[BY]  # type: ignore[union-attr]
        assert opened.transactions.commit(found).again


def test_help_shows_how(capsys: pytest.CaptureFixture[str]) -> None:
    ran: Ran
    before = threading.active_count()
    for verb in ("send", "tail", "topic", "end"):
        ran = command(capsys, verb, "--help")
        assert ran.code == 0
        assert f"checkback {verb} shop.store" in ran.out
    assert threading.active_count() <= before
