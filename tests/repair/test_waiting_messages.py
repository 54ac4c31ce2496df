"""Messages that wait in a store that is taken over: they come when its broker would have sent them, or stay with it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from broker.errors import StoreError
from broker.format.consumequeue import Unit
from broker.format.kinds.timer import TimerCheck
from broker.format.properties import encode as encode_properties
from broker.format.topics import TIMER_TOPIC
from recovery.repair import crash
from tests.rebuild.derived_files import on_disk
from tests.scan.logs import Log, Wanted

FIRST = f"{0:020}"


def take_over(path: Path) -> None:
    crash.apply(crash.plan(crash.survey(path)), broker_is_stopped=True, still_s=0)


def test_messages_in_the_timer_wheel_are_left_to_their_broker(tmp_path: Path) -> None:
    """Taken over, the store kept them, and nobody delivered them when they were due."""
    path, due_ms = tmp_path / "store", 1_900_000_000_000
    log = Log(4096)
    text = encode_properties({"TIMER_OUT_MS": str(due_ms), "REAL_TOPIC": "Orders", "UNIQ_KEY": "7F"})
    at = log.append(Wanted(topic=TIMER_TOPIC, properties=text))
    log.write(path)
    queue = path / "consumequeue" / TIMER_TOPIC / "0"
    queue.mkdir(parents=True)
    (queue / FIRST).write_bytes(Unit(at, len(log.records[at]), 0).pack().ljust(200, b"\0"))
    (path / "config").mkdir()
    (path / "config" / "timercheck").write_bytes(TimerCheck(due_ms - 1000, 0, 0, 0, 0, 0, 0).pack().ljust(4096, b"\0"))
    before = on_disk(path)
    with pytest.raises(
        StoreError, match=r"1 messages wait in the timer wheel, the last until 2030-03-17.*dump .* timers"
    ):
        take_over(path)
    assert on_disk(path) == before


def test_what_was_popped_and_is_not_acknowledged_is_left_to_its_broker(
    golden_copy: Callable[[str], Path], tmp_path: Path
) -> None:
    """The position of its group is behind it: no consumer of checkback gets it again."""
    (tmp_path / "kinds").mkdir()
    path = golden_copy("kinds/rocketmq-5.3.3-popped")
    with pytest.raises(StoreError, match=r"11 messages were popped, and are not acknowledged.*dump .* popped"):
        take_over(path)
