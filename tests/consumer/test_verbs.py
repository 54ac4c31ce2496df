"""The verbs `dlq` and `consumer`, as they are typed."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import broker
from broker.consuming.redelivery import resent
from broker.errors import StoreLocked
from broker.format.commitlog import Record
from broker.store.write.pending_record import PendingRecord
from broker.testing.crash_disk import SMALL
from recovery.cli import consumer as verbs_consume
from recovery.cli.declaration import VerbGroup
from recovery.views import dead_letters

WAIT_S = 20


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A store with three messages: the group read two and gave one of them up."""
    path = str(tmp_path / "store")
    with broker.open(path, layout=SMALL, sync="os") as store:
        for key in ("a", "b", "c"):
            store.append(broker.Message("orders", key.encode(), tag="t", keys=[key]))
        with store.consumer("billing", "orders") as consumer:
            for give_up in (True, False):
                message = consumer.receive(WAIT_S)
                assert message is not None
                consumer.retry(message, delay_level=-1) if give_up else consumer.ack(message)
    return path


def run(*arguments: str, code: int = 0) -> str:
    app = VerbGroup()
    verbs_consume.register(app)
    done = CliRunner().invoke(app, list(arguments))
    assert done.exit_code == code, done.output
    return done.output


def test_dlq_lists_groups_and_their_letters(path: str) -> None:
    assert json.loads(run("dlq", path, "--json")) == {"billing": 1}
    (letter,) = json.loads(run("dlq", path, "billing", "--json"))
    assert (letter["topic"], letter["keys"], letter["resent"]) == ("orders", ["a"], False)
    assert "1 dead letter" in run("dlq", path, "billing")
    assert "billing" in run("dlq", path)


def test_dlq_sends_them_again_once(path: str) -> None:
    """They reach the group with their retries before them; what was resent is not sent again."""
    (letter,) = json.loads(run("dlq", path, "billing", "--resend", "--json"))
    assert json.loads(run("dlq", path, "billing", "--resend", "--json")) == []
    assert json.loads(run("dlq", path, "billing", "--json")) == []
    assert [one["resent"] for one in json.loads(run("dlq", path, "billing", "--all", "--json"))] == [True]
    with broker.open(path) as store, store.consumer("billing", "orders") as consumer:
        found = {}
        while len(found) < 2:
            message = consumer.receive(WAIT_S)
            assert message is not None
            found[message.body] = (message.reconsume_times, message.unique_key, message.topic)
            consumer.ack(message)
        assert found[b"a"] == (0, letter["unique_key"], "orders")


def _given_up(path: str, number: int) -> None:
    with broker.open(path, sync="os") as store:
        for key in range(number):
            store.append(broker.Message("orders", b"more", keys=[str(key)]), queue_id=1)
        with store.consumer("billing", "orders") as consumer:
            for _ in range(number + 1):  # one was left over
                message = consumer.receive(WAIT_S)
                assert message is not None
                consumer.retry(message, delay_level=-1)


def test_many_letters_are_compared_with_what_was_sent_again_and_not_looked_up(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each was looked up in each file of the index: a million dead letters could be neither listed nor sent again."""
    _given_up(path, 4)
    with broker.open(path) as store:
        (first, *_) = dead_letters.dead_letters(store, "billing")
        dead_letters.resend(store, "billing", [first.message_id])
        monkeypatch.setattr(type(store), "by_unique_key", lambda *_: pytest.fail("one was looked up"))
        assert [one.resent for one in dead_letters.dead_letters(store, "billing")] == [True, *[False] * 5]
        newest = dead_letters.dead_letters(store, "billing", newest=2)
        assert [one.keys for one in newest] == [one.keys for one in dead_letters.dead_letters(store, "billing")][-2:]


def test_few_letters_before_many_retries_are_looked_up(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letters, "_READ_ANYHOW", 0)
    with broker.open(path, sync="os") as store:
        dead_letters.resend(store, "billing")
        for _ in range(3):
            store.append(broker.Message("%RETRY%billing", b"another"))
        monkeypatch.setattr(type(store), "message", _no_retry(type(store).message))
        assert [one.resent for one in dead_letters.dead_letters(store, "billing")] == [True]


def _no_retry(read: Callable[..., Any]) -> Callable[..., Any]:
    def message(store: broker.Store, topic: str, queue_id: int, queue_offset: int) -> Any:
        assert not topic.startswith("%RETRY%"), "the retries were read"
        return read(store, topic, queue_id, queue_offset)

    return message


def test_all_that_are_sent_again_are_flushed_together(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each waited for an fsync of its own."""
    _given_up(path, 4)
    with broker.open(path) as store:
        waits: list[threading.Thread] = []  # those of the background are not counted
        monkeypatch.setattr(store.writer.syncer, "wait_durable", lambda _end: waits.append(threading.current_thread()))
        assert len(dead_letters.resend(store, "billing")) == 6
        assert waits.count(threading.current_thread()) == 2


def test_of_two_that_send_them_again_at_once_one_is_refused(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two operators, or a double click on the page: each would find that nothing was resent yet, and send all."""
    sentences = []

    def resent_beside_another(record: Record, group: str) -> PendingRecord:
        monkeypatch.undo()
        with broker.open(path) as other, pytest.raises(StoreLocked, match="wait until it has ended") as refused:
            dead_letters.resend(other, "billing")
        sentences.append(str(refused.value))
        return resent(record, group)

    monkeypatch.setattr("recovery.views.dead_letters.resent", resent_beside_another)
    with broker.open(path) as store:
        assert len(dead_letters.resend(store, "billing")) == len(sentences) == 1
        assert store.queue_range("%RETRY%billing", 0) == (0, 1)
    assert json.loads(run("dlq", path, "billing", "--resend", "--json")) == []


def test_dlq_sends_one_of_them(path: str) -> None:
    (letter,) = json.loads(run("dlq", path, "billing", "--json"))
    sent = json.loads(run("dlq", path, "billing", "--resend", "--id", letter["unique_key"], "--json"))
    assert [one["message_id"] for one in sent] == [letter["message_id"]]


def test_consumer_names_the_group_that_is_not_there(path: str) -> None:
    """Others have positions: a mistyped name is not a store without groups."""
    assert run("consumer", path, "biling") == "No group biling has a position here.\n"
    assert run("consumer", path, "billing", "--topic", "ordres") == "No group billing has a position in ordres.\n"


def test_consumer_shows_how_far_behind_a_group_is(path: str) -> None:
    found = json.loads(run("consumer", path, "billing", "--topic", "orders", "--json"))
    assert [(one["position"], one["end"], one["lag"]) for one in found if one["queue_id"] == 0] == [(2, 3, 1)]
    assert "billing" in run("consumer", path)


def test_consumer_counts_the_queues_that_a_topic_got_while_the_group_was_not_there(path: str) -> None:
    with broker.open(path, sync="os") as store:
        store.create_topic("orders", queues=8, message_type="", change=True)
        for _ in range(2):
            store.append(broker.Message("orders", b"x"), queue_id=7)
    rows = [one for one in json.loads(run("consumer", path, "--json")) if one["topic"] == "orders"]
    assert {one["queue_id"]: one["lag"] for one in rows if one["lag"]} == {0: 1, 7: 2}


@pytest.mark.parametrize(("to", "position"), [("first", 0), ("last", 3), ("1", 1), ("2000-01-01T00:00Z", 0)])
def test_consumer_puts_a_group_back_or_forward(path: str, to: str, position: int) -> None:
    run("consumer", path, "billing", "--topic", "orders", "--reset", to, "--queue", "0")
    found = json.loads(run("consumer", path, "billing", "--topic", "orders", "--json"))
    assert [one["position"] for one in found if one["queue_id"] == 0] == [position]


@pytest.mark.parametrize("change", [("--topic", "orders", "--reset", "last"), ("--pause",), ("--resume",)])
def test_a_group_with_a_letter_wrong_is_refused_and_not_made(path: str, change: tuple[str, ...]) -> None:
    """The operator would go home, and the group that was meant would go on."""
    app = VerbGroup()
    verbs_consume.register(app)
    done = CliRunner().invoke(app, ["consumer", path, "biling", *change])
    assert isinstance(done.exception, broker.BrokerError)
    assert f"{path} has no consumer group biling: its groups are billing" in str(done.exception)
    assert json.loads(run("consumer", path, "biling", "--json")) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("consumer", "STORE", "--reset", "first"),
        ("consumer", "STORE", "billing", "--reset", "first"),
        ("dlq", "STORE", "--resend"),
    ],
)
def test_what_is_missing_is_said(path: str, arguments: tuple[str, ...]) -> None:
    run(*(path if word == "STORE" else word for word in arguments), code=2)


@pytest.mark.parametrize(
    "arguments",
    [
        ("consumer", "STORE", "billing", "--topic", "orders", "--reset", "soon"),
        ("consumer", "STORE", "billing", "--topic", "orders", "--reset", "9" * 5000),  # no number that Python reads
        ("consumer", "STORE", "billing", "--topic", "nothing", "--reset", "first"),
        ("dlq", "STORE", "billing", "--resend", "--id", "X"),
    ],
)
def test_what_makes_no_sense_is_an_error_in_a_sentence(path: str, arguments: tuple[str, ...]) -> None:
    app = VerbGroup()
    verbs_consume.register(app)
    done = CliRunner().invoke(app, [path if word == "STORE" else word for word in arguments])
    assert isinstance(done.exception, broker.BrokerError)
