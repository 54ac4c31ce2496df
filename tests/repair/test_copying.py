"""A copy of a store that is in use verifies without findings, and opens; messages are found, exported, sent again."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import broker
from broker.errors import NotUnderstood, StoreError
from broker.store.read.layout import StoreLayout
from recovery.repair.copying import copy_store
from recovery.repair.replaying import REPLAY_OF, plan_replay, replay
from recovery.repair.salvage import salvage
from recovery.transactions.in_doubt import Pending
from recovery.verify.verifier import verify
from recovery.views.messages.export import export
from recovery.views.messages.find import Query, find
from tests.cli.command import command
from tests.spark.inline import comparable, verify_inline

SMALL = StoreLayout(1 << 18, 20_000, 24_000, 20_000, 1000, 4000)
WRITER = """
import random, sys, broker
chance, path, engine = random.Random(sys.argv[3]), sys.argv[1], sys.argv[2]
with broker.open(path, transactions=engine) as store:
    print("open", flush=True)
    number = 0
    while True:
        number += 1
        message = broker.Message("Orders", chance.randbytes(200), keys=[f"{sys.argv[3]}-{number}"])
        if chance.random() < 0.4:
            store.append(message, queue_id=number % 2)
            continue
        half = store.transactions.prepare(message, "shop", queue_id=number % 2)
        end = chance.choice(["commit", "rollback", "", "commit"])
        if end:
            getattr(store.transactions, end)(half)
"""


@contextmanager
def writing(path: Path, engine: str, count: int = 2) -> Iterator[None]:
    """Processes that write to a store in every way, and are killed at the end."""
    with broker.open(path, layout=SMALL, transactions=engine):
        pass
    words = [sys.executable, "-c", WRITER, str(path), engine]
    workers = [subprocess.Popen([*words, str(one)], stdout=subprocess.PIPE, text=True) for one in range(count)]
    try:
        for worker in workers:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "open\n"
        yield
    finally:
        for worker in workers:
            worker.send_signal(signal.SIGKILL)
            worker.wait()
            assert worker.stdout is not None
            worker.stdout.close()


@pytest.mark.parametrize("engine", ["state-table", "half-op"])
def test_copies_of_a_store_that_is_written_are_whole(tmp_path: Path, engine: str) -> None:
    """Taken at any instant; each opens, and what was in doubt can be settled in it."""
    path = tmp_path / "store"
    with writing(path, engine):
        for number in range(4):
            time.sleep(0.4)
            out = tmp_path / f"copy{number}"
            report = copy_store(str(path), str(out), link=number % 2 == 1)
            assert report.was_live
    for number in range(4):
        out = tmp_path / f"copy{number}"
        found = verify(out)
        assert found.ok, found.findings.counts
        assert found.records > 20
        assert comparable(verify_inline(str(out), 40_000)) == comparable(found)
        if number % 2 == 1:
            continue
        halves = list(Pending(str(out), 0))
        with broker.open(out) as store:
            half = store.transactions.half(halves[0].commitlog_offset)
            assert store.transactions.commit(half).queue_offset is not None
        assert verify(out).ok
    assert verify(path).ok, "what was killed is as it was"


def test_a_copy_does_not_know_the_ledgers(tmp_path: Path) -> None:
    """Check-back on a copy would decide for transactions that the original is about to commit."""
    path = tmp_path / "store"
    with broker.open(path):
        pass
    (path / "checkback" / "ledgers").mkdir()
    (path / "checkback" / "ledgers" / "one.json").write_text("{}")
    copy_store(str(path), str(tmp_path / "copy"))
    assert not (tmp_path / "copy" / "checkback" / "ledgers").exists()
    copy_store(str(path), str(tmp_path / "moved"), with_ledgers=True)
    assert (tmp_path / "moved" / "checkback" / "ledgers" / "one.json").exists()


@pytest.mark.parametrize("copies", [copy_store, salvage])
def test_who_may_not_look_into_the_store_may_not_look_into_its_copy(
    tmp_path: Path, copies: Callable[[str, str], object]
) -> None:
    """A store that was closed to others was copied into a directory that all may read."""
    source, target = tmp_path / "store", tmp_path / "copy"
    with broker.open(source, layout=SMALL) as store:
        store.append(broker.Message("orders", b"1"))
    source.chmod(0o700)
    copies(str(source), str(target))
    assert target.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("copies", [copy_store, salvage])
def test_a_file_system_without_permissions_takes_a_copy(
    tmp_path: Path, copies: Callable[[str, str], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A FAT stick that root mounted takes files of all, and refuses each chmod."""

    def refused(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    with broker.open(tmp_path / "store", layout=SMALL) as store:
        store.append(broker.Message("orders", b"1"))
    monkeypatch.setattr(os, "chmod", refused)
    copies(str(tmp_path / "store"), str(tmp_path / "copy"))
    assert verify(tmp_path / "copy").ok


def test_what_cannot_be_copied_is_refused_before_anything_is_made(
    golden_copy: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "kinds").mkdir()
    path, out = golden_copy("kinds/rocketmq-5.5.0-rocksdb"), tmp_path / "out"
    (path / "abort").touch()
    with pytest.raises(NotUnderstood, match="stop it to copy this store"):
        copy_store(str(path), str(out))
    (path / "abort").unlink()
    for target, words in (
        (path / "inside", "lie in each other"),
        (path, "lie in each other"),
        (tmp_path, "each other"),
    ):
        with pytest.raises(StoreError, match=words):
            copy_store(str(path), str(target))
    assert command(capsys, "copy", path, out).code == 0
    assert verify(out).ok
    ran = command(capsys, "copy", path, out)
    assert (ran.code, "is there already" in ran.err) == (2, True)


def test_the_copy_of_a_brokers_store_gets_its_derived_files_from_its_log(
    golden_copy: Callable[[str], Path], tmp_path: Path
) -> None:
    """As if the broker had been writing: its queues end before its log does."""
    (tmp_path / "kinds").mkdir()
    path, out = golden_copy("kinds/rocketmq-5.5.0-clean"), tmp_path / "out"
    (path / "abort").touch()
    queue = min((path / "consumequeue" / "Plain").rglob("0" * 20))
    raw = bytearray(queue.read_bytes())
    raw[60:] = bytes(len(raw) - 60)
    queue.write_bytes(raw)
    assert not verify(path).ok
    report = copy_store(str(path), str(out))
    assert report.is_rebuilt
    assert verify(out).ok
    assert (out / "abort").exists(), "a broker that starts on it recovers its timers"
    assert not (out / "checkback" / "replaced").exists() or not list((out / "checkback" / "replaced").iterdir())


def test_a_record_that_fails_its_crc_is_copied_as_it_is(golden_copy: Callable[[str], Path], tmp_path: Path) -> None:
    """A rebuild refuses it; a copy of a broker's store has no other queues than those of its log."""
    (tmp_path / "kinds").mkdir()
    path, out = golden_copy("kinds/rocketmq-5.5.0-clean"), tmp_path / "out"
    (path / "abort").touch()
    record = next(broker.open(path, read_only=True).records())
    segment = min((path / "commitlog").iterdir())
    raw = bytearray(segment.read_bytes())
    raw[raw.index(record.body)] ^= 1
    segment.write_bytes(raw)
    queue = min((path / "consumequeue" / "Plain").rglob("0" * 20))
    queue.write_bytes(bytes(queue.stat().st_size))
    assert copy_store(str(path), str(out)).is_rebuilt
    assert verify(out).findings.counts == {"crc-mismatch": 1}


# Look-ups


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """Twenty messages, of which each fifth is a half message that waits."""
    path = tmp_path / "shop"
    with broker.open(path, layout=SMALL) as store:
        for number in range(20):
            message = broker.Message("orders", f"body {number}".encode(), "new", [f"k{number}", "all"], {"a": "b"})
            if number % 5 == 4:
                store.transactions.prepare(message, "shop")
            else:
                store.append(message, queue_id=0)
    return path


def test_a_message_is_found_by_all_that_operators_know_of_it(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(shop)
    everything = list(find(path, Query(topic="orders")))
    assert len(everything) == 20
    third = everything[3]
    for query in (
        Query(identifier=str(third.commitlog_offset)), Query(identifier=third.message_id), Query(key="k3"),
        Query(unique_key=third.unique_key or ""),
        Query(key="all", since_ms=third.store_timestamp_ms, until_ms=third.store_timestamp_ms + 1, topic="orders"),
    ):  # fmt: skip
        assert third in list(find(path, query)), query
    assert len(list(find(path, Query(key="all")))) == 20
    assert not list(find(path, Query(key="k3", topic="other")))
    after = [one for one in everything if one.store_timestamp_ms >= third.store_timestamp_ms]
    assert list(find(path, Query(since_ms=third.store_timestamp_ms))) == after
    ran = command(capsys, "find", path, "--key", "k4", "--json")
    assert (ran.code, json.loads(ran.out)[0]["what"]) == (0, "half message")
    assert command(capsys, "find", path, "--key", "nothing").code == 1
    assert command(capsys, "find", path).code == 2
    assert command(capsys, "find", path, "--since", "yesterday").code == 2
    for file in (shop / "index").iterdir():
        file.unlink()
    assert [one.keys[0] for one in find(path, Query(key="k3"))] == ["k3"], "without an index the log is read"


def test_messages_of_a_batch_are_found(golden_copy: Callable[[str], Path], tmp_path: Path) -> None:
    (tmp_path / "kinds").mkdir()
    path = str(golden_copy("kinds/rocketmq-5.3.3-batches"))
    found = list(find(path, Query(topic="Bat", since_ms=1)))
    offsets = [(one.queue_id, one.queue_offset) for one in found if one.topic == "Bat"]
    assert len(offsets) == len(set(offsets)) > 50


def test_a_replay_says_what_it_sends_and_goes_on_where_it_was(
    shop: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file, target = str(tmp_path / "the orders.jsonl"), tmp_path / "target"
    with broker.open(target, layout=SMALL):
        pass
    assert command(capsys, "export", shop, file, "--topic", "orders").code == 0
    assert command(capsys, "export", shop, file, "--topic", "orders").code == 2
    ran = command(capsys, "replay", file, target)
    assert (ran.code, "Would send 16 messages to orders" in ran.out) == (0, True)
    assert f"Nothing was sent. To send: checkback replay '{file}' {target} --apply" in ran.out
    assert not list(find(str(target), Query(topic="orders")))

    def stop(done: int, _total: int) -> None:
        if done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        replay(file, str(target), progress=stop)
    assert plan_replay(file, str(target)).total == 11
    assert replay(file, str(target)).sent == 11
    sent = list(find(str(target), Query(topic="orders")))
    before = [one for one in find(str(shop), Query(topic="orders")) if one.transaction_type == 0]
    assert [(one.body, one.tag, one.keys, one.properties["a"]) for one in sent] == [
        (one.body, one.tag, one.keys, "b") for one in before
    ]
    assert [one.properties[REPLAY_OF] for one in sent] == [one.message_id for one in before]
    assert replay(file, str(target)).sent == 0
    with pytest.raises(StoreError, match="an earlier run sent"):
        plan_replay(file, str(shop))
    assert verify(target).ok


def test_a_file_that_is_no_export_is_refused_before_anything_is_sent(shop: Path, tmp_path: Path) -> None:
    file = tmp_path / "orders.jsonl"
    assert export(str(shop), Query(topic="orders"), str(file)) == 16
    good = file.read_text().splitlines()
    for number, line, words in (
        (0, "{}", "line 1"),
        (7, good[7][:-9], "line 8"),
        (9, good[9].replace("Y", "%", 1), "line"),
    ):
        file.write_text("\n".join([*good[:number], line, *good[number + 1 :]]))
        with pytest.raises(StoreError, match=words):
            replay(str(file), str(shop))
    assert len(list(find(str(shop), Query(topic="orders")))) == 20
    assert not os.path.exists(f"{file}.replayed")
