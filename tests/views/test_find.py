"""`checkback find` and `export`: one damaged record stands in the way of no other."""

from __future__ import annotations

from pathlib import Path

from recovery.views.messages.export import export, exported
from recovery.views.messages.find import Query
from tests.scan.small_broker import V5
from tests.scan.small_stores import TOPIC, build


def test_a_message_that_waits_for_its_delay_is_not_exported(tmp_path: Path) -> None:
    """It is in the broker's own topic, to which nothing is sent: replay refused the whole file for it."""
    build(V5, tmp_path / "store")
    lines = f"{tmp_path}/lines.jsonl"
    export(str(tmp_path / "store"), Query(topic=TOPIC), lines)
    messages = [one.message.topic for one in exported(lines)]
    assert messages
    assert set(messages) == {TOPIC}
