"""A transaction with more savepoints, and so ledger rows, than a statement takes parameters: an import, say."""

from __future__ import annotations

import pytest
from sqlalchemy import URL, create_engine

from broker.enlisting.enlistment import Branch, Enlistment
from broker.enlisting.ledger_key import new_key
from broker.enlisting.sqlalchemy_rows import rows_of
from broker.ledger import Ledger
from broker.log_fields import fields_of
from broker.transaction.service import Half

STORE = "5" * 32


def test_the_rows_are_asked_for_in_parts(postgres_url: URL) -> None:
    """PostgreSQL's protocol counts parameters in 16 bits. The COMMIT was refused, after all was sent."""
    engine = create_engine(postgres_url)
    ledger = Ledger(engine)
    ledger.create_all()
    keys = [new_key(number) for number in range(1 << 16)]
    with engine.connect() as connection:
        for key in (keys[0], keys[-1]):
            ledger.insert(connection, key, "shop", STORE)
        assert rows_of(ledger).present(connection, keys) == {keys[0], keys[-1]}
    engine.dispose()


def test_a_log_line_names_some_of_its_messages(caplog: pytest.LogCaptureFixture) -> None:
    enlistment = Enlistment()
    halves = [Half(n, n, "shop", "orders", 0, f"M{n}", (), 0, 0, 100, {}) for n in range(1_000)]
    enlistment.branches.append(Branch(None, "shop", STORE, None, None, halves=halves))  # type: ignore[arg-type]
    enlistment.leave("COMMIT failed")
    (record,) = caplog.records
    assert record.getMessage().endswith(f"{halves[19].message_id} and 980 more")
    assert len(str(fields_of(record))) < 2000
