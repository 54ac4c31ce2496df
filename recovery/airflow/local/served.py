"""A RocketMQ server beside Airflow: `checkback serve` as a child, for the store that Airflow looks after."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time

from recovery.airflow.local.preflight import NotHere
from recovery.airflow.local.standalone import Standalone

_LISTENS_S, _ANSWERS_S = 60.0, 15.0
_LISTENS = re.compile(r" on (\S+): name server")


class ServedStore:
    """One server of one store. It refuses what `checkback serve` refuses: another machine's clients need an ACL."""

    def __init__(self, airflow: Standalone, store: str, listen: str) -> None:
        self._airflow, self._words = airflow, ["-m", "recovery.cli", "serve", store, "--listen", listen]
        self.log = os.path.join(airflow.home, "serve.log")
        self.address = ""
        """HOST:PORT where it listens, once it has started."""
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Begin, and wait until it listens. Raises NotHere when it does not."""
        self._airflow.make_home()
        with open(self.log, "wb") as out:
            self._process = self._airflow.child(self._words, out)
        deadline = time.monotonic() + _LISTENS_S
        while not (found := _LISTENS.search(self._output())):
            if self._process.poll() is not None or time.monotonic() > deadline:
                said = self._output().strip().splitlines()
                raise NotHere(f"the server does not start: {said[-1] if said else f'its log is {self.log}'}")
            time.sleep(0.05)
        self.address = found[1]

    def has_ended(self) -> bool:
        """Whether it is gone by itself."""
        return self._process is not None and self._process.poll() is not None

    def stop(self) -> None:
        """Let it answer what it accepted, and end. Called twice it does nothing more."""
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):  # Airflow's stop ends what is left
                process.wait(_ANSWERS_S)

    def _output(self) -> str:
        with open(self.log, encoding="utf-8", errors="replace") as file:
            return file.read()
