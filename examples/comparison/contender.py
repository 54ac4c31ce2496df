"""One process of one contender: `python -m examples.comparison.contender xa setup|buy|recover|work`.

COMPARISON in the environment has the rest. A buyer buys until it is killed, and notes each purchase that was
acknowledged with its milliseconds.
"""

from __future__ import annotations

import importlib
import os
import random
import secrets
import sys
import time
from pathlib import Path

from examples.comparison.settings import settings
from examples.comparison.shop import SKUS

PAUSE_S = 0.2  # after an error, before the next try


def main(name: str, role: str, sku: str = "") -> None:
    """Run a role; `buy` with a product buys that one once."""
    module = importlib.import_module(f"examples.comparison.{name}")
    if role == "buy":
        _buy(module, sku)
    elif role == "recover":
        _recover(module)
    elif hasattr(module, role):
        getattr(module, role)()


def _buy(module, sku: str) -> None:
    here = settings()
    path = Path(here.directory, f"{here.name}.notes")
    notes = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    buyer = None
    while True:
        lock_id, product = secrets.token_hex(12), sku or random.choice(SKUS)
        try:
            buyer = buyer or module.buyer()
            started = time.perf_counter()
            buyer.buy(lock_id, product)
            took_ms = (time.perf_counter() - started) * 1000
            os.write(notes, f"{lock_id} {took_ms:.3f}\n".encode())
        except Exception as error:  # noqa: BLE001 - the database is away, or the purchase was refused: a new connection
            print(f"{here.name}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            buyer = None
            time.sleep(PAUSE_S)
        if sku:
            return


def _recover(module) -> None:
    """Be the buyer that starts again after a kill, and buys nothing."""
    buyer = module.buyer()
    while buyer:
        time.sleep(60)


if __name__ == "__main__":
    main(*sys.argv[1:])
