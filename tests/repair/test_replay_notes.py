"""What `FILE.replayed` says is about one file, one store and one run: whatever else is there, nothing is sent twice."""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import broker
from broker.errors import StoreError, StoreLocked
from broker.store.read.layout import StoreLayout
from recovery.repair.replaying import plan_replay, replay
from recovery.views.messages import export as exporting
from recovery.views.messages.export import export
from recovery.views.messages.find import Query, find
from tests.cli.command import command
from tests.house.tree import ROOT

SMALL = StoreLayout(1 << 18, 20_000, 24_000, 20_000, 1000, 4000)
MESSAGES = 5
_INFINITE = (
    b'{"body": "YQ==", "topic": "a", "tag": "", "keys": [], "properties": {}, "queue_id": 1e400, '
    b'"commitlog_offset": 0, "message_id": "", "store_timestamp_ms": 0, "unique_key": ""}'
)


@pytest.fixture
def store(tmp_path: Path) -> str:
    with broker.open(tmp_path / "shop.store", layout=SMALL, sync="os") as opened:
        for number in range(MESSAGES):
            opened.append(broker.Message("orders", b"%d" % number))
    return str(tmp_path / "shop.store")


@pytest.fixture
def file(store: str, tmp_path: Path) -> str:
    export(store, Query(topic="orders"), str(tmp_path / "orders.jsonl"))
    return str(tmp_path / "orders.jsonl")


def test_of_two_exports_to_one_file_the_second_to_end_is_refused(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They wrote into one unfinished file, each over the other's lines."""
    out = str(tmp_path / "both.jsonl")

    def meanwhile(*given: Any) -> Iterator[broker.ReceivedMessage]:
        words = [sys.executable, "-m", "recovery.cli", "export", store, out, "--topic", "orders", "--limit", "2"]
        subprocess.run(words, check=True, capture_output=True, cwd=ROOT)
        yield from find(*given)

    monkeypatch.setattr(exporting, "find", meanwhile)
    with pytest.raises(StoreError, match="is there already"):
        export(store, Query(topic="orders"), out)
    assert [one.message.body for one in exporting.exported(out)] == [b"0", b"1"]
    assert not list(tmp_path.glob("*.unfinished"))


def sent(store: str, topic: str) -> int:
    return len(list(find(store, Query(topic=topic))))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_between_a_message_and_its_note_sends_nothing_twice(
    store: str, file: str, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    def interrupted(self: broker.LiveStore, *args: Any, **options: Any) -> Any:
        stored = undisturbed(self, *args, **options)
        signal.raise_signal(number)
        return stored

    undisturbed, before = broker.LiveStore.append, signal.signal(number, signal.default_int_handler)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(broker.LiveStore, "append", interrupted)
            with pytest.raises(KeyboardInterrupt):
                replay(file, store, "again")
    finally:
        signal.signal(number, before)
    assert replay(file, store, "again").sent == MESSAGES - 1
    assert sent(store, "again") == MESSAGES


def test_the_next_step_names_the_other_topic(store: str, file: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Without it the copied line sends everything to the topics where it is already."""
    ran = command(capsys, "replay", file, store, "--topic", "again")
    assert f"To send: checkback replay {file} {store} --topic again --apply" in ran.out


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"done": "x"}', '{"done": -1}', '{"done": true}', "\xff", "7"])
def test_a_note_that_cannot_be_read_is_named(
    store: str, file: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(f"{file}.replayed").write_text(text, encoding="latin-1")
    for words in ([], ["--apply"]):
        ran = command(capsys, "replay", file, store, *words)
        assert (ran.code, ran.out) == (2, "")
        assert f"{file}.replayed cannot be read as the note of an earlier run" in ran.err
    assert sent(store, "orders") == MESSAGES


def test_a_new_export_under_the_old_name_is_not_taken_for_sent(store: str, file: str) -> None:
    assert replay(file, store, "again").sent == MESSAGES
    os.remove(file)
    export(store, Query(topic="again"), file)
    with pytest.raises(StoreError, match=r"about another export.*Remove that note"):
        plan_replay(file, store, "again")
    os.remove(f"{file}.replayed")
    assert plan_replay(file, store, "again").total == MESSAGES


def test_of_two_runs_at_once_one_is_refused(store: str, file: str) -> None:
    with open(file, "rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(StoreLocked, match="is being sent by another run"):
            replay(file, store, "again")
    assert sent(store, "again") == 0
    assert replay(file, store, "again").sent == MESSAGES


def test_an_empty_file_is_no_export(store: str, tmp_path: Path) -> None:
    (tmp_path / "cut.jsonl").touch()
    with pytest.raises(StoreError, match="is empty"):
        plan_replay(str(tmp_path / "cut.jsonl"), store)


def test_where_no_note_can_be_kept_nothing_is_sent(store: str, file: str) -> None:
    """Else each run would send the first message again. A directory in the note's place stops root, too."""
    os.mkdir(f"{file}.replayed.new")
    with pytest.raises(StoreError, match=r"orders\.jsonl\.replayed"):
        replay(file, store, "again")
    assert sent(store, "again") == 0


@pytest.mark.parametrize("message_type", ["TRANSACTION", "DELAY", "FIFO", "NORMAL"])
def test_messages_of_a_topic_with_a_type_are_sent_again(store: str, tmp_path: Path, message_type: str) -> None:
    """A transactional producer declares its topics: what it had committed was refused, behind what went before."""
    with broker.open(store) as opened:
        opened.create_topic("payments", queues=1, message_type="MIXED")
        opened.transactions.commit(opened.transactions.prepare(broker.Message("payments", b"5"), "shop"))
        opened.create_topic("payments", queues=1, message_type=message_type)
    file = str(tmp_path / "all.jsonl")
    assert export(store, Query(), file) == MESSAGES + 1
    assert replay(file, store).sent == MESSAGES + 1
    assert [one.body for one in find(store, Query(topic="payments", is_delivered_only=True))] == [b"5", b"5"]


def test_a_topic_that_may_not_be_written_is_named_before_anything_is_sent(store: str, tmp_path: Path) -> None:
    """Also where all is looked at alone: it said what it would send, and then sent a part of it."""
    with broker.open(store) as opened:
        opened.append(broker.Message("payments", b"5"))
        opened.create_topic("payments", perm=4)
    file = str(tmp_path / "all.jsonl")
    export(store, Query(), file)
    for act in (plan_replay, replay):
        with pytest.raises(StoreError, match=r"the topic payments of .* may not be written\. Nothing was sent"):
            act(file, store)
    assert len(list(find(store, Query(topic="orders")))) == MESSAGES
    assert replay(file, store, "refunds").sent == MESSAGES + 1


@pytest.mark.parametrize("lacks", [{"perm": 4}, {"write_queues": 0}])
def test_the_step_has_a_topic_written_to(
    store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], lacks: dict[str, int]
) -> None:
    """Without --queues, a topic all of whose queues are only read stays so."""
    with broker.open(store) as opened:
        opened.create_topic("payments", queues=6, message_type="", **lacks)
        opened.create_topic("orders", message_type="", **lacks)
    export(store, Query(), file := str(tmp_path / "all.jsonl"))
    with pytest.raises(StoreError) as refused:
        replay(file, store)
    _, _, step = str(refused.value).partition(": checkback ")
    assert command(capsys, *shlex.split(step)).code == 0
    assert replay(file, store).sent == MESSAGES


def test_two_processes_send_each_message_once(store: str, file: str) -> None:
    words = [sys.executable, "-m", "recovery.cli", "replay", file, store, "--topic", "again", "--apply"]
    runs = [subprocess.Popen(words, env={**os.environ, "PYTHONPATH": str(ROOT)}) for _ in range(2)]
    codes = [run.wait(60) for run in runs]
    assert 0 in codes
    assert set(codes) <= {0, 3}
    assert sent(store, "again") == MESSAGES
    assert json.loads(Path(f"{file}.replayed").read_text())["done"] == MESSAGES


@pytest.mark.parametrize(
    ("line", "number"),
    [(b"\x1f\x8b\x08", 1), (b'\n"M\xfcller"', 2), (b"\n" + b"[" * 100_000, 2), (b"\n" + _INFINITE, 2)],
    ids=["compressed", "Latin-1", "too deep", "infinite"],
)
def test_what_is_not_an_export_is_named_with_its_line(store: str, file: str, line: bytes, number: int) -> None:
    first = Path(file).read_bytes().partition(b"\n")[0]
    Path(file).write_bytes(line if number == 1 else first + line)
    with pytest.raises(StoreError, match=f"line {number}, is not a message of checkback export"):
        plan_replay(file, store)
