"""Where a log ends, as `info` says it, also beside files that are damaged or of nobody."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from recovery.verify.verifier import verify
from recovery.views.info import look
from tests.golden import unpack


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return unpack.unpack("kinds/rocketmq-5.5.0-segments", tmp_path / "store")


def test_a_unit_that_names_no_place_of_the_log_is_not_its_end(store: Path) -> None:
    """The end was 8,680,820,740,552,423,544 for a file of letters in the directory of a queue."""
    end_offset = look(store).end_offset
    queue = store / "consumequeue" / "Ghost" / "0"
    queue.mkdir(parents=True)
    (queue / f"{0:020}").write_bytes(b"x" * 100)
    assert look(store).end_offset == end_offset


def test_a_log_that_ends_before_what_its_queues_name(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Zeros where the last records were: the log ended behind them, it was said."""
    monkeypatch.setattr("recovery.views.info.SAMPLE_BYTES", 1000)
    *_, before, last = sorted((store / "commitlog").iterdir())
    end_offset = look(store).end_offset
    last.write_bytes(bytes(last.stat().st_size))
    assert look(store).end_offset == int(last.name) < end_offset  # behind the blank of the segment before
    os.truncate(before, 16384)
    os.truncate(before, last.stat().st_size)
    assert look(store).end_offset == verify(store).end_offset


def test_a_queue_whose_name_is_no_text(store: Path) -> None:
    """A directory that another system named: `verify` ended with UnicodeEncodeError."""
    queue = os.path.join(os.fsencode(store / "consumequeue"), b"Caf\xe9", b"0")
    os.makedirs(queue)
    with open(os.path.join(queue, b"%020d" % 0), "wb") as file:
        file.truncate(6000)
    assert verify(store).ok
    assert ("Caf\udce9", 0) in {(one.topic, one.queue_id) for one in look(store).queues}
