"""Log lines of a process that stays: text for people, JSON for collectors of logs.

    {"time": "2026-11-22T12:00:00.000+00:00", "level": "warning", "logger": "broker", "process": 4711,
     "event": "handler-failed", "topic": "orders", "group": "billing", "message": "..."}

The verbs that stay have one option for it, `--log`. What an event has besides its message is in
`broker.log_fields`.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any

from broker.log_fields import fields_of
from recovery.humanize import printable

LOGGERS = ("broker", "recovery")


class JsonLines(logging.Formatter):
    """A JSON object for each line: time (UTC), level, logger, event and its fields, message, the error if any."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(), "logger": record.name, "process": record.process,
            **fields_of(record), "message": record.getMessage(),
        }  # fmt: skip
        if record.exc_info and record.exc_info[0] is not None:
            line |= {"error": record.exc_info[0].__name__, "traceback": self.formatException(record.exc_info)}
        return json.dumps(line)


class TextLines(logging.Formatter):
    """A line for each event, whatever a client of a server or a message put into it: an error has its own lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        return printable(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802
        return "\n".join(map(printable, super().formatException(ei).split("\n")))


def log_to_stderr(form: str | None) -> None:
    """Have what `broker` and `recovery` log, from level INFO on, on standard error; without a form, warnings alone."""
    if form is None:
        if logging.lastResort is not None:
            logging.lastResort.setFormatter(TextLines())
        return
    handler = logging.StreamHandler()  # standard error
    text = TextLines("%(asctime)s %(process)d %(levelname)s %(message)s")
    handler.setFormatter(JsonLines() if form == "json" else text)
    for name in LOGGERS:
        logger = logging.getLogger(name)
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False
