"""Log lines: each of ours names its event, the page lists them all, and the verbs write them in one form."""

from __future__ import annotations

import ast
import fcntl
import json
import logging
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from broker.log_fields import EVENTS, FIELDS, event
from recovery.cli.terminal import log_lines
from recovery.cli.terminal.log_lines import JsonLines
from tests.house.tree import ROOT, product, under

PAGE = (ROOT / "docs" / "telemetry.md").read_text(encoding="utf-8")
LEVELS = {"info", "warning", "error", "exception", "makeRecord"}
AIRFLOWS = {"recovery.airflow", "dags"}  # Airflow's own log, in its own form


def test_each_log_call_names_its_event() -> None:
    used, offenders = set(), []
    for module in product():
        if under(module.name, AIRFLOWS):
            continue
        for node in ast.walk(module.tree):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LEVELS):
                continue
            if not re.fullmatch(r"_?log(ger)?", ast.unparse(node.func.value)):
                continue
            extra = next((one.value for one in node.keywords if one.arg == "extra"), None)
            if isinstance(extra, ast.Call) and ast.unparse(extra.func) == "event":
                used.add(ast.literal_eval(extra.args[0]))
            else:
                offenders.append(f"{module.path}:{node.lineno}")
    assert not offenders
    assert used == set(EVENTS)


def test_the_page_lists_events_and_fields() -> None:
    assert dict(re.findall(r"^\| `([a-z-]+)` \| (.*) \|$", PAGE, re.MULTILINE)) == dict(EVENTS)
    assert all(f"`{name}`" in PAGE for name in FIELDS)


def test_a_line_has_event_and_fields() -> None:
    record = logging.LogRecord("broker", logging.WARNING, "", 0, "%s waits", ("charge",), None)
    record.__dict__.update(event("database-away", topic="orders", message_key="7F", group=None))
    line = json.loads(JsonLines().format(record))
    del line["time"], line["process"]
    assert line == {
        "level": "warning", "logger": "broker", "event": "database-away", "topic": "orders", "message_key": "7F",
        "message": "charge waits",
    }  # fmt: skip


def test_a_name_that_is_not_listed_is_a_defect() -> None:
    with pytest.raises(AssertionError):
        event("nothing-known")
    with pytest.raises(AssertionError):
        event("parked", colour="red")


@pytest.mark.parametrize("verb", ["serve", "work", "answer", "follow", "page", "check-back"])
def test_every_verb_that_stays_has_the_option(verb: str, tmp_path: Path) -> None:
    words = {"follow": ["127.0.0.1:1", "copy"]}.get(verb, ["nothing"])
    done = subprocess.run(
        [sys.executable, "-m", "recovery.cli", verb, *words, "--log", "xml"], cwd=tmp_path, capture_output=True,
        text=True, check=False, env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "COLUMNS": "200"},
    )  # fmt: skip
    assert done.returncode == 2
    assert "text or json, not 'xml'" in done.stderr


@pytest.mark.parametrize("form", ["text", None])
def test_foreign_text_makes_no_line_of_its_own(form: str | None, capfd: pytest.CaptureFixture[str]) -> None:
    """A producer group with a line feed wrote lines into the log of a server, and acted on its terminal."""
    program = (
        "import logging; from recovery.cli.terminal.log_lines import log_to_stderr\n"
        f"log_to_stderr({form!r}); log = logging.getLogger('broker.server')\n"
        "log.warning('END_TRANSACTION of %s', 'g\\n2026 WARNING forged\\x1b[2J\\u061c')\n"
        "try: 1 / 0\n"
        "except ZeroDivisionError: log.exception('failed\\r')"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    lines = capfd.readouterr().err.split("\n")
    assert lines[0].endswith("END_TRANSACTION of g\\x0a2026 WARNING forged\\x1b[2J\\u061c")
    assert lines[1].endswith("failed\\x0d")
    assert (lines[2], lines[-2]) == ("Traceback (most recent call last):", "ZeroDivisionError: division by zero")


def test_who_logs_does_not_wait_for_a_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server whose log went to a full pipe answered no client any more, and SIGTERM did not end it."""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    logger = logging.Logger("recovery.log")  # noqa: LOG001 - of this test; it says what is missing, too
    monkeypatch.setattr(log_lines, "log", logger)
    monkeypatch.setattr(log_lines, "_LAST_S", 0.01)
    with open(writing, "w", encoding="utf-8") as stream, open(reading, encoding="utf-8") as reader:
        monkeypatch.setattr(sys, "stderr", stream)
        logger.addHandler(handler := log_lines.Lines())
        for number in range(3000):
            logger.info("%d %s", number, "x" * 1000)
        handler.flush()  # gives up
        lines = []
        while "lines are missing here" not in (line := reader.readline()):
            lines.append(int(line.split()[0]))
        logger.info("the end")
        assert reader.readline() == "the end\n"
        monkeypatch.setattr(log_lines, "_LAST_S", 60.0)
        handler.flush()
    assert lines == list(range(len(lines)))
    assert line.startswith(f"{3000 - len(lines)} ")


def test_who_reads_as_the_process_ends_gets_the_lines_that_waited() -> None:
    """The thread that wrote them waited for the lock of the handler, which the end of the process holds."""
    program = (
        "import logging; from recovery.cli.terminal.log_lines import log_to_stderr\n"
        "log_to_stderr('text'); log = logging.getLogger('broker')\n"
        "for number in range(2000): log.info('%d %s', number, 'x' * 1000)\n"
        "print('logged', flush=True)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "logged\n"
        *lines, last = process.stderr.read().splitlines()
    assert last.endswith(f"{2000 - len(lines)} lines are missing here: nobody read them")


@pytest.mark.parametrize("length", [3, 5000])
def test_a_line_is_written_before_the_next_statement(
    length: int, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is killed, or prints, behind it has written it. A file takes long lines, too."""
    monkeypatch.setattr(log_lines.Lines, "_start", lambda _: None)  # no thread is needed
    log_lines.Lines().handle(logging.LogRecord("recovery", logging.INFO, "", 0, "x" * length, None, None))
    assert capfd.readouterr().err == "x" * length + "\n"


def test_an_application_may_put_an_object_in_the_place_of_standard_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has no descriptor had a traceback in place of each line."""
    written: list[str] = []
    monkeypatch.setattr(sys, "stderr", SimpleNamespace(write=written.append, flush=lambda: None))
    log_lines.Lines().handle(logging.LogRecord("recovery", logging.INFO, "", 0, "one", None, None))
    assert written == ["one\n"]
