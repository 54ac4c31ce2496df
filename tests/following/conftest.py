"""Fixtures for this room."""

from __future__ import annotations

import pytest

from broker.server.replication import master as our_master
from recovery.following import decisions


@pytest.fixture
def short_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripted masters send heartbeats every 20 ms, so silence is short; and so does ours here."""
    monkeypatch.setattr(decisions, "SILENT_S", 0.05)
    monkeypatch.setattr(our_master, "HEARTBEAT_S", 0.1)
