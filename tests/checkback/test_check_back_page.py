"""docs/check-back.md says what the code says, and its program runs."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from dataclasses import fields
from pathlib import Path

from sqlalchemy import create_engine

from broker.database.ledger_binding import LEDGER_BINDING
from broker.enlisting.ledger_key import LEDGER_KEY
from broker.ledger import Ledger
from recovery.checkback.config import load
from recovery.checkback.ledger_resolver import LOCK_TIMEOUT_MS
from recovery.checkback.policy import NAMES, PRESETS, ROCKETMQ_5, Rule, parse_policy

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "check-back.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    (found,) = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return str(found)


def test_the_program_runs_and_delivers(tmp_path: Path) -> None:
    """In a directory of its own; then the message is in the store."""
    read = [
        'with broker.open("shop.store") as store:',
        '    print([store.message("orders", queue, 0) for queue in store.queues("orders")])',
    ]
    command = [sys.executable, "-W", "error", "-c", "\n".join([block("python"), *read])]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("ReceivedMessage(topic='orders'") == 1


def test_the_file_is_the_default_and_has_every_name(tmp_path: Path) -> None:
    raw = tomllib.loads(block("toml"))
    assert {*raw["policy"]["*"], "preset"} == set(NAMES)
    policy = parse_policy(raw["policy"])
    assert policy.default == Rule()
    assert policy.rule("payments") == Rule(
        **{one.name: getattr(ROCKETMQ_5, one.name) for one in fields(Rule)} | {"longest_ms": 12 * 3_600_000}
    )
    path = tmp_path / "check-back.toml"
    path.write_text(block("toml"))
    assert set(load(str(path)).resolvers) == {"shop", "billing", "*"}
    assert all(f'"{name}"' in PAGE for name in PRESETS)


def test_the_table_of_the_ledger_is_described(tmp_path: Path) -> None:
    ledger = Ledger(create_engine(f"sqlite:///{tmp_path / 'x.db'}"))
    for column in (*ledger.rows.columns, *ledger.marks.columns, *ledger.bindings.columns):
        assert f"`{column.name}`" in PAGE or column.name == "low_water_ms"
    assert f"`{LEDGER_KEY}`" in PAGE
    assert f"`{LEDGER_BINDING}`" in PAGE
    assert f"a lock time-out of {LOCK_TIMEOUT_MS} ms" in PAGE
