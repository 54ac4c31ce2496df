"""What a store has that is carried to a cluster."""

from __future__ import annotations

import time
from pathlib import Path

import broker
from broker.testing.fixtures import FakeClock
from recovery.moving.contents import StoreContents
from tests.moving.shops import TOPIC


def test_a_clock_that_was_set_back_makes_no_delayed_message_late_at_the_cluster(tmp_path: Path) -> None:
    """Its due time is of the store's clock, a day ahead: the cluster was to keep it for a day, or the move refused."""
    path, now_ms = tmp_path / "store", time.time_ns() // 1_000_000
    with FakeClock() as clock:
        clock.advance(86_400)
        with broker.open(path, sync="os") as store:
            store.append(broker.Message(TOPIC, b"of a clock that was ahead"))
    with broker.open(path, sync="os") as store:
        store.producer("shop").send(broker.Message(TOPIC, b"later"), delay=120)
    with StoreContents(path) as contents:
        (due_ms,) = map(contents.due_ms, contents.delayed())
    assert 100_000 < due_ms - now_ms < 600_000
