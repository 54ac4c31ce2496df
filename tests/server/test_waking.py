"""A held pull is answered soon after a send of any process; its p99 is measured by tests/bench/waking.py."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import broker
from broker.consuming.tags import Selection
from broker.server.requests import pulls
from tests.bench.waking import measure, quantile

SENDS, MEDIAN_MS, LONGEST_MS = 20, 50.0, 2000.0  # generous: the machine may be busy with other tests


@pytest.mark.parametrize("sync", ["os", "group"])
def test_a_held_pull_wakes_from_a_send_of_another_process(tmp_path: Path, sync: str) -> None:
    for way, times in measure(tmp_path, sync, SENDS).items():
        from_end_ms = [end_ms for _, end_ms in times]
        assert quantile(from_end_ms, 0.5) < MEDIAN_MS, (way, from_end_ms)
        assert max(from_end_ms) < LONGEST_MS, (way, from_end_ms)


def test_what_came_while_a_pull_was_looked_at_wakes_it(
    store: broker.LiveStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop had seen the record already, and the pull had not: it waited for the look that follows in time."""
    monkeypatch.setattr(pulls, "time", SimpleNamespace(monotonic=lambda: 100.0))
    woken: list[Any] = []
    context: Any = SimpleNamespace(store=store, positions=SimpleNamespace(has_resets=False))
    waiting = pulls.HeldPulls(context, woken.append)
    request: Any = SimpleNamespace(connection=type("Connection", (), {"is_closed": False})())
    header: Any = SimpleNamespace(consumer_group="billing", topic="orders", queue_id=0)
    first, second = (pulls.Held(request, header, pulls.Wanted(Selection()), 0, 200.0, 0) for _ in range(2))
    waiting.hold(first)
    store.append(broker.Message("orders", b"x"), queue_id=0)
    waiting.wake()
    waiting.hold(second)
    waiting.wake()
    assert woken == [first, second]
