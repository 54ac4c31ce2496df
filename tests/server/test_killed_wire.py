"""Servers, producers and consumers are killed ten times; at length: tests/torture/test_killed_wire.py."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import broker
from tests.server.killed_wire import QUEUES, TOPIC, Crowd, kill, stop_the_server
from tests.server.processes import members
from tests.server.wire_client import WireClient
from tests.server.wire_tally import read_records

KILLS = 10  # with fewer its seed kills servers alone


def test_ten_kills(tmp_path: Path) -> None:
    tally = kill(tmp_path, KILLS)
    assert tally.adds_up, tally
    assert tally.kills.total() == KILLS
    assert tally.kills.keys() == {"server", "produce", "consume"}
    assert tally.by_check > 0
    assert tally.acknowledged > 0


def test_a_server_that_is_away_for_a_second_loses_nothing(tmp_path: Path) -> None:
    tally = stop_the_server(tmp_path, 1.0)
    assert tally.adds_up, tally
    assert tally.acknowledged > 0


def test_clients_of_two_servers_and_a_consumer_with_the_store_open_get_each_message_once(tmp_path: Path) -> None:
    (tmp_path / "ledger").mkdir()
    with broker.open(tmp_path / "store", layout=broker.StoreLayout.small()) as made:
        made.create_topic(TOPIC, queues=QUEUES, message_type="")
    crowd = Crowd(tmp_path, servers=2)
    addresses = json.loads((tmp_path / "servers").read_text())
    try:
        for name in ("consume-0", "consume-1", "local-0"):
            crowd.start(name)
        with WireClient(addresses[0]) as client, WireClient(addresses[1]) as other:  # one may have none of the group
            _await(lambda: any(len(members(one)) == 3 for one in (client, other)))
            time.sleep(3)  # until the queues are divided
            keys = {f"{number:032X}" for number in range(10 * QUEUES)}
            for number, key in enumerate(sorted(keys)):
                client.publish(TOPIC, b"x", queue_id=number % QUEUES, UNIQ_KEY=key)
            _await(lambda: read_records(tmp_path, "delivered") >= keys)
    finally:
        crowd.end()
    lines = [file.read_text().split() for file in tmp_path.glob("delivered-*")]
    assert len(lines) == 3
    assert all(lines)
    assert sorted(key for one in lines for key in one) == sorted(keys)


def _await(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)
