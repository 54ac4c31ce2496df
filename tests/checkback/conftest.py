"""A shop: a store, an application's database of each kind, and check-back on connections of its own."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from sqlalchemy import Engine

from broker.ledger import Ledger
from recovery.checkback.round import CheckBack
from recovery.cli import checkback as verbs_check
from recovery.cli import ledger as verbs_ledger
from recovery.cli.app import SafeVerbs
from tests.backends.shop import backend_shop
from tests.checkback.shop import Shop
from tests.ledger.databases import (
    engine,
    ledger,
    mariadb_url,
    other_engine,
    postgres_url,
    sqlite_url,
    url,
)  # fmt: skip

__all__ = [
    "backend_shop", "engine", "ledger", "mariadb_url", "other_engine", "postgres_url",
    "sqlite_url", "url",
]  # fmt: skip


@pytest.fixture
def shop(tmp_path: Path, engine: Engine, other_engine: Engine, ledger: Ledger) -> Iterator[Shop]:
    """The same test on each database."""
    shop = Shop(tmp_path / "store", ledger, Ledger(other_engine))
    yield shop
    shop.close()


@pytest.fixture
def run() -> Callable[..., Any]:
    """`checkback WORDS`: (exit code, JSON or text)."""
    app = SafeVerbs()
    verbs_check.register(app)

    def ran(*words: object) -> tuple[int, Any]:
        result = CliRunner().invoke(app, [str(word) for word in words])
        text = result.stdout
        return result.exit_code, json.loads(text) if "--json" in words and text else text + result.stderr

    return ran


@pytest.fixture
def run_due(monkeypatch: pytest.MonkeyPatch, shop: Shop) -> Callable[..., tuple[int, str, str]]:
    """`checkback WORDS`: exit code, output, error output. Everything is due."""
    monkeypatch.setattr(CheckBack, "now_ms", lambda _self: shop.now_ms() + 60_000)
    app = SafeVerbs()
    verbs_check.register(app)
    verbs_ledger.register(app)

    def ran(*words: object) -> tuple[int, str, str]:
        result = CliRunner().invoke(app, [str(word) for word in words])
        return result.exit_code, result.stdout, result.stderr

    return ran


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """What hangs, hangs until this is set; at the end it is."""
    gate = threading.Event()
    yield gate
    gate.set()
