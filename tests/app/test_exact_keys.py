"""The tables of keys take two keys for two, in each database, and hold the keys of foreign clients."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import URL, create_engine
from sqlalchemy.orm import Session

import broker
from broker.app.sent_keys import SentKeys
from broker.database.dedup import Processed
from broker.message import ReceivedMessage
from broker.testing.fixtures import temporary_store

WINDOW_MS = 60_000


@pytest.fixture
def session(url: URL) -> Iterator[Session]:
    engine = create_engine(url)
    SentKeys().create_all(engine)
    Processed().create_all(engine)
    with Session(engine) as session:
        yield session
    engine.dispose()


@pytest.fixture
def message(tmp_path: Path) -> ReceivedMessage:
    with temporary_store(str(tmp_path / "store")) as store:
        store.append(broker.Message("orders", b"1"))
        with store.consumer("billing", "orders") as consumer:
            received = consumer.receive(10)
    assert received is not None
    return received


def test_a_business_key_in_another_case_is_another_key(session: Session) -> None:
    keys = [("orders", "invoice-a"), ("orders", "invoice-A"), ("orders", "invoice-á"), ("Orders", "invoice-a")]
    keys.append(("orders", "発票"))  # which latin1, MariaDB's own choice, has not
    for first in (True, False):
        assert [SentKeys().first_time(session, topic, key, WINDOW_MS) for topic, key in keys] == [first] * 5


def test_a_group_in_another_case_is_another_group(session: Session, message: ReceivedMessage) -> None:
    for first in (True, False):
        assert [Processed().first_time(session, group, message) for group in ("billing", "Billing")] == [first] * 2


def test_any_key_of_a_foreign_client_is_noted(session: Session, message: ReceivedMessage) -> None:
    """A database refused a longer one, and was taken for away: the handler waited eight minutes, again and again."""
    for first in (True, False):
        for key in ("K" * 65, "K" * 66, "K\0", "発票", "K\udc80"):
            assert Processed().first_time(session, "billing", replace(message, unique_key=key)) == first
