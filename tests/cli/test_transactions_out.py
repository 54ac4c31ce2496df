"""Where the rows of transactions may go, and what the program for schedulers says before Spark starts."""

from __future__ import annotations

import dataclasses
import errno
import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace

import pytest

import broker
from broker.errors import BrokerError
from recovery.cli.spark_job import main
from recovery.pipeline import in_memory
from recovery.pipeline.transaction_files import TransactionFiles
from tests.cli.command import command
from tests.cli.readable import long_store
from tests.house.tree import ROOT

STORE = "rocketmq-5.3.3-clean"


@pytest.mark.parametrize("spark", [[], ["--spark", "local[1]"]])
def test_a_directory_that_is_there_stays_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Callable[[str], Path], spark: list[str]
) -> None:
    """By its URI, too: what is written there is removed as a whole when it fails, with all that was in it before."""
    kept = tmp_path / "data" / "of somebody else"
    kept.parent.mkdir()
    kept.write_text("x", encoding="utf-8")
    for out in (str(kept.parent), kept.parent.as_uri()):
        ran = command(capsys, "transactions", golden(STORE), out, *spark)
        assert (ran.code, "is there already" in ran.err) == (2, True)
    assert [path.name for path in kept.parent.iterdir()] == [kept.name]


def test_nothing_is_written_into_a_store(capsys: pytest.CaptureFixture[str], golden: Callable[[str], Path]) -> None:
    """A directory among its segments is a finding of every later verification."""
    store = golden(STORE)
    for out in (store / "out", store / "commitlog" / "out"):
        for given in (out, out.as_uri()):
            ran = command(capsys, "transactions", store, given)
            assert (ran.code, "lies in the store" in ran.err, out.exists()) == (2, True, False)


def test_a_uri_may_have_options(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Callable[[str], Path]
) -> None:
    """As those of an object store of one's own, s3://archive/out?endpoint_override=...: files went behind them."""
    out = tmp_path / "out"
    ran = command(capsys, "transactions", golden(STORE), f"{out.as_uri()}?endpoint_override=127.0.0.1:9000")
    assert (ran.code, ran.err) == (0, "")
    assert sorted(path.name for path in out.iterdir()) == ["_checkback.json", "part-00000.parquet"]


def test_no_secret_of_a_uri_is_in_the_manifest() -> None:
    archive = "s3://AKIA:s3cret@archive"
    out, store = f"{archive}/out?scheme=http", f"{archive}/shop@home.store"
    written = TransactionFiles(out, store, "half-op", {}, "0", 0, 0, 0, 0, 0, [], 0.0)
    assert written.as_json()["path"] == "s3://archive/out?scheme=http"
    assert written.as_json()["store"] == "s3://archive/shop@home.store"
    local = dataclasses.replace(written, path="/data/out", store="/data/a://x@b.store").as_json()
    assert (local["path"], local["store"]) == ("/data/out", "/data/a://x@b.store")


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("abfss://lake@shop.dfs.core.windows.net/out", "abfss://lake@shop.dfs.core.windows.net/out"),
        ("abfss://lake:s3cret@shop.dfs.core.windows.net/out", "abfss://lake@shop.dfs.core.windows.net/out"),
        ("abfs://:s3cret@shop.blob.core.windows.net/lake", "abfs://shop.blob.core.windows.net/lake"),
        ("abfs://a/b?tenant_id=t&client_secret=s3cret&client_id=c", "abfs://a/b?tenant_id=t&client_id=c"),
        ("abfs://a/b?sv=2022&sig=s3cret", "abfs://a/b?sv=2022"),
        ("hdfs://shop@names:8020/out", "hdfs://shop@names:8020/out"),
    ],
)
def test_the_manifest_names_the_place_of_a_uri_without_its_secrets(uri: str, shown: str) -> None:
    """Of Azure the container was taken for a user, and left out; the secrets in options stayed."""
    written = TransactionFiles(uri, uri, "half-op", {}, "0", 0, 0, 0, 0, 0, [], 0.0).as_json()
    assert (written["path"], written["store"]) == (shown, shown)


def test_a_reader_that_left_is_no_failure_of_spark(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`| head -c 9` of what is complete: it said that Spark's Java process had ended, and to run it again."""
    from recovery.spark import sessions

    def left(_: object) -> None:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    monkeypatch.setattr(sessions, "session", lambda *_, **__: SimpleNamespace(stop=lambda: None))
    made = SimpleNamespace(as_json=dict)
    monkeypatch.setattr("recovery.spark.jobs.write_transactions", lambda *_, **__: made)
    monkeypatch.setattr("recovery.cli.spark_job.print_json", left)
    assert main(["transactions", str(golden(STORE)), str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err == "checkback: [Errno 32] Broken pipe\n"


def test_without_shared_semaphores_one_process_does_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container without /dev/shm: it said "No such file or directory"."""

    def refuse(*_: object, **__: object) -> None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))

    monkeypatch.setattr("multiprocessing.synchronize.SemLock.__init__", refuse)
    ran = command(capsys, "transactions", golden(STORE), tmp_path / "out")
    assert (ran.code, ran.err) == (0, "")
    assert any(path.suffix == ".parquet" for path in (tmp_path / "out").rglob("*"))


def test_a_directory_that_cannot_be_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Callable[[str], Path]
) -> None:
    """It said that it cannot be deleted."""
    (tmp_path / "file").touch()
    ran = command(capsys, "transactions", golden(STORE), tmp_path / "file" / "out")
    assert (ran.code, "Cannot create directory" in ran.err, "delete" in ran.err) == (2, True, False)


def test_paths_that_are_not_utf_8(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Callable[[str], Path]
) -> None:
    """PyArrow takes none: a directory for the rows is refused, and a store is read, compressed segments too."""
    store = tmp_path / os.fsdecode(b"caf\xe9.store")
    shutil.copytree(golden(STORE), store)
    ran = command(capsys, "transactions", store, tmp_path / os.fsdecode(b"caf\xe9.rows"))
    assert (ran.code, "is not UTF-8" in ran.err, "Give another directory" in ran.err) == (2, True, True)

    for segment in (store / "commitlog").iterdir():
        segment.with_name(f"{segment.name}.gz").write_bytes(gzip.compress(segment.read_bytes(), 1))
        segment.unlink()
    ran = command(capsys, "transactions", store, tmp_path / "rows")
    assert (ran.code, ran.err) == (0, "")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["package", "/nowhere/x.zip"], "No such file or directory"),
        (["verify", "/nowhere/shop.store"], "there is no such directory"),
        (["transactions", "/nowhere/shop.store", "out"], "there is no such directory"),
    ],
)
def test_the_program_for_schedulers_says_one_sentence(
    capsys: pytest.CaptureFixture[str], words: list[str], sentence: str
) -> None:
    """And starts no Spark for it."""
    assert main(words) == 2
    assert sentence in capsys.readouterr().err


def test_splits_that_are_too_small_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """With the least that may be given."""
    with pytest.raises(SystemExit, match="2"):
        main(["--split-bytes", "10", "verify", "shop.store"])
    assert "a whole number of at least 1024, not '10'" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_interrupted_run_leaves_nothing(
    tmp_path: Path, golden: Callable[[str], Path], number: signal.Signals
) -> None:
    """Its processes would hold the pipes of the caller, and half of OUT would be in the way of the next run."""
    out, words = tmp_path / "rows", [sys.executable, "-m", "recovery.cli", "transactions"]
    for _ in range(10):
        running = subprocess.Popen(
            [*words, golden(STORE), out], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        while not out.exists():
            assert running.poll() is None, running.communicate()
            time.sleep(0.005)
        running.send_signal(number)
        printed, said = running.communicate(timeout=60)  # until all that hold the pipes have ended
        if running.returncode:
            break
        shutil.rmtree(out)  # the signal came when all was written
    assert (running.returncode, printed, said) == (130, "", "checkback: Interrupted.\n")
    assert not out.exists()


def _stops_within_its_result(fifo: str) -> bytes:
    """What a process does that is ended while the pipe takes a part of what it has to say."""
    whole = Connection._send  # type: ignore[attr-defined]

    def part(self: Connection, raw: bytes) -> None:
        whole(self, raw[:5])
        Path(fifo).write_text("stopped", encoding="utf-8")
        signal.pause()

    Connection._send = part  # type: ignore[attr-defined]
    return bytes(1 << 20)


def test_an_interrupt_within_a_result_ends_the_run(tmp_path: Path) -> None:
    """Ctrl-C hung for good: the pool waited for the rest of a result whose process had been ended."""
    fifo = str(tmp_path / "fifo")
    os.mkfifo(fifo)

    def interrupted() -> None:
        with in_memory.workers(1) as pool:
            pool.submit(_stops_within_its_result, fifo)
            assert Path(fifo).read_text(encoding="utf-8") == "stopped"
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()


def test_a_process_that_the_system_ends_is_no_defect() -> None:
    """As it does when memory is short: "checkback has a defect here: BrokenProcessPool"."""

    def killed() -> None:
        with in_memory.workers(1) as pool:
            list(in_memory._run_in(pool, _dies, [None]))

    with pytest.raises(BrokerError, match=r"was ended from outside, .* Run it again"):
        killed()


def test_a_process_that_is_killed_within_a_large_result_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pool waited for the other half of it, and another process for its turn to write: without end."""
    monkeypatch.setattr(in_memory, "_LOOK_S", 0.1)

    def killed() -> None:
        with in_memory.workers(2) as pool:
            list(in_memory._run_in(pool, _dies_within_its_result, [None, None]))

    with pytest.raises(BrokerError, match=r"was ended from outside, .* Run it again"):
        killed()


def test_processes_start_without_ctrl_c() -> None:
    """A terminal sends it to them, too, and one that was still loading printed a traceback."""
    with in_memory.workers(1) as pool:
        (masks,) = in_memory._run_in(pool, _blocked_signals, [None])
    assert signal.SIGINT in masks
    assert signal.SIGTERM not in masks, "which ends them"
    assert signal.SIGINT not in _blocked_signals(None)


def _dies_within_its_result(_nothing: None) -> bytes:
    def half(connection: Connection, _content: bytes) -> None:
        os.write(connection.fileno(), (1 << 20).to_bytes(4, "big") + b"half of it")
        os.kill(os.getpid(), signal.SIGKILL)

    Connection.send_bytes = half  # type: ignore[method-assign, assignment]
    return b""


def _dies(_nothing: None) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _blocked_signals(_nothing: None) -> set[int]:
    return set(signal.pthread_sigmask(signal.SIG_BLOCK, []))


def test_a_rebuild_that_is_terminated_leaves_no_temporary_files(tmp_path: Path, golden: Callable[[str], Path]) -> None:
    """A timeout of an operator's job would fill /tmp with the size of the derived files each time."""
    store, temporary = golden(STORE), tmp_path / "temporary"
    temporary.mkdir()
    for _ in range(10):
        running = subprocess.Popen(
            [sys.executable, "-m", "recovery.cli", "rebuild", store], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)},
        )  # fmt: skip
        while not list(temporary.iterdir()):
            assert running.poll() is None, running.communicate()
            time.sleep(0.001)
        running.terminate()
        printed, said = running.communicate(timeout=60)
        if not printed:
            break
    assert (running.returncode, printed, said) == (130, "", "checkback: Interrupted.\n")
    assert list(temporary.iterdir()) == []


def test_a_log_that_lacks_its_end_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], golden_copy: Callable[[str], Path]
) -> None:
    """Transactions whose ends were lost with it are in doubt in the files, and those behind it are not there."""
    store = golden_copy(STORE)
    (segment,) = (store / "commitlog").iterdir()
    size = segment.stat().st_size
    os.truncate(segment, 697_083)
    os.truncate(segment, size)
    for path in (segment, *(store / "consumequeue").rglob("*")):
        os.utime(path, (0, 0))  # nobody writes it
    ran = command(capsys, "transactions", store, tmp_path / "out")
    assert "The log has 1 damaged place(s)" in ran.out
    assert "transactions may be missing" in ran.out
    ran = command(capsys, "transactions", store, tmp_path / "json", "--json")
    (damage,) = json.loads(ran.out)["damages"]
    assert (damage["kind"], damage["commitlog_offset"]) == ("log-short", 697_083)


def test_a_segment_that_is_missing_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What lay in it is in no file, and its manifest listed no damage."""
    store = long_store(tmp_path)
    first, middle, last = sorted((store / "commitlog").iterdir())
    os.truncate(last, 1_000)  # behind its last record: no transaction was there
    ran = command(capsys, "transactions", store, tmp_path / "cut", "--json")
    assert json.loads(ran.out)["damages"] == []
    middle.unlink()
    ran = command(capsys, "transactions", store, tmp_path / "out")
    assert "The log has 1 damaged place(s)" in ran.out
    ran = command(capsys, "transactions", store, tmp_path / "json", "--json")
    (damage,) = json.loads(ran.out)["damages"]
    size = first.stat().st_size
    assert (damage["kind"], damage["commitlog_offset"], damage["size"]) == ("segment-missing", size, size)


def test_the_last_segment_of_a_store_of_ours_that_is_missing_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its control page, not its queues, says how far the log went."""
    size = 8 << 20
    with broker.open(tmp_path / "store", layout=broker.StoreLayout(segment_bytes=size), sync="os") as store:
        for _ in range(4):
            store.append(broker.Message("Orders", bytes(3 << 20)))
    for segment in (tmp_path / "store" / "commitlog").iterdir():
        if int(segment.name) >= size:
            segment.unlink()
    ran = command(capsys, "transactions", tmp_path / "store", tmp_path / "out", "--json")
    damages = [(one["kind"], one["commitlog_offset"]) for one in json.loads(ran.out)["damages"]]
    assert ("segment-missing", size) in damages
