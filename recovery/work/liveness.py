"""A file whose time says that the workers live: for a container's probe, or a supervisor of the system.

test $(($(date +%s) - $(stat -c %Y worker.alive))) -lt 15
"""

from __future__ import annotations

import contextlib
import json
import os
import time

from broker.errors import BrokerError
from broker.store.disk.opening import new_text


class LivenessFile:
    """Written at most once a second while everything works, removed at a clean end. Its text says what works."""

    def __init__(self, path: str) -> None:
        """Raises BrokerError when it cannot be written."""
        self.path = os.path.abspath(path)  # handlers run in this process, and may change its directory
        try:
            self._write({})
        except OSError as error:
            raise BrokerError(f"the liveness file {self.path} cannot be written: {error.strerror}") from None
        self._written_s = float("-inf")  # the first beat says at once what works

    def beat(self, state: dict[str, object]) -> None:
        """Say that all is well now. What cannot be written makes the file old, and ends no worker."""
        if time.monotonic() - self._written_s >= 1:
            with contextlib.suppress(OSError):
                self._write(state)

    def _write(self, state: dict[str, object]) -> None:
        text = json.dumps({"pid": os.getpid(), "time_ms": time.time_ns() // 1_000_000, **state})
        temporary = f"{self.path}.{os.getpid()}"
        with new_text(temporary) as file:
            file.write(text + "\n")
        os.replace(temporary, self.path)
        self._written_s = time.monotonic()

    def remove(self) -> None:
        """The workers end."""
        with contextlib.suppress(OSError):
            os.unlink(self.path)
