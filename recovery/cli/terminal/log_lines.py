"""Log lines of a process that serves: text for people, JSON for collectors of logs."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime

FORMATS = ("text", "json")


class JsonLines(logging.Formatter):
    """A JSON object for each line: time (UTC), level, logger, message, and the error's class and traceback."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(), "logger": record.name, "process": record.process,
            "message": record.getMessage(),
        }  # fmt: skip
        if record.exc_info and record.exc_info[0] is not None:
            line |= {"error": record.exc_info[0].__name__, "traceback": self.formatException(record.exc_info)}
        return json.dumps(line)


def log_to_stderr(form: str) -> None:
    """Have what `broker` logs, from level INFO on, on standard error."""
    handler = logging.StreamHandler()  # standard error
    text = logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    handler.setFormatter(JsonLines() if form == "json" else text)
    logger = logging.getLogger("broker")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
