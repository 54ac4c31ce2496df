"""The story of one transaction of a 5.x store, by index and op messages, ends as the whole-store joins say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import broker
from broker.format.topics import HALF_TOPIC
from recovery.verify.verifier import verify
from recovery.views.overview import story

STATES = {"committed": "committed", "rolled back": "rolled_back", "parked": "parked"}


@pytest.mark.sample("rocketmq-5.3.3-killed")
@pytest.mark.parametrize("name", ["rocketmq-5.3.3-killed", "rocketmq-5.3.3-clean"])
def test_every_story_ends_as_verification_says(name: str, golden: Callable[[str], Path]) -> None:
    """Told from any of its half messages it is the same; each begins with the first, the renewed ones count up."""
    path = str(golden(name))
    first: dict[str | None, int] = {}
    last: dict[str | None, int] = {}
    with broker.open(path, read_only=True) as store:
        for record in store.records():
            if record.topic == HALF_TOPIC:
                key = record.property_map.get("UNIQ_KEY")
                first.setdefault(key, record.commitlog_offset)
                last[key] = record.commitlog_offset
    ends: Counter[str] = Counter()
    for key, commitlog_offset in last.items():
        steps = story(path, commitlog_offset)
        assert (steps[0]["what"], steps[0]["commitlog_offset"]) == ("prepared", first[key])
        anew = [step["what"] for step in steps if step["what"].startswith("written again")]
        assert anew == [f"written again, after check {number + 1}" for number in range(len(anew))]
        ends[STATES.get(steps[-1]["what"], "in_doubt")] += 1
        if steps[-1]["what"] == "committed":
            assert steps[-1]["delivered"]
    expected = verify(path).as_json()["transactions"]
    assert {**dict.fromkeys(STATES.values(), 0), "in_doubt": 0, **ends, "total": ends.total()} == expected


def test_what_is_no_half_message_has_no_story(golden: Callable[[str], Path]) -> None:
    """An offset that a user made up, and a message that was delivered."""
    path = str(golden("rocketmq-5.3.3-clean"))
    with broker.open(path, read_only=True) as store:
        plain = next(record for record in store.records() if record.topic == "OrderTopic")
    assert story(path, plain.commitlog_offset) == []
    assert story(path, plain.commitlog_offset + 1) == []
