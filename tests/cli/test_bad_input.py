"""Bad input of every kind, for every verb: one clear sentence, the right exit code, never a traceback."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import broker
from recovery.scan.scanner import Scan
from tests.cli.command import command, process
from tests.cli.readable import SEGMENT_SIZE, long_store, run, segments
from tests.scan.small_broker import V3, V5
from tests.scan.small_stores import build

VERBS = ("verify", "pending", "info", "dump", "salvage")
SEGMENT = "0" * 20

by_verb = pytest.mark.parametrize("verb", VERBS)

# What is no store at all


def nothing(path: Path) -> Path:
    return path / "not-there"


def a_file(path: Path) -> Path:
    (path / "file").write_text("hello")
    return path / "file"


def an_empty_directory(path: Path) -> Path:
    (path / "empty").mkdir()
    return path / "empty"


def junk(path: Path) -> Path:
    (path / "junk").mkdir()
    for name in ("a.txt", "b.bin", "c"):
        (path / "junk" / name).write_bytes(os.urandom(100))
    return path / "junk"


def a_file_called_commitlog(path: Path) -> Path:
    (path / "store").mkdir()
    (path / "store" / "commitlog").write_bytes(b"x")
    return path / "store"


def a_commitlog_of_junk(path: Path) -> Path:
    (path / "store" / "commitlog").mkdir(parents=True)
    (path / "store" / "commitlog" / "00000000.log").write_bytes(b"x")
    return path / "store"


def the_commitlog_itself(path: Path) -> Path:
    build(V5, path / "store")
    return path / "store" / "commitlog"


def a_directory_above(path: Path) -> Path:
    build(V5, path / "above" / "store")
    return path / "above"


def without_commitlog(path: Path) -> Path:
    build(V5, path / "store")
    shutil.rmtree(path / "store" / "commitlog")
    return path / "store"


def below_a_file(path: Path) -> Path:
    return a_file(path) / "store"


NO_STORES = {
    nothing: "there is no such directory",
    a_file: "is a file, and a store is a directory",
    an_empty_directory: "it is empty",
    junk: "it holds a.txt, b.bin, c",
    a_file_called_commitlog: "commitlog in it is a file",
    a_commitlog_of_junk: "named as a segment is",
    the_commitlog_itself: "it holds segments itself",
    a_directory_above: "there is one in it",
    without_commitlog: "Put commitlog/ back",
    below_a_file: "file is a file",
}


@by_verb
@pytest.mark.parametrize("make", NO_STORES, ids=lambda make: make.__name__)
def test_what_is_no_store(
    verb: str, make: Callable[[Path], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Usage: one sentence that names the path and says what is there; nothing on standard output, nothing written."""
    path = make(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    for words in ((), ("--json",)):
        ran = run(capsys, verb, path, *words)
        assert (ran.code, ran.out) == (2, "")
        assert ran.err.startswith("checkback: ")
        assert len(ran.err.splitlines()) == 1
        assert str(path) in ran.err or str(path.parent) in ran.err
        assert NO_STORES[make] in ran.err
    assert sorted(tmp_path.rglob("*")) == before


# Stores that can be read although something is wrong with their files


def a_cut_segment(store: Path) -> None:
    os.truncate(segments(store)[0], 1500)


def a_segment_too_long(store: Path) -> None:
    with segments(store)[0].open("ab") as file:
        file.write(bytes(100))


def a_segment_missing_in_the_middle(store: Path) -> None:
    segments(store)[1].unlink()


def two_stores_mixed(store: Path) -> None:
    build(V3, store.parent / "other")
    shutil.copy(segments(store.parent / "other")[0], store / "commitlog" / f"{SEGMENT_SIZE // 2:020}")


def a_segment_of_another_store(store: Path) -> None:
    build(V3, store.parent / "other")
    shutil.copy(segments(store.parent / "other")[0], segments(store)[1])


def a_segment_of_junk(store: Path) -> None:
    segments(store)[1].write_bytes(os.urandom(SEGMENT_SIZE))


def a_segment_of_zeros(store: Path) -> None:
    segments(store)[0].write_bytes(bytes(SEGMENT_SIZE))


DAMAGED = {
    a_cut_segment: "segment-size",
    a_segment_too_long: "segment-size",
    a_segment_missing_in_the_middle: "segment-missing",
    two_stores_mixed: "segment-overlap",
    a_segment_of_another_store: "corrupt-region",
    a_segment_of_junk: "corrupt-region",
    a_segment_of_zeros: "corrupt-region",
}


@by_verb
@pytest.mark.parametrize("hurt", DAMAGED, ids=lambda hurt: hurt.__name__)
def test_damage_in_a_store_that_can_be_read(
    verb: str, hurt: Callable[[Path], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Verify finds it and exits with 1; pending warns with 4 that ends may be lost; the others show it and go on."""
    store = long_store(tmp_path)
    hurt(store)
    ran = run(capsys, verb, store, "--json")
    value = json.loads(ran.out)
    assert ran.code == {"verify": 1, "pending": 4}.get(verb, 0)
    assert "Traceback" not in ran.err
    if verb == "verify":
        assert DAMAGED[hurt] in value["counts"]
    elif verb == "pending":
        assert "ends may be lost" in ran.err
    elif verb == "dump":
        assert DAMAGED[hurt] in {entry["kind"] for entry in value}
    elif verb == "salvage":
        assert DAMAGED[hurt] in {loss["kind"] for loss in value["lost"]}
    else:
        assert DAMAGED[hurt] in {damage["kind"] for damage in value["damages"]}


@by_verb
def test_text_names_the_damaged_file(verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The screen says which file, too."""
    store = long_store(tmp_path)
    a_segment_missing_in_the_middle(store)
    ran = run(capsys, verb, store)
    assert str(store / "commitlog") in ran.out + ran.err


@by_verb
def test_an_empty_commitlog_is_a_new_store(verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing in it, nothing wrong with it."""
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    assert run(capsys, verb, tmp_path / "store").code == 0
    (tmp_path / "store" / "commitlog" / SEGMENT).touch()
    shutil.rmtree(tmp_path / "store.salvaged", ignore_errors=True)
    assert run(capsys, verb, tmp_path / "store").code == 0


def forbid(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    """Let the system refuse a file or directory; file modes would not do, root may read everything."""
    scandir, open_ = os.scandir, os.open

    def refuse(asked: object) -> None:
        if str(asked) == str(path):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    def refusing_scandir(directory: str = ".") -> Any:
        refuse(directory)
        return scandir(directory)

    def refusing_open(file: str, flags: int, *rest: Any, **more: Any) -> int:
        refuse(file)
        return open_(file, flags, *rest, **more)

    monkeypatch.setattr(os, "scandir", refusing_scandir)
    monkeypatch.setattr(os, "open", refusing_open)


@by_verb
@pytest.mark.parametrize("part", ["", "commitlog", f"commitlog/{SEGMENT}"])
def test_no_permission(
    verb: str, part: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Usage: who may read it, and what exactly may not be read."""
    store = tmp_path / "store"
    build(V5, store)
    forbid(monkeypatch, store / part)
    ran = run(capsys, verb, store)
    assert (ran.code, len(ran.err.splitlines())) == (2, 1)
    assert f"{store / part} may not be read by this user" in ran.err
    assert "mode drwx" in ran.err or "mode -rw" in ran.err
    assert not (tmp_path / "store.salvaged.unfinished").exists()


def test_a_derived_directory_without_permission(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Verify cannot judge what it cannot read; the CommitLog alone is enough for pending."""
    store = tmp_path / "store"
    build(V5, store)
    forbid(monkeypatch, store / "consumequeue" / "Orders")
    assert run(capsys, "verify", store).code == 2
    assert run(capsys, "pending", store).code == 0


@by_verb
def test_a_store_that_vanishes(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Segments expire under a reader; a whole store that goes is no traceback either."""
    store = tmp_path / "store"
    build(V5, store)
    scan = Scan.__iter__

    def gone(self: Scan) -> object:
        shutil.rmtree(store, ignore_errors=True)
        return scan(self)

    monkeypatch.setattr(Scan, "__iter__", gone)
    ran = run(capsys, verb, store)
    assert ran.code in (0, 1, 2)
    assert "Traceback" not in ran.err
    assert "defect" not in ran.err


def test_options_that_make_no_sense(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Usage: what is wrong, and what there is instead."""
    store = tmp_path / "store"
    build(V5, store)
    wrong = {
        ("verify",): "STORE",
        ("verify", store, "--limit", "many"): "--limit",
        ("verify", store, "--limit", "-1"): "--limit",
        ("nonsense", store): "nonsense",
        ("info",): "STORE",
        ("dump", store, "everything"): "everything",
        ("dump", store, "consumequeue"): "Orders/0",
        ("dump", store, "consumequeue", "Orders/99"): "Orders/0",
        ("dump", store, "consumequeue", "../../commitlog/0"): "Orders/0",
        ("dump", store, "checkpoint", "name"): "takes no name",
        ("dump", store, "checkpoint", "--topic", "Orders"): "--topic",
        ("dump", store, "statetable"): "only RocketMQ 3.0.0 to 3.1.4",
        ("dump", store, "redolog"): "only RocketMQ 3.0.0 to 3.1.4",
        ("dump", store, "index", "20990101000000000"): "2026",
        ("dump", store, "index", "--key", "k"): "--topic",
        ("dump", store, "config", "../abort"): "topics.json",
        ("salvage", store, store): "in each other",
        ("salvage", store, store / "inside"): "in each other",
        ("salvage", store, tmp_path): "in each other",
    }  # fmt: skip
    for words, said in wrong.items():
        ran = command(capsys, *words)
        assert ran.code == 2, words
        assert said in ran.err, words
        assert ran.out == "", words


def test_damaged_small_files_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that is not what it should be: 4 from dump, which was asked for it; a finding of verify; info goes on."""
    store = tmp_path / "store"
    build(V5, store)
    (store / "config" / "topics.json").write_text("{]")
    (store / "checkpoint").write_bytes(b"short")
    for what in (("config", "topics"), ("checkpoint",)):
        ran = command(capsys, "dump", store, *what)
        assert (ran.code, len(ran.err.splitlines())) == (4, 1)
        assert str(store) in ran.err
    assert json.loads(command(capsys, "verify", store, "--json").out)["counts"]["file-damaged"] == 2
    assert command(capsys, "info", store).code == 0


@pytest.mark.parametrize("raw", [b"", b"\xff" * 500, b"{}", b"[]", b'{"version": 1}', b"[" * 100_000])
def test_a_damaged_identity_is_named(raw: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a store of ours: a finding of verify, and 4 from who needs it."""
    store, small = tmp_path / "store", broker.StoreLayout(segment_bytes=1 << 20)
    with broker.open(store, layout=small, sync="os") as opened:
        opened.append(broker.Message("orders", b"one"))
    file = store / "checkback" / "store.json"
    file.write_bytes(raw)
    ran = command(capsys, "verify", store, "--json")
    (finding,) = json.loads(ran.out)["findings"]
    assert (ran.code, finding["kind"], finding["file"]) == (1, "file-damaged", str(file))
    for words in (
        ["rebuild", store],
        ["rebuild", store, "--apply"],
        ["copy", store, tmp_path / "to"],
        ["metrics", store],
    ):
        ran = command(capsys, *words)
        assert (ran.code, ran.out, len(ran.err.splitlines())) == (4, "", 1), words
        assert f"{file} is damaged (" in ran.err
        assert "xff" not in ran.err
        assert len(ran.err) < 400
    assert command(capsys, "info", store).code == 0
    assert not (tmp_path / "to").exists()


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("config/topics.json", 1), ("config/consumerOffset.json", 1), ("checkpoint", 1), ("checkback/store.json", 1),
        ("checkback/control", 4), ("lock", 0), ("abort", 0),
    ],
)  # fmt: skip
def test_a_pipe_in_place_of_a_file(name: str, code: int, tmp_path: Path) -> None:
    """Nobody waits for who writes into it. In processes of their own, which a hang does not take along."""
    store, small = tmp_path / "store", broker.StoreLayout(segment_bytes=1 << 20)
    with broker.open(store, layout=small, sync="os") as opened:
        opened.append(broker.Message("orders", b"one"))
        opened.create_topic("orders")
    (store / name).unlink(missing_ok=True)
    os.mkfifo(store / name)
    ran = process("verify", store)
    assert (ran.code, "Traceback" in ran.err) == (code, False), ran.err
    if code:
        assert f"{store / name} is a pipe or a socket" in ran.out + ran.err
    assert process("info", store).code in (0, 4)


def test_a_redo_log_that_holds_no_unit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is left of its files are a few bytes, which begin within a unit by their name: all units are missing."""
    store = tmp_path / "store"
    build(V3, store)
    logs = [one for one in (store / "transaction" / "redolog").rglob("*") if one.is_file()]
    for log in logs:
        log.unlink()
    logs[0].with_name(f"{7:020}").write_bytes(b"short")
    ran = command(capsys, "verify", store, "--json")
    assert (ran.code, ran.err) == (1, "")
    assert json.loads(ran.out)["counts"]["redo-missing"] > 0


def test_processes_end_as_the_functions_do(tmp_path: Path) -> None:
    """The same through the door that users take."""
    ran = process("verify", tmp_path / "nothing")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("checkback: ")
    build(V5, tmp_path / "store")
    (tmp_path / "store" / "config" / "topics.json").write_text("{]")
    assert process("dump", tmp_path / "store", "config", "topics").code == 4
    assert process("verify", tmp_path / "store").code == 1
