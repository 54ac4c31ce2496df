"""Where a verb writes what a person named: never into a store, over nothing but an older page, whole or not at all."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

import broker
from recovery.repair.replaying import replay
from recovery.scan import spill
from recovery.views.messages.export import export
from recovery.views.messages.find import Query
from recovery.work.liveness import LivenessFile
from tests.cli.command import command, process
from tests.house.tree import ROOT

SEGMENT = "commitlog/00000000000000000000"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "shop.store"
    with broker.open(path, layout=broker.StoreLayout(segment_bytes=1 << 20), sync="os") as opened:
        opened.append(broker.Message("orders", b"x" * 5000))
        opened.transactions.prepare(broker.Message("orders", b"one"), "shop")
    return path


def contents(store: Path) -> dict[str, bytes]:
    return {str(path.relative_to(store)): path.read_bytes() for path in store.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "words",
    [
        ["report", "{}", f"{{}}/{SEGMENT}"],
        ["report", "{}", "{}/report.html"],
        ["trace", "{}", "0", "--html", f"{{}}/{SEGMENT}"],
        ["export", "{}", "{}/checkback/orders.jsonl", "--topic", "orders"],
        ["transactions", "{}", "{}/rows"],
        ["copy", "{}.other", "{}/copy"],
        ["salvage", "{}.other", "{}/salvaged"],
        ["torture", "{}/checkback"],
        ["torture", "{}/commitlog"],
    ],
)
def test_nothing_is_written_into_a_store(store: Path, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """A report over a segment loses the messages in it; a new file makes `rebuild` refuse the store."""
    with broker.open(f"{store}.other", layout=broker.StoreLayout(segment_bytes=1 << 20), sync="os"):
        pass
    (store / "link").symlink_to("commitlog")
    before = contents(store)
    ran = command(capsys, *[word.replace("{}", str(store)) for word in words])
    assert ran.code == 2
    assert f"lies in the store {store}" in ran.err
    assert contents(store) == before


def test_a_link_into_a_store_is_followed(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    link = store.parent / "page.html"
    link.symlink_to(store / SEGMENT)
    before = contents(store)
    assert "lies in the store" in command(capsys, "report", store, link).err
    assert contents(store) == before


@pytest.mark.parametrize("words", [["report", "{}"], ["trace", "{}", "0", "--html"]])
def test_a_page_replaces_pages_only(store: Path, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    given = [word.replace("{}", str(store)) for word in words]
    database, page = store.parent / "shop.db", store.parent / "shop.html"
    database.write_bytes(b"SQLite format 3\0")
    ran = command(capsys, *given, database)
    assert (ran.code, database.read_bytes()) == (2, b"SQLite format 3\0")
    assert "is there already, and is not an HTML page" in ran.err
    missing = command(capsys, *given, store.parent / "no" / "page.html")
    assert (missing.code, "there is no directory" in missing.err) == (2, True)
    for _ in range(2):
        command(capsys, *given, page)
        assert page.read_text().startswith("<!doctype html>")
    assert page.stat().st_mode & 0o400
    assert sorted(path.name for path in store.parent.iterdir()) == ["shop.db", "shop.html", "shop.store"]


def test_a_page_goes_to_a_pipe(store: Path) -> None:
    ran = process("trace", store, 0, "--html", "/dev/stdout", into="| cat")
    assert ran.out.startswith("<!doctype html>")


@pytest.mark.parametrize("verb", ["copy", "export", "report", "salvage", "transactions"])
def test_without_room_the_sentence_says_so_and_nothing_stays(store: Path, verb: str) -> None:
    """A limit on the size of files stands for a full disk."""
    out = store.parent / "out"
    words = [verb, store, out, *(["--topic", "orders"] if verb == "export" else [])]
    line = [sys.executable, "-m", "recovery.cli", *map(str, words)]
    values = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    limited = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (2048, 2048))  # noqa: E731 - one line, used once
    ran = subprocess.run(line, capture_output=True, text=True, check=False, env=values, preexec_fn=limited)
    assert ran.returncode == 2, ran.stderr
    assert "does not fit" in ran.stderr
    assert "ulimit -f" in ran.stderr
    assert [path.name for path in store.parent.iterdir()] == ["shop.store"]


@pytest.mark.parametrize("verb", ["verify", "pending"])
def test_temporary_files_without_room(
    store: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """A full /tmp: "standard output: No space left on device", and `salvage` said it of the disk of its copy."""
    monkeypatch.setattr(spill, "PARTITION_BYTES", 1 << 18)
    monkeypatch.setattr(spill, "_HELD_BYTES", 0)
    monkeypatch.setattr(spill.Spill, "_file", lambda _self, _partition: Path("/dev/full"))
    ran = command(capsys, verb, store)
    assert ran.code == 2
    assert "temporary files: " in ran.err
    assert "Free some, or set TMPDIR to a directory on another disk" in ran.err


def test_a_rebuild_that_only_compares_needs_room_for_temporary_files(store: Path) -> None:
    """It named a file that was gone, and said that sends work again when there is space."""
    line = [sys.executable, "-m", "recovery.cli", "rebuild", str(store)]
    values = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    limited = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (2048, 2048))  # noqa: E731 - one line, used once
    ran = subprocess.run(line, capture_output=True, text=True, check=False, env=values, preexec_fn=limited)
    assert ran.returncode == 2, ran.stderr
    assert "checkback: temporary files: " in ran.stderr
    assert "sends" not in ran.stderr


def test_a_page_of_a_store_whose_path_is_not_utf_8(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The byte is shown as on a terminal."""
    odd = Path(os.fsdecode(os.fsencode(store.parent) + b"/st\xffore"))
    store.rename(odd)
    for words in (
        ["report", odd, store.parent / "report.html"],
        ["trace", odd, "0", "--html", store.parent / "t.html"],
    ):
        ran = command(capsys, *words)
        assert (ran.code in (0, 1), ran.err) == (True, "")
    assert "st\\udcffore" in (store.parent / "report.html").read_text()


def test_files_beside_the_output_follow_no_link(store: Path, tmp_path: Path) -> None:
    """In a directory of everybody's another user may have put a link under the name: what it leads to was emptied."""
    precious, out, notes = tmp_path / "precious", tmp_path / "out.jsonl", tmp_path / "out.jsonl.replayed.new"
    precious.write_text("precious")
    alive = tmp_path / "alive"
    for name in (f"{out}.{os.getpid()}.unfinished", str(notes), f"{alive}.{os.getpid()}"):
        Path(name).symlink_to(precious)
    assert export(str(store), Query(topic="orders"), str(out)) > 0
    replay(str(out), str(store))
    LivenessFile(str(alive))
    assert precious.read_text() == "precious"
    assert alive.is_file()
