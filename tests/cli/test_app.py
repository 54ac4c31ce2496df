"""The command line: what each verb prints, its JSON, its exit codes, and how it ends when something goes wrong."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
import pytest

from broker.errors import BrokerError, CorruptRecord, StoreLocked
from recovery.cli.app import whole_command_line
from recovery.cli.shared import VERBS as SHARED_VERBS
from recovery.cli.terminal import output as cli_output
from recovery.findings import KINDS
from recovery.verify import verifier as verification
from tests.cli.command import command, process
from tests.house.tree import ROOT
from tests.scan.small_broker import V3, V5
from tests.scan.small_stores import build

Golden = Callable[[str], Path]
Capture = pytest.CaptureFixture[str]

VERBS = ("verify", "pending", "info", "dump", "salvage")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    build(V5, tmp_path / "store")
    return tmp_path / "store"


def test_help_reads_well(capsys: Capture) -> None:
    """Each verb has a sentence, examples that name it, and --json."""
    ran = command(capsys, "--help")
    assert ran.code == 0
    for verb in VERBS:
        assert verb in ran.out
        of_verb = command(capsys, verb, "--help").out
        assert f"checkback {verb} " in of_verb
        assert "--json" in of_verb
    assert "4 corrupt" in ran.out


def test_version(capsys: Capture) -> None:
    assert command(capsys, "--version").out == f"checkback {version('checkback')}\n"


PROBE = """
import sys
from recovery.cli.app import main
try:
    main(sys.argv[1:])
finally:
    print(*sorted(sys.modules), file=sys.stderr)
"""


def loaded(*words: Any) -> set[str]:
    """The modules that `checkback WORDS` loads."""
    command = [sys.executable, "-c", PROBE, *map(str, words)]
    return set(subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True).stderr.split())


def rooms(modules: set[str]) -> set[str]:
    """Of the modules of verbs those that are among these."""
    return {name for _, name, _ in SHARED_VERBS.values() if f"recovery.cli.{name}" in modules}


def test_help_loads_no_verb() -> None:
    """Nor a heavy library, nor what reads and writes a store."""
    modules = loaded("--help")
    assert not rooms(modules)
    assert not modules & (HEAVY | {"numpy", "pyarrow", "broker.store.write.appender"})
    assert len([name for name in modules if name.startswith(("broker.", "recovery."))]) < 40


# What takes longer to load than a tiny store to read. `pyarrow.compute`: only casts and sorts of many strings need it.
HEAVY = {
    "asyncio", "email", "importlib.metadata", "logging.config", "multiprocessing", "pyarrow.compute", "pydantic",
    "pydoc", "pyspark", "rich", "sqlalchemy", "ssl", "typer",
}  # fmt: skip


@pytest.mark.parametrize("verb", ["verify", "pending"])
def test_a_verb_loads_its_own_work_only(verb: str, store: Path) -> None:
    """It reads, so that the writing half of a store is not loaded; nor is the database of a catalog that is not there.

    Nor another verb.
    """
    modules = loaded(verb, store)
    assert rooms(modules) == {"read"}
    assert "numpy" in modules
    assert not modules & (HEAVY | {"broker.live", "broker.store.writer", "broker.store.write.appender"})


def test_a_topic_is_read_without_numpy(store: Path) -> None:
    """`tail` looks at single records."""
    modules = loaded("tail", store, "orders")
    assert not modules & (HEAVY | {"numpy", "pyarrow"})


def test_a_verb_stands_in_the_module_that_is_said(capsys: Capture) -> None:
    """And an unknown one gets the nearest that there is."""
    assert set(whole_command_line().commands) == set(SHARED_VERBS)
    ran = command(capsys, "verfy")
    assert ran.code == 2
    assert "verify" in ran.err


def helps(command: Any, path: str = "checkback") -> Iterator[tuple[str, str]]:
    """The help of a verb and of those below it."""
    yield path, command.get_help(click.Context(command, info_name=path))
    for name, child in getattr(command, "commands", {}).items():
        yield from helps(child, f"{path} {name}")


def test_every_help_is_for_people() -> None:
    """No object of Python's is in it, and no line is wider than a terminal but an example's."""
    found = dict(helps(whole_command_line()))
    assert len(found) > len(SHARED_VERBS)
    for path, text in found.items():
        assert text.startswith(f"Usage: {path} "), text
        assert "object at" not in text, text
        assert "UNSET" not in text, text
        assert all(len(line) <= 80 for line in text.splitlines() if not line.startswith("  checkback ")), text


def test_a_shell_that_is_unknown_is_refused_in_a_sentence(tmp_path: Path) -> None:
    """And so is a home directory that is a file."""
    ran = process("--show-completion", SHELL="/bin/dash")
    assert (ran.code, ran.err) == (2, "checkback: SHELL is dash: completion is for bash, zsh and fish\n")
    (tmp_path / "home").touch()
    ran = process("--install-completion", SHELL="/bin/bash", HOME=str(tmp_path / "home"))
    assert (ran.code, len(ran.err.splitlines())) == (2, 1)


def test_the_shell_completes_verbs_and_files() -> None:
    """The shell asks the program what may follow."""
    asked = {
        ("checkback ver", "1"): "plain,verify",
        ("checkback dump STORE state", "3"): "plain,statetable",
        ("checkback verify sho", "2"): "file,sho",
    }
    for (words, number), wanted in asked.items():
        ran = process(_CHECKBACK_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD=number)
        assert ran.out.split() == [wanted]


@pytest.mark.parametrize(
    "words", [("verify",), ("pending",), ("pending", "--parked"), ("info",), ("info", "--count"), ("dump",)]
)
def test_json_is_one_value_and_nothing_else(words: tuple[str, ...], store: Path, capsys: Capture) -> None:
    ran = command(capsys, words[0], store, *words[1:], "--json")
    assert json.loads(ran.out)
    assert ran.err == ""


def test_verify_says_ok(store: Path, capsys: Capture) -> None:
    ran = command(capsys, "verify", store)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.splitlines()[-1] == "ok"
    assert str(store) in ran.out


def test_verify_shows_each_finding_in_a_line(golden: Golden, capsys: Capture) -> None:
    """Kind, file and offset in one line, whatever its length; then what the kinds mean; then the number."""
    path = golden("rocketmq-3.1.5-recovered")
    said = json.loads(command(capsys, "verify", path, "--json").out)
    ran = command(capsys, "verify", path)
    lines = ran.out.splitlines()
    assert ran.code == 1
    assert lines[-1] == f"{len(said['findings'])} findings"
    for finding in said["findings"]:
        assert f"{finding['kind']}: {finding['file']} at {finding['commitlog_offset']}: {finding['text']}" in lines
    for kind, number in said["counts"].items():
        assert f"{number:>8,}  {kind}: {KINDS[kind]}" in lines


def test_verify_lists_fewer_findings(golden: Golden, capsys: Capture) -> None:
    """--limit cuts the list, never the counts or the exit code."""
    path = golden("rocketmq-3.1.5-recovered")
    ran = command(capsys, "verify", path, "--json", "--limit", "5")
    value = json.loads(ran.out)
    assert (ran.code, len(value["findings"])) == (1, 5)
    assert value["findings_omitted"] == sum(value["counts"].values()) - 5
    text = command(capsys, "verify", path, "--limit", "5").out
    assert f"and {value['findings_omitted']} findings more" in text
    assert text.splitlines()[-1] == f"{sum(value['counts'].values())} findings"


def test_info_is_right_about_a_real_store(golden: Golden, capsys: Capture) -> None:
    """Everything that the files say at a glance."""
    said = json.loads(command(capsys, "info", golden("rocketmq-5.3.3-killed"), "--json").out)
    report = json.loads(command(capsys, "verify", golden("rocketmq-5.3.3-killed"), "--json").out)
    assert said["generation"] == report["generation"] == "half-op"
    assert (said["begin_offset"], said["end_offset"]) == (report["begin_offset"], report["end_offset"])
    assert (said["abort"], said["damages"], said["records"]) == (True, [], None)
    check_loop = [group for group in said["groups"] if group["group"] == "CID_RMQ_SYS_TRANS"]
    assert [group["lag"] for group in check_loop] == [360, 0]
    table = json.loads(command(capsys, "info", golden("rocketmq-3.1.5-clean"), "--json", "--count").out)
    assert (table["generation"], table["records"], table["abort"]) == ("state-table", 2130, False)
    assert table["state_table"]["used"] == 960
    text = command(capsys, "info", golden("rocketmq-3.1.5-clean")).out
    assert "clean shutdown" in text
    assert "960 slots" in text


def test_info_reads_little_of_a_large_log(store: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """The generation from both ends, the end of the log from where the queues point."""
    whole = json.loads(command(capsys, "info", store, "--json").out)
    assert whole["generation_from"] == "all records"
    monkeypatch.setattr("recovery.views.info.SAMPLE_BYTES", 1000)
    sampled = json.loads(command(capsys, "info", store, "--json").out)
    assert sampled["generation_from"] == "a sample"
    for name in ("generation", "end_offset", "queues", "groups"):
        assert sampled[name] == whole[name]


def test_info_sees_who_has_the_store_open(store: Path, capsys: Capture) -> None:
    """A 5.x broker holds a POSIX lock on the file `lock`."""
    if not Path("/proc/locks").exists():
        pytest.skip("only Linux says it")
    script = (
        "import fcntl, sys, time\n"
        f"file = open({str(store / 'lock')!r}, 'r+')\n"
        "fcntl.lockf(file, fcntl.LOCK_EX, 1, 0)\n"
        "print('locked', flush=True)\n"
        "sys.stdin.read()\n"
    )
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", script], **pipes) as broker:
        assert broker.stdout
        assert broker.stdout.readline() == b"locked\n"
        said = json.loads(command(capsys, "info", store, "--json").out)
        text = command(capsys, "info", store).out
        broker.communicate(b"")
    assert said["writers"] == [{"pid": broker.pid, "how": "holds the lock"}]
    assert f"open now: process {broker.pid} holds the lock" in text
    assert json.loads(command(capsys, "info", store, "--json").out)["writers"] == []


def test_environment_warns_of_another_owner(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two distributions that hold a package `broker` overwrite each other."""
    assert command(capsys, "info", "--environment").err == ""
    owners = {"broker": ["broker", "checkback"], "recovery": ["checkback"]}
    monkeypatch.setattr("importlib.metadata.packages_distributions", lambda: owners)
    ran = command(capsys, "info", "--environment")
    assert ran.code == 0
    assert "The package broker also belongs to broker" in ran.err
    assert json.loads(command(capsys, "info", "--environment", "--json").out)["clashes"] == {"broker": owners["broker"]}


# How it ends


def failing(error: BaseException) -> Callable[..., None]:
    def verify(*_: object, **__: object) -> None:
        raise error

    return verify


def caused(error: Exception, cause: BaseException) -> Exception:
    error.__cause__ = cause
    return error


ENDS = {
    "locked": (StoreLocked("the store is locked"), 3, "the store is locked"),
    "corrupt": (CorruptRecord("no magic", commitlog_offset=7, path="/s/x"), 4, "/s/x at CommitLog offset 7: no magic"),
    "refused": (BrokerError("not so"), 2, "not so"),
    "interrupted": (KeyboardInterrupt(), 130, "Interrupted."),
    "interrupted in a class": (caused(RuntimeError("in a class"), KeyboardInterrupt()), 130, "Interrupted."),
    "full": (OSError(28, "No space left on device", "/var/x"), 2, "/var/x: No space left on device"),
    "memory": (MemoryError(), 70, "not enough memory"),
    "threads": (RuntimeError("can't start new thread"), 70, "no more threads"),
    "defect": (ZeroDivisionError("oh"), 70, "ZeroDivisionError: oh"),
    "runtime": (RuntimeError("oh"), 70, "RuntimeError: oh"),
    "recursion": (RecursionError("deep"), 70, "RecursionError: deep"),
}


@pytest.mark.parametrize("name", ENDS)
def test_every_error_is_one_sentence(name: str, store: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never a traceback; details only when they are asked for."""
    error, code, said = ENDS[name]
    monkeypatch.setattr(verification, "verify", failing(error))
    monkeypatch.delenv("CHECKBACK_DEBUG", raising=False)
    ran = command(capsys, "verify", store)
    assert (ran.code, ran.out, len(ran.err.splitlines())) == (code, "", 1)
    assert ran.err.startswith("checkback: ")
    assert said in ran.err
    monkeypatch.setenv("CHECKBACK_DEBUG", "1")
    assert "Traceback" in command(capsys, "verify", store).err


def test_debug_may_stand_anywhere(store: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "verify", failing(ZeroDivisionError("oh")))
    for words in (("--debug", "verify", store), ("verify", store, "--debug")):
        monkeypatch.setenv("CHECKBACK_DEBUG", "")
        assert "Traceback" in command(capsys, *words).err


def test_ctrl_c_is_one_line(store: Path) -> None:
    """The same through a real signal, in the middle of the work."""
    script = (
        "import signal, time\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell's background job ignores it
        "from recovery.verify import verifier\n"
        "from recovery.cli.app import main\n"
        "verifier.verify = lambda *_, **__: (print('go', flush=True), time.sleep(60))\n"
        f"main(['verify', {str(store)!r}])\n"
    )
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, **pipes) as ran:
        assert ran.stdout
        assert ran.stderr
        assert ran.stdout.readline() == "go\n"
        ran.send_signal(signal.SIGINT)
        assert ran.wait(30) == 130
        assert ran.stderr.read() == "checkback: Interrupted.\n"


@pytest.mark.parametrize("how", ["raise KeyboardInterrupt", "raise RuntimeError('a class') from KeyboardInterrupt()"])
def test_ctrl_c_while_the_program_loads_is_one_line(how: str) -> None:
    script = (
        "import importlib.abc, sys\n"
        "class Interrupting(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        f"        if name == 'click': {how}\n"
        "sys.meta_path.insert(0, Interrupting())\n"
        "from recovery.cli.__main__ import main\n"
        "main()\n"
    )
    ran = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, "", "checkback: Interrupted.\n")


@pytest.mark.skipif(sys.platform != "linux", reason="needs /dev/full")
def test_output_that_nobody_takes(golden: Golden) -> None:
    """`| head` is quiet; a full disk behind standard output is a sentence; a closed one swallows."""
    path = golden("rocketmq-3.1.5-killed")
    head = process("dump", path, into="| head -n 1")
    assert (head.code, head.err, len(head.out.splitlines())) == (141, "", 1)
    assert process("--help", into="| true").code == 141  # click said 1
    full = process("dump", path, into="> /dev/full")
    told = "checkback: standard output: No space left on device. What was done before stays done\n"
    assert (full.code, full.err) == (2, told)
    version = process("--version", into="> /dev/full")
    assert (version.code, version.err) == (2, told)
    for words in (["info", path / "none"], ["info"], ["no-such-verb"]):
        assert process(*words, into="2> /dev/full").code == 2, "1 would be findings"
    closed = process("info", path, into=">&-")
    assert (closed.code, closed.err) == (0, "")


def test_any_encoding_and_any_name(tmp_path: Path) -> None:
    """A path that is no UTF-8, a terminal that knows only ASCII: still no traceback, and JSON that reads."""
    path = tmp_path / os.fsdecode(b"caf\xe9 \xff \x1b[31m [red]")
    build(V3, path)
    for verb in ("verify", "info", "pending"):
        ran = process(verb, path, PYTHONIOENCODING="ascii", PYTHONUTF8="0", LC_ALL="C")
        assert (ran.code, ran.err) == (0, "")
        assert "\x1b" not in ran.out
    assert json.loads(process("info", path, "--json", PYTHONIOENCODING="ascii").out)["path"] == str(path)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bar on standard error when it is one and the work takes a while; nothing otherwise."""
    for stream, shown in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setattr(cli_output, "_BAR_AFTER_S", 0)
        with cli_output.Bar("Verifying") as bar:
            time.sleep(0.001)
            bar(1 << 20, 2 << 20)
        assert ("Verifying" in stream.getvalue()) is shown
    monkeypatch.setattr(sys, "stderr", stream := Terminal())
    monkeypatch.setattr(cli_output, "_BAR_AFTER_S", 60)
    with cli_output.Bar("Verifying") as bar:
        bar(1, 2)
    assert stream.getvalue() == ""
