"""A paused group gets nothing, in any process, until it is resumed; it goes on from where it stood."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import broker
from broker.live import LiveStore
from tests.app.shop import until
from tests.cli.command import command

WAIT_S = 20.0


def test_a_paused_group_gets_nothing_and_goes_on_later(checkback_store: LiveStore) -> None:
    with checkback_store.consumer("billing", "orders") as consumer, checkback_store.consumer("mail", "orders") as other:
        for number in range(3):
            checkback_store.append(broker.Message("orders", b"%d" % number))
        in_process = consumer.receive(WAIT_S)
        assert in_process is not None
        checkback_store.pause_group("billing")
        until(lambda: consumer._leases.paused)
        assert consumer.receive(0.3) is None
        assert consumer.ack(in_process), "what is in process is finished"
        assert other.receive(WAIT_S) is not None
        checkback_store.resume_group("billing")
        left = [consumer.receive(WAIT_S) for _ in range(2)]
        assert [message.body for message in left if message] == [b"1", b"2"]
    checkback_store.pause_group("billing")
    with checkback_store.consumer("billing", "orders") as consumer:
        assert consumer.receive(0.5) is None, "a pause outlives the processes"


def test_a_group_that_was_paused_a_moment_ago_is_not_made_again(checkback_store: LiveStore) -> None:
    """A server that had looked just before made it with the settings of a new one, when a client came: it ran on."""
    with broker.open(checkback_store.path) as other:
        server = other._group_file()
        server.get("billing")
        checkback_store.pause_group("billing")
        assert not server.ensure("billing").consume_enable
        server.put(replace(server.ensure("mail"), retry_max_times=3))
        checkback_store._group_file().pause("mail")
        kept = checkback_store._group_file().get("mail")
        assert kept is not None
        assert (kept.retry_max_times, kept.consume_enable) == (3, False)


def test_the_verb_pauses_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the file that RocketMQ's brokers read."""
    path = tmp_path / "store"
    with broker.open(path, layout=broker.StoreLayout.small()) as store:
        store.append(broker.Message("orders", b"1"))
        with store.consumer("billing", "orders") as consumer:
            assert consumer.receive(WAIT_S) is not None
    ran = command(capsys, "consumer", path, "billing", "--pause", "--json")
    assert (ran.code, [row["paused"] for row in json.loads(ran.out)]) == (0, [True] * len(json.loads(ran.out)))
    held = json.loads((path / "config" / "subscriptionGroup.json").read_text())["subscriptionGroupTable"]["billing"]
    assert (held["consumeEnable"], held["groupName"]) == (False, "billing")
    assert "paused" in command(capsys, "consumer", path, "billing").out
    assert command(capsys, "consumer", path, "billing", "--resume").code == 0
    assert "paused" not in command(capsys, "consumer", path, "billing").out
    refused = command(capsys, "consumer", path, "--pause")
    assert refused.code == 2
    assert "need a GROUP" in " ".join(refused.err.replace("│", " ").split())
    assert command(capsys, "consumer", path, "bad group", "--pause").code == 2
