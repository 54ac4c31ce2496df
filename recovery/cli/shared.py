"""What every verb of the command line shares: its group and line in `--help`, exit codes, arguments, errors.

The verbs themselves are in the modules beside this one, one for each kind of work; `recovery.cli.app` imports that of
the verb that is called, and no other's.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from typing import Annotated, NoReturn

from recovery.cli.declaration import Argument, BadParameter, Exit, Option
from recovery.cli.terminal.output import warn
from recovery.durations import parse_duration
from recovery.humanize import parse_size

WELL, FINDINGS, USAGE, LOCKED, CORRUPT, DEFECT, INTERRUPTED, PIPE_CLOSED = 0, 1, 2, 3, 4, 70, 130, 141

DEBUG = "CHECKBACK_DEBUG"
LOG_FORMS = ("text", "json")

Store = Annotated[str, Argument(metavar="STORE", help="The directory that a broker calls storePathRootDir.")]
AsJson = Annotated[bool, Option("--json", help="Print one JSON value and nothing else.")]
Otlp = Annotated[
    str | None, Option("--otlp", metavar="URL", help="Send OpenTelemetry spans to this collector, over HTTP.")
]


def _checked(form: str | None) -> str | None:
    if form is not None and form not in LOG_FORMS:
        raise BadParameter(f"text or json, not {form!r:.20}")
    return form


_OPTION = Option(
    "--log", metavar="FORM", help="A line for each event on standard error: text or json.", callback=_checked
)
LogForm = Annotated[str, _OPTION]
LogOrNone = Annotated[str | None, _OPTION]


LOOK, WRITE, SETTLE = "Look", "Write", "Settle"
REPAIR, ANALYSE, RUN = "Repair", "Analyse", "Run"

# The verbs in the order of `checkback --help`: the group of each, its module in `recovery.cli`, and its line there.
VERBS: dict[str, tuple[str, str, str]] = {
    "info": (LOOK, "read", "Show generation, segments, queues, groups, who has it open."),
    "verify": (LOOK, "read", "Compare every derived file with the CommitLog."),
    "pending": (LOOK, "read", "List the transactions in doubt."),
    "dump": (LOOK, "read", "Print a file of the store, record by record."),
    "find": (LOOK, "copies", "Find messages by id, key, topic or time."),
    "trace": (LOOK, "read", "Show one transaction from its half message to its delivery."),
    "tail": (LOOK, "write", "Print the messages of a topic, and follow it."),
    "metrics": (LOOK, "run.serve", "Print what is to be watched, for Prometheus."),
    "send": (WRITE, "write", "Send one message."),
    "topic": (WRITE, "write", "List, show or create topics."),
    "consumer": (WRITE, "consumer", "Show or reset the positions of consumer groups."),
    "dlq": (WRITE, "consumer", "List dead letters, and send them again."),
    "check-back": (SETTLE, "checkback", "Query how transactions in doubt ended, and end them."),
    "answer": (SETTLE, "run.answer", "Answer the checks of a RocketMQ cluster from the ledger."),
    "park-list": (SETTLE, "checkback", "List the parked transactions."),
    "resolve": (SETTLE, "checkback", "Commit or roll back transactions manually."),
    "recheck": (SETTLE, "checkback", "Restart check-back for transactions."),
    "end": (SETTLE, "write", "Commit or roll back one half message manually."),
    "policy": (SETTLE, "checkback", "Explain the check-back policy of a topic."),
    "ledger": (SETTLE, "ledger", "Check a ledger's database; bind or accept it again."),
    "recover": (REPAIR, "repair", "Plan the recovery after a crash; --apply does it."),
    "rebuild": (REPAIR, "repair", "Rebuild the derived files; --apply replaces them."),
    "retain": (REPAIR, "repair", "Show which old messages may go; --apply removes them."),
    "copy": (REPAIR, "copies", "Copy a store that is in use; the copy is whole."),
    "export": (REPAIR, "copies", "Write messages to a file."),
    "replay": (REPAIR, "copies", "Send the messages of such a file again; --apply does it."),
    "move": (REPAIR, "run.move", "Carry a store to a RocketMQ cluster; --apply does it."),
    "salvage": (REPAIR, "read", "Copy what is readable into a new store."),
    "transactions": (ANALYSE, "analytics", "Write one Parquet row for each transaction."),
    "report": (ANALYSE, "analytics", "Write a verification as one HTML page."),
    "work": (RUN, "run.work", "Run the handlers of an application, and check-back."),
    "new": (RUN, "run.work", "Make a small application that runs and is tested."),
    "serve": (RUN, "run.serve", "Serve a store to RocketMQ clients in any language."),
    "follow": (RUN, "run.follow", "Keep a verified copy of a live master's log."),
    "page": (RUN, "run.page", "Show stores in a browser: in doubt, parked, consumers."),
    "airflow": (RUN, "run.up", "Check an Airflow with our DAGs: airflow doctor."),
    "settings": (RUN, "run.up", "Check the file of the stores that Airflow looks after."),
    "up": (RUN, "run.up", "Start Airflow with all DAGs on this machine."),
    "torture": (RUN, "run.torture", "Prove that kills, power cuts, a full disk lose nothing here."),
    "demo": (RUN, "consumer", "Run a flash sale whose processes are killed at random."),
}


def listing(name: str) -> dict[str, str]:
    """Where a verb appears in `checkback --help`: arguments of `VerbGroup.verb`."""
    group, _, line = VERBS[name]
    return {"panel": group, "short_help": line}


def examples(*lines: str) -> str:
    """The foot of a verb's help."""
    return "\n".join(["Examples:", *(f"  checkback {line}" for line in lines)])


def fail(sentence: str, code: int) -> NoReturn:
    """Say in a sentence what is wrong, and end."""
    if os.environ.get(DEBUG) and sys.exc_info()[0] is not None:
        traceback.print_exc()
    _flush()
    if sentence:
        warn(sentence)
    raise Exit(code)


def seconds(option: str, text: str) -> float:
    """The duration that an option says, in seconds. Raises BadParameter."""
    try:
        return parse_duration(text) / 1000
    except ValueError as error:
        raise BadParameter(f"{text!r}: {error}", param_hint=option) from None


def interval_s(option: str, text: str) -> float:
    """The same for what is done again and again: longer than nothing. Raises BadParameter."""
    found = seconds(option, text)
    if found <= 0:
        raise BadParameter(f"{text!r}: an interval is longer than nothing", param_hint=option)
    return found


def bytes_of(option: str, text: str) -> int:
    """The size that an option says, in bytes. Raises BadParameter."""
    try:
        return parse_size(text)
    except ValueError as error:
        raise BadParameter(f"{text!r}: {error}", param_hint=option) from None


def now_ms() -> int:
    """The time, in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def secret(name: str) -> str | None:
    """What the environment holds under a name: for what must not stand on the command line, where others see it."""
    return os.environ.get(name) or None


def _flush() -> None:
    """Write what is held back; what cannot be written, because nobody reads it or the disk is full, is dropped."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
