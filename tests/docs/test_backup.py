"""The commands of docs/howto/backup.md: what they bring back has the orders and the messages of one moment."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import time
from contextlib import closing, nullcontext
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

import broker
from broker.testing.fixtures import SMALL, crash_between_commit_and_end
from tests.docs.snippets import run
from tests.house.tree import ROOT


def place_orders(*items: str, crash: bool = False) -> None:
    engine = create_engine("sqlite:///shop.db")
    ledger = broker.Ledger(engine)
    ledger.create_all()
    with broker.open("shop.store", layout=SMALL) as store, Session(engine) as session:
        producer = store.producer("shop", topics=["orders"], ledger=ledger)
        session.execute(text("CREATE TABLE IF NOT EXISTS orders (item TEXT)"))
        for item in items:
            session.execute(text("INSERT INTO orders VALUES (:item)"), {"item": item})
            producer.send(broker.Message("orders", item.encode()), session)
            with crash_between_commit_and_end(store) if crash else nullcontext():
                session.commit()
    engine.dispose()


def copy_database(source: str, target: str) -> None:
    with closing(sqlite3.connect(source)) as old, closing(sqlite3.connect(target)) as new:
        old.backup(new)


def follow_the_page(section: str, backup: Path) -> list[str]:
    """Run the indented commands of a section; what they print."""
    printed: list[str] = []
    for command in re.findall(r"^ {4,}(\S.*)$", section.replace("/backup", str(backup)), re.MULTILINE):
        if match := re.fullmatch(r'sqlite3 (\S+) "\.(backup|restore) (\S+)"', command):
            copy_database(*(match[1], match[3]) if match[2] == "backup" else (match[3], match[1]))
        else:
            printed += run(command, Path())
    return printed


@pytest.mark.timeout(120)
def test_a_backup_is_restored_by_the_commands_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One transaction was in doubt when it was made; what was ordered after it is gone from both."""
    (tmp_path / "shop").mkdir()
    (tmp_path / "backup").mkdir()
    monkeypatch.chdir(tmp_path / "shop")
    saving, restoring = (ROOT / "docs/howto/backup.md").read_text(encoding="utf-8").split("## Restore")
    place_orders("lamp")
    place_orders("table", crash=True)
    follow_the_page(saving, tmp_path / "backup")
    place_orders("chair")
    shutil.move("shop.store", tmp_path / "aside")
    os.rename("shop.db", tmp_path / "aside.db")
    time.sleep(6)  # what is younger is not queried

    printed = "\n".join(follow_the_page(restoring, tmp_path / "backup"))
    assert "not ok identity" in printed
    assert "1 committed" in printed
    place_orders("sofa")
    with closing(sqlite3.connect("shop.db")) as connection:
        orders = [item for (item,) in connection.execute("SELECT item FROM orders")]
    with broker.open("shop.store", read_only=True) as store:
        messages = [
            message.body.decode()
            for queue in store.queues("orders")
            for offset in range(*store.queue_range("orders", queue))
            if (message := store.message("orders", queue, offset))
        ]
    assert sorted(messages) == sorted(orders) == ["lamp", "sofa", "table"]
