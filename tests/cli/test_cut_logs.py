"""Logs that end too early: what the queues name behind the end is missed, and a record at the very end is not."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import broker
from broker.errors import CorruptStore
from broker.format.consumequeue import UNIT_SIZE
from recovery.rebuild.rebuilder import rebuild
from tests.cli.command import command
from tests.cli.readable import long_store, run, segments
from tests.scan.small_broker import V5
from tests.scan.small_stores import build


@pytest.mark.parametrize("without", ["it", "the first", "a link", "a directory"])
def test_the_end_of_the_log_is_missing(without: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The queues name more than the log holds: no verb says that the store is as it should be, or writes to it."""
    store = long_store(tmp_path)
    first, *others = segments(store)
    for segment in others[-1:] if without == "it" else (first, *others):
        segment.unlink()
    if without == "the first":
        first.touch()
    elif without == "a link":
        first.symlink_to("nowhere")
    elif without == "a directory":
        first.mkdir()
    before = sorted({*store.rglob("*"), store / "lock"})
    (cause,) = json.loads(run(capsys, "verify", store, "--json").out)["causes"]
    assert cause["kind"] == "log-short"
    ran = run(capsys, "pending", store)
    assert (ran.code, len(ran.err.splitlines())) == (4, 1)
    assert cause["text"] in ran.err
    (loss,) = json.loads(run(capsys, "salvage", store, "--json").out)["lost"]
    assert (loss["kind"], loss["reason"]) == ("log-short", cause["text"])
    shutil.rmtree(tmp_path / "store.salvaged")
    assert "Nothing was lost" not in run(capsys, "salvage", store).out
    for words in ((), ("--apply", "--broker-is-stopped")):
        ran = command(capsys, "rebuild", store, *words)
        assert (ran.code, ran.out, len(ran.err.splitlines())) == (4, "", 1)
        is_there = without in ("it", "the first")  # else no file is left that could be a segment
        short = f"{cause['text']}. What is derived from a log without its end"
        assert (short if is_there else "the log is not there (no segment)") in ran.err
    assert sorted({*store.rglob("*"), store / "lock"}) == before


def test_the_end_of_the_log_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Encrypted, or overwritten, up to the end: a torn tail by its bytes, but the queues name whole records in it."""
    store = long_store(tmp_path)
    last = segments(store)[-1]
    last.write_bytes(b"\xa5" * last.stat().st_size)
    before = {path: path.stat().st_mtime_ns for path in store.rglob("*")}
    causes = json.loads(run(capsys, "verify", store, "--json").out)["causes"]
    texts = {cause["kind"]: cause["text"] for cause in causes}
    assert sorted(texts) == ["log-short", "torn-tail"]
    for verb in ("pending", "rebuild"):
        ran = run(capsys, verb, store)
        assert (ran.code, len(ran.err.splitlines())) == (4, 1)
        assert texts["log-short"] in ran.err
    with pytest.raises(CorruptStore, match="the log ends at"):
        rebuild(store, apply=True, broker_is_stopped=True, still_s=0)
    assert {path: path.stat().st_mtime_ns for path in store.rglob("*")} == before


def test_a_segment_that_lacks_only_zeros_behind_its_blank_lacks_no_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a copy that trims files leaves it: `pending` said that ends may be lost there."""
    store = long_store(tmp_path)
    first, *_ = segments(store)
    used = len(first.read_bytes().rstrip(b"\0"))  # up to the magic of the blank
    os.truncate(first, used)
    (cause,) = json.loads(run(capsys, "verify", store, "--json").out)["causes"]
    assert cause["kind"] == "segment-size"
    assert run(capsys, "pending", store).code == 0
    os.truncate(first, used - 1)
    ran = run(capsys, "pending", store)
    assert (ran.code, len(ran.err.splitlines())) == (4, 1)


def test_an_end_that_fails_its_crc_may_be_any_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One bit made a commit a plain message: its transaction was delivered, and is listed as in doubt."""
    store = tmp_path / "store"
    with broker.open(store, sync="os") as live:
        half = live.transactions.prepare(broker.Message("Orders", b"body"), "shop")
        live.transactions.commit(half)
        end = max(record.commitlog_offset for record in live.records())
    (segment,) = segments(store)
    with segment.open("r+b") as file:
        file.seek(end + 39)  # the last byte of its sys_flag
        file.write(b"\0")
    assert "crc-mismatch" in json.loads(run(capsys, "verify", store, "--json").out)["counts"]
    ran = run(capsys, "pending", store)
    assert (ran.code, len(ran.err.splitlines())) == (4, 1)
    assert f"damaged in 1 place(s), first at {end} ({segment})" in ran.err


@pytest.mark.parametrize("what", ["a bit of an index header", "a unit", "a bit of a unit"])
def test_a_damaged_derived_file_does_not_say_that_the_log_is_short(
    what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What it names behind the end of the log was never there: rebuild mends it, as verify says."""
    store = tmp_path / "store"
    build(V5, store)
    if what != "a bit of an index header":
        path = max((store / "consumequeue" / "Orders").rglob("0*"))
        at, damage = 0, b"\x11" * UNIT_SIZE
        while any(path.read_bytes()[at + UNIT_SIZE : at + 2 * UNIT_SIZE]):
            at += UNIT_SIZE
        if what == "a bit of a unit":
            damage = bytes([0, 0, 1])  # of its CommitLog offset, which is then 1 TiB further
    else:
        path = max((store / "index").iterdir())
        at, damage = 27, bytes([path.read_bytes()[27] ^ 1])  # of end_commitlog_offset, which is then 4 GiB further
    with path.open("r+b") as file:
        file.seek(at)
        file.write(damage)
    report = json.loads(run(capsys, "verify", store, "--json").out)
    assert (report["ok"], report["causes"]) == (False, [])
    assert [run(capsys, verb, store).code for verb in ("pending", "rebuild")] == [0, 1]


@pytest.mark.parametrize("more", range(10))
def test_a_log_that_a_copy_cut_behind_its_last_record(
    more: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fewer bytes are left than a blank takes: no broker ends a segment so, and the record counts all the same."""
    store = tmp_path / "store"
    build(V5, store)
    for segment in segments(store)[1:]:
        segment.unlink()
    for derived in ("consumequeue", "index", "checkpoint"):
        path = store / derived
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    whole = json.loads(command(capsys, "verify", store, "--json").out)
    (segment,) = segments(store)
    for size in (whole["end_offset"], whole["end_offset"] + more):
        os.truncate(segment, size)
    ran = json.loads(command(capsys, "verify", store, "--json").out)
    assert [ran[name] for name in ("counts", "records", "digest")] == [
        whole[name] for name in ("counts", "records", "digest")
    ]
    if segment.stat().st_size % 8:
        refused = command(capsys, "rebuild", store)
        assert (refused.code, len(refused.err.splitlines())) == (2, 1)
        assert f"{segment} has {segment.stat().st_size} bytes" in refused.err
        assert "mappedFileSizeCommitLog" in refused.err
    with segment.open("ab") as file:
        file.write(b"\1")
    torn = json.loads(command(capsys, "verify", store, "--json").out)
    assert (torn["records"], torn["counts"].get("torn-tail")) == (whole["records"], 1)


def test_messages_that_the_end_of_the_log_held_are_not_passed_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`find` and `export` took what is left for all there is."""
    store = long_store(tmp_path)
    topic = next(path.name for path in (store / "consumequeue").iterdir())
    whole = json.loads(run(capsys, "find", store, "--topic", topic, "--json").out)
    segments(store)[-1].unlink()
    ran = run(capsys, "find", store, "--topic", topic)
    assert ran.code == 4
    assert 0 < len(ran.out.splitlines()) < 2 * len(whole)
    assert "the log ends at" in ran.err
    assert run(capsys, "find", store, "--id", str(whole[0]["commitlog_offset"])).code == 0
    assert run(capsys, "find", store, "--id", str(whole[-1]["commitlog_offset"])).code == 4
    ran = run(capsys, "find", store, "--topic", topic, "--limit", "1")
    assert (ran.code, ran.err) == (0, "")
    assert run(capsys, "export", store, tmp_path / "lines", "--topic", topic).code == 4
    assert not (tmp_path / "lines").exists()


def test_a_message_that_the_index_or_its_id_names_is_found_in_a_damaged_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """That the log ends at the damage was not so, and nothing that a search by key reads is there."""
    path = tmp_path / "store"
    with broker.open(path, layout=broker.StoreLayout(segment_bytes=8 << 20), sync="os") as store:
        for number in range(9):
            last = store.append(broker.Message("Orders", bytes(2 << 20), keys=f"k{number}")).commitlog_offset
            if number == 7:
                at = last
    *_, middle, segment = (one for one in segments(path) if int(one.name) <= at)
    with segment.open("r+b") as file:
        file.seek(at - int(segment.name))
        file.write(b"\xff" * 8)
    for key in ("k3", "k8"):
        ran = run(capsys, "find", path, "--key", key)
        assert (ran.code, ran.err) == (0, "")
    middle.unlink()
    ran = run(capsys, "find", path, "--id", str(last))
    assert (ran.code, ran.err) == (0, "")


def test_a_block_of_zeros_in_the_last_segment_is_not_the_end_of_the_log(
    golden_copy: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """A disk lost it in a power cut: `find` and `export` ended there with 0, and `trace` called a commit a rollback."""
    store = golden_copy("rocketmq-5.3.3-clean")
    (segment,) = (store / "commitlog").iterdir()
    half, end, size = 1291, 1860, 555
    assert "committed" in command(capsys, "trace", store, str(half)).out
    with segment.open("r+b") as file:
        file.seek(end)
        file.write(bytes(size))
    for words in (
        ("trace", store, str(half)),
        ("find", store, "--topic", "OrderTopic"),
        ("export", store, store.parent / "lines", "--topic", "OrderTopic"),
    ):
        ran = command(capsys, *words)
        assert ran.code == 4
        assert f"at CommitLog offset {end}: no record begins here" in ran.err
        assert "rolled back" not in ran.out
    with broker.open(store, read_only=True) as opened, pytest.raises(CorruptStore):
        list(opened.records())
