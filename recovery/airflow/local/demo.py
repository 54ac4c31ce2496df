"""The flash-sale demo beside Airflow: a process that sells, with crashes injected, and says at its end what adds up."""

from __future__ import annotations

import os
import subprocess
import time
from typing import Any

from recovery.airflow.local.preflight import NotHere
from recovery.airflow.local.standalone import Standalone

SELL_S = 45
_OPENS_S = 60.0
_CHECK_BACK_S = 10.0


class Sale:
    """One sale in a new directory. It checks its own transactions too; the first answer decides, the other sees it."""

    def __init__(self, directory: str, airflow: Standalone) -> None:
        self.directory, self._airflow = directory, airflow
        self.store = os.path.join(directory, "store")
        self._output = f"{directory}.txt"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Begin, and wait until the shop has opened. Raises NotHere when it does not."""
        words = ["-m", "recovery.cli", "demo", "--keep", self.directory, "--seconds", str(SELL_S)]
        with open(self._output, "wb") as out:
            self._process = self._airflow.child(words, out)
        began = time.monotonic()
        while not os.path.isdir(os.path.join(self.store, "commitlog")):
            if self._process.poll() is not None or time.monotonic() - began > _OPENS_S:
                raise NotHere(f"the demo does not start; its output is in {self._output}")
            time.sleep(0.1)

    def settings(self) -> dict[str, Any]:
        """How Airflow looks after its store: asked often, since it is a short sale."""
        url = f"sqlite:///{os.path.join(self.directory, 'shop.db')}"
        resolvers = {"*": {"ledger": url, "table": "flash_sale_ledger"}}
        return {"path": self.store, "resolvers": resolvers, "check_back_every_s": _CHECK_BACK_S}

    def result(self) -> str:
        """What the reconciliation says; empty while the sale goes on."""
        if self._process is None or self._process.poll() is None:
            return ""
        with open(self._output, encoding="utf-8", errors="replace") as file:
            return file.read().strip() or f"the demo ended with code {self._process.returncode} and printed nothing"
