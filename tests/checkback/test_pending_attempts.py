"""`checkback pending` counts what check-back asked."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import broker
from recovery.checkback.catalog import Attempt, Catalog


def listed(store: Path) -> list[dict[str, object]]:
    command = [sys.executable, "-m", "recovery.cli", "pending", str(store), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


def test_attempts_are_counted_and_the_catalog_is_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "shop.store"
    layout = broker.StoreLayout(1 << 20, 6000, 2400, 2000, 100, 400)
    with broker.open(path, layout=layout) as store:
        half = store.transactions.prepare(broker.Message("orders", b"x"), "shop")
    assert [one["checks"] for one in listed(path)] == [0]
    store_id = json.loads((path / "checkback" / "store.json").read_text())["id"]
    catalog = Catalog.open(str(path), store_id)
    catalog.remember([Attempt(half.commitlog_offset, half.message_id, "orders", "shop", 1, 3, 2, 4, "unknown", "")])
    catalog.close()
    file = path / "checkback" / "catalog.db"
    before = file.read_bytes()
    assert [one["checks"] for one in listed(path)] == [3]
    assert file.read_bytes() == before
