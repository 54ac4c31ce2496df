"""Customers, who order from a shop over HTTP until they are told to stop, and remember what was promised to them."""

from __future__ import annotations

import http.client
import itertools
import json
import random
import threading
from collections import Counter
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from tests.frameworks.server import post

CUSTOMERS = 6
PLAIN = "orders"


class Customers:
    """Threads that send one wish after the other; `promised` are the items of orders that were answered with 201."""

    def __init__(self, port: int, wishes: Sequence[str], seed: int) -> None:
        self._port, self._wishes, self._seed = port, (PLAIN, *wishes), seed
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self.promised: list[str] = []
        self.answers: Counter[str] = Counter()
        self._threads = [threading.Thread(target=self._order, args=(n,), daemon=True) for n in range(CUSTOMERS)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive(), "a request hangs"

    @property
    def served(self) -> int:
        return len(self.promised)

    def _order(self, customer: int) -> None:
        chance = random.Random(self._seed * 1000 + customer)
        while not self._stopped.is_set():
            with self._lock:
                item = f"item{next(self._numbers)}"
            wish = chance.choice(self._wishes)
            try:
                path, body = (f"/{wish}", json.dumps({"item": item})) if wish == PLAIN else (f"/{wish}/{item}", "")
                status = post(self._port, path, body)
            except (OSError, http.client.HTTPException):
                answer = "none"
                self._stopped.wait(0.1)  # the server was killed: it may take a moment until there is another
            else:
                answer = str(status)
            with self._lock:
                self.answers[f"{wish} {answer}"] += 1
                if answer == "201":
                    self.promised += [item, f"{item}-gift"] if wish in GIVING else [item]


GIVING = {"kept", "twice", "async"}
