"""A store that was put back beside a newer database: what was saved in the time between has no message."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.database.ledger_binding import Binding, KnownLedger
from broker.database.ledger_identity import DatabaseIdentity
from broker.enlisting.ledger_key import new_key
from broker.ledger import COMMITTED
from recovery.checkback.ledgers import lost_halves as module
from recovery.checkback.ledgers.doctor import examine
from recovery.checkback.ledgers.lost_halves import lacking
from recovery.checkback.ledgers.proof import CommittedKey, LedgerFacts, judge
from recovery.cli.shared import FINDINGS, WELL
from tests.checkback.other_databases import shown
from tests.checkback.shop import Shop

NAME = "half messages"


def test_the_doctor_counts_what_was_saved_and_has_no_message(
    shop: Shop, run_due: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    """Check-back and the doctor said that all is right."""
    url = shown(shop.ledger.engine.url)
    shop.buy(1)
    shop.buy_and_vanish(2)
    shop.close()
    shutil.copytree(shop.path, tmp_path / "backup")
    shop.reopen()
    assert run_due("ledger", "doctor", shop.path, "--ledger", url)[0] == WELL
    shop.buy(3)
    shop.buy(4)
    shop.close()
    shutil.rmtree(shop.path)
    shutil.copytree(tmp_path / "backup", shop.path)
    shop.reopen()
    shop.buy(5)
    code, out, _ = run_due("ledger", "doctor", shop.path, "--ledger", url)
    assert (code, out.count("not ok")) == (FINDINGS, 1)
    assert f"not ok {NAME}: 2 committed rows, of " in out
    assert "next: send the messages of what the application saved in that time again" in out
    why = ("--ledger", url, "--why", "sent again")
    assert "2 committed rows" in run_due("ledger", "accept", shop.path, *why, "--dry-run")[1]
    assert run_due("ledger", "doctor", shop.path, "--ledger", url)[0] == FINDINGS, "a dry run accepts nothing"
    assert run_due("ledger", "accept", shop.path, *why)[0] == WELL
    assert run_due("ledger", "doctor", shop.path, "--ledger", url)[0] == WELL
    assert run_due("ledger", "accept", shop.path, *why)[1] == "Nothing was done: nothing is missing\n"
    shop.buy(6)
    shop.close()
    shutil.rmtree(shop.path)
    shutil.copytree(tmp_path / "backup", shop.path)
    shop.reopen()
    code, out, _ = run_due("ledger", "doctor", shop.path, "--ledger", url)
    assert (code, f"not ok {NAME}: 4 committed rows" in out) == (FINDINGS, True), "what was sent again is lost again"


@pytest.mark.parametrize("slots", [10_000, 2])
def test_what_the_store_removed_is_not_lost(shop: Shop, slots: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that is older than the oldest half message that is looked at says nothing."""
    monkeypatch.setattr(module, "_SLOTS", slots)
    for number in range(5):
        shop.buy(number)
    lines = {line.name: line.ok for line in examine(shop.store, shop.ledger)}
    assert lines[NAME]


def test_which_rows_lack_a_half_message() -> None:
    """Those that are newer than the oldest half message that was seen, and all where every one was."""
    old, there, lost = new_key(1_000), new_key(2_000), new_key(3_000)
    assert lacking([lost, there, old], {there}, 1_500) == [lost]
    assert lacking([lost, there, old], {there}, -1) == [old, lost]
    assert lacking([lost], set(), 1 << 62) == [], "no half message could be read"
    assert lacking(["order-7", lost], set(), -1) == [lost], "a key of no producer of ours has no time"


_NEVER = "f" * 32  # a UUID without its dashes may have a time of the year 10889


def test_a_key_whose_time_no_calendar_has_is_reported(shop: Shop) -> None:
    """The doctor, and check-back where such a row was missing, ended with a ValueError."""
    shop.buy(1)
    with shop.ledger.engine.begin() as connection:
        row = {"ledger_key": _NEVER, "state": COMMITTED, "producer_group": "java", "store_id": shop.store.store_id}
        connection.execute(shop.ledger.rows.insert(), row)
    (line,) = [one for one in examine(shop.store, shop.ledger) if not one.ok]
    assert (line.name, "281474976710655 ms" in line.text) == (NAME, True)

    identity = DatabaseIdentity("sqlite")
    binding = Binding("b", "s", identity, 1, 0)
    known = KnownLedger(binding, "t")
    facts = LedgerFacts("s", identity, True, "", binding, known, committed=1, lacking=[CommittedKey(_NEVER, 0)])
    assert "the newest of 281474976710655 ms" in judge(facts)
