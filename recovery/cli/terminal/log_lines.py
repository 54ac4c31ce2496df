"""Log lines of a process that stays: text for people, JSON for collectors of logs.

    {"time": "2026-11-22T12:00:00.000+00:00", "level": "warning", "logger": "broker", "process": 4711,
     "event": "handler-failed", "topic": "orders", "group": "billing", "message": "..."}

The verbs that stay have one option for it, `--log`. What an event has besides its message is in
`broker.log_fields`. The thread that logs, such as the event loop of a server, does not wait for the reader of a pipe:
what that does not take at once is written by another thread.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import stat
import sys
import threading
import time
import weakref
from datetime import UTC, datetime
from typing import Any, TextIO

from broker.log_fields import event, fields_of
from recovery.humanize import printable

LOGGERS = ("broker", "recovery")
_HELD_MAX = 1 << 20  # characters of lines that wait for the reader; more are left out
_LAST_S = 1.0  # how long the end of the process waits for it

log = logging.getLogger("recovery.log")


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


class Lines(logging.Handler):
    """Writes to standard error without making the caller wait; what no reader takes is left out and counted."""

    def __init__(self, level: int = logging.NOTSET) -> None:
        super().__init__(level)
        self._begin()
        _all.add(self)

    def _begin(self) -> None:
        """Also in a forked child, which has no such thread, and whose parent writes its own lines."""
        self._changed = threading.Condition()
        self._lines: list[str] = []
        self._held = self._left_out = 0
        self._is_writing = False
        self._writer: threading.Thread | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Write the line, or keep it for the thread that waits for the reader."""
        try:
            line = f"{self.format(record)}\n"
            with self._changed:
                if sys.stderr is None:  # it was closed before the process began
                    return
                if not self._lines and not self._is_writing and _is_taken_at_once(sys.stderr, line):
                    _write(sys.stderr, line)
                else:
                    self._keep(line)
        except Exception:  # noqa: BLE001 - as logging's own handlers
            self.handleError(record)

    def _keep(self, line: str) -> None:
        if self._held + len(line) > _HELD_MAX and self._lines:
            self._left_out += 1
            return
        self._lines.append(line)
        self._held += len(line)
        self._start()
        self._changed.notify_all()

    def _start(self) -> None:
        if self._writer is None:
            writer = threading.Thread(target=self._write_kept, name="checkback-log", daemon=True)
            try:
                writer.start()
            except RuntimeError:  # the process is at its end
                self._write_now()
            else:
                self._writer = writer

    def flush(self) -> None:
        """Wait until the lines are written, a second at most."""
        until_s = time.monotonic() + _LAST_S
        with self._changed:
            while (self._lines or self._is_writing) and (left_s := until_s - time.monotonic()) > 0:
                self._changed.wait(left_s)

    def _write_kept(self) -> None:
        while True:
            with self._changed:
                while not self._lines:
                    self._changed.wait()
            self._write_now()

    def _write_now(self) -> None:
        with self._changed:
            lines, left_out = self._lines, self._left_out
            self._lines, self._held, self._left_out, self._is_writing = [], 0, 0, True
        if left_out:
            lines.append(f"{self.format(_missing(left_out))}\n")
        for line in lines:  # one by one: processes that share a pipe would cut each other's lines
            _write(sys.stderr, line)
        with self._changed:
            self._is_writing = False
            self._changed.notify_all()


def _missing(count: int) -> logging.LogRecord:
    """Past the logger: who ends the process holds the lock of the handler while it waits for the lines."""
    text, place = "%d lines are missing here: nobody read them", (log.name, logging.WARNING, __file__, 0)
    return log.makeRecord(*place, text, (count,), None, extra=event("log-lines-left-out"))


def _is_taken_at_once(stream: TextIO, line: str) -> bool:
    """A file takes all. A pipe that is ready takes so many bytes, and processes that share it do not cut them."""
    try:
        descriptor = _descriptor(stream)
        if descriptor is None or stat.S_ISREG(os.fstat(descriptor).st_mode):
            return True
        # A character has up to 4 bytes.
        return len(line) * 4 <= select.PIPE_BUF and bool(select.select([], [descriptor], [], 0)[1])
    except (OSError, ValueError):  # it is closed
        return True


def _write(stream: TextIO, line: str) -> None:
    """Past Python's buffer, whose lock a thread that waits for a reader would still hold when the process ends."""
    with contextlib.suppress(OSError, ValueError):  # the reader has gone, or the disk is full
        descriptor = _descriptor(stream)
        if descriptor is None:
            stream.write(line)
            stream.flush()
            return
        data = line.encode(stream.encoding, "backslashreplace")
        while data:
            try:
                data = data[os.write(descriptor, data) :]
            except BlockingIOError:  # another process, which shares it with this one, made it so
                select.select([], [descriptor], [])


def _descriptor(stream: TextIO) -> int | None:
    """None of an object of somebody's: in memory, or one that an application has put in the place of the stream."""
    try:
        return stream.fileno()
    except (OSError, AttributeError):
        return None


_all: weakref.WeakSet[Lines] = weakref.WeakSet()


def _after_fork() -> None:
    for one in _all:
        one._begin()  # noqa: SLF001 - of this module


os.register_at_fork(after_in_child=_after_fork)


def log_to_stderr(form: str | None) -> None:
    """Have what `broker` and `recovery` log, from level INFO on, on standard error; without a form, warnings alone."""
    if form is None:
        if logging.lastResort is not None:
            logging.lastResort = last = Lines(logging.WARNING)
            last.setFormatter(TextLines())
        return
    handler = Lines()
    text = TextLines("%(asctime)s %(process)d %(levelname)s %(message)s")
    handler.setFormatter(JsonLines() if form == "json" else text)
    for name in LOGGERS:
        logger = logging.getLogger(name)
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False
