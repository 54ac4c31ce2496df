"""Stores that RocketMQ wrote: which of them are written, and what of theirs we settle."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

import broker
from broker.format.commitlog import encode, make_record
from broker.format.topics import HALF_TOPIC
from broker.store.disk.paths import Paths
from broker.store.write.pending_record import draft
from broker.transaction.events import WHY
from recovery.rebuild.rebuilder import rebuild
from recovery.repair import crash
from recovery.verify.verifier import verify
from tests.golden.unpack import unpack
from tests.store.build import HOST
from tests.transaction.opened import message, opened


def test_the_in_doubt_ones_of_3_are_settled(tmp_path: Path) -> None:
    """Their records have no unique key and no CRC of ours; the ends that we write of them are sound."""
    path = unpack("rocketmq-3.1.5-recovered", tmp_path / "store")
    before = verify(path).transactions
    crash.apply(crash.plan(crash.survey(str(path))), broker_is_stopped=True, still_s=0)
    with broker.open(path) as store:
        halves = list(store.transactions.in_doubt())
        assert len(halves) == before["in_doubt"]
        store.transactions.commit(halves[0])
        store.transactions.rollback(halves[1])
        store.transactions.commit(halves[2].reference, extra_properties={WHY: "the row is there"})
        store.transactions.rollback(halves[3].reference, extra_properties={WHY: "it is not"})
        assert halves[0].store_host == store.transactions.half(halves[0].commitlog_offset).store_host != HOST
        half = store.transactions.prepare(message(topic="ours"), "shop")
        store.transactions.commit(half)
    report = verify(path)
    assert report.ok, [str(finding) for finding in report.findings][:4]
    after = report.transactions
    assert after["in_doubt"] == before["in_doubt"] - 4
    assert after["committed"] == before["committed"] + 3


def test_a_slot_that_names_another_half_message_decides_nothing(tmp_path: Path, each_engine: str) -> None:
    """A damaged table: what the slot says is of another transaction, and an end would go by that."""
    with opened(tmp_path, sync="os") as store:
        half = [store.transactions.prepare(message(), "shop") for _ in range(3)][1]
        directory = {"state-table": "transaction/statetable", "half-op": "checkback/halfstates"}[each_engine]
        with (tmp_path / "store" / directory / f"{0:020}").open("r+b") as file:
            file.seek(24)
            file.write((half.commitlog_offset + 8).to_bytes(8, "big"))
        end = store.end_offset
        for extra in ({}, {WHY: "the row is there"}):
            for decide in (store.transactions.commit, store.transactions.rollback):
                with pytest.raises(broker.TransactionError, match="slot 1 of the state table is not its own"):
                    decide(half, extra_properties=extra)
        with pytest.raises(broker.TransactionError, match="slot 1 of the state table is not its own"):
            store.transactions.state(half)
        assert store.end_offset == end


def test_a_table_that_is_swapped_is_seen_at_once(tmp_path: Path, each_engine: str) -> None:
    """By a store that has the old one mapped: a slot that was damaged is in doubt again, and can be ended."""
    with opened(tmp_path, sync="os") as store:
        halves = [store.transactions.prepare(message(), "shop") for _ in range(3)]
        directory = {"state-table": "transaction/statetable", "half-op": "checkback/halfstates"}[each_engine]
        table = tmp_path / "store" / directory / f"{0:020}"
        with table.open("r+b") as file:
            file.seek(24 + 23)
            file.write(b"\x08")
        assert store.transactions.in_doubt_slots() == [0, 2]
        assert rebuild(tmp_path / "store", apply=True).differences
        assert store.transactions.in_doubt_slots() == [0, 1, 2]
        assert store.transactions.state(halves[1]) is broker.TransactionState.PREPARED
        store.transactions.rollback(halves[1])
    assert verify(tmp_path / "store").ok


def test_a_store_that_4_wrote_to_as_well_is_only_read(tmp_path: Path) -> None:
    """Half messages of both generations: each says otherwise how they ended."""
    with opened(tmp_path) as store:
        store.writer.append([draft(HALF_TOPIC, b"half", {}, queue_id=0, born_timestamp_ms=1)])
    with pytest.raises(broker.StoreError, match=r"\(mixed\)"):
        opened(tmp_path)
    with broker.open(tmp_path / "store", read_only=True) as reader:
        assert reader.message(HALF_TOPIC, 0, 0) is not None


def test_a_store_of_the_gap_is_only_read(tmp_path: Path) -> None:
    """RocketMQ 3.1.5–4.2 numbered no half message, and nobody can ever settle them."""
    log = b""
    for number in range(3):
        record = make_record(
            "orders", b"locked", b"PGROUP\x01shop\x02", born_host=HOST, store_host=HOST, born_timestamp_ms=number,
            store_timestamp_ms=number, commitlog_offset=len(log), sys_flag=4,
        )  # fmt: skip
        log += encode(record)
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    (tmp_path / "store" / "commitlog" / f"{0:020}").write_bytes(log.ljust(4096, b"\0"))
    with pytest.raises(broker.StoreError, match=r"nobody can ever settle \(generation gap\)"):
        broker.open(tmp_path / "store")


def shell_words(command: str) -> list[str]:
    """The words of a command as a shell takes it, for which `;` and `&` stand by themselves."""
    words = shlex.shlex(command, posix=True, punctuation_chars=True)
    words.whitespace_split = True
    return list(words)


@pytest.mark.parametrize(
    ("content", "url"),
    [
        ({"url": "rocketmq://one:9876;two:9876", "is_done": False}, "rocketmq://one:9876;two:9876"),
        ({"is_done": False}, "URL"),
    ],
    ids=["two-name-servers", "damaged"],
)
def test_the_command_that_finishes_a_move_is_one_for_a_shell(
    tmp_path: Path, content: dict[str, object], url: str
) -> None:
    """A semicolon between name servers ends a command of a shell, and a blank a word of it."""
    path = str(tmp_path / "my store")
    with broker.open(path):
        pass
    Path(Paths(path).moved).write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(broker.StoreError) as caught:
        broker.open(path)
    _, command = str(caught.value).split("To finish that: ")
    command, _ = command.split(". To write here")
    assert shell_words(command) == ["checkback", "move", path, url, "--apply"]


def test_the_command_that_takes_a_store_over_is_one_for_a_shell(tmp_path: Path) -> None:
    path = unpack("rocketmq-3.1.5-recovered", tmp_path / "their store")
    with pytest.raises(broker.StoreError) as caught:
        broker.open(path)
    _, command = str(caught.value).split("then run: ")
    command, _ = command.split(". Until then")
    assert shell_words(command) == ["checkback", "recover", str(path), "--apply", "--broker-is-stopped"]
