"""Servers in processes of their own, and what a client sees of its group."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from broker.remoting.codes import RequestCode as Code
from broker.remoting.codes import ResponseCode as Answer
from tests.server.wire_client import WireClient

SOON_S = 2.0


@contextmanager
def server_process(
    path: Path, sync: str = "os", *options: str, before: Sequence[str] = (sys.executable,)
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server in a process of its own, and its address; killed at the end. `before` is the command that runs it."""
    words = [*before, "-m", "recovery.cli", "serve", str(path), "--listen", "127.0.0.1:0", "--sync", sync]
    with subprocess.Popen([*words, *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"on (\S+): name server", process.stdout.readline())
            assert found
            yield process, found[1]
        finally:
            process.kill()


def members(client: WireClient, group: str = "billing") -> list[str]:
    answer = client.request(Code.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group})
    return list(json.loads(answer.body)["consumerIdList"]) if answer.code == Answer.SUCCESS else []


def await_true(is_so: Callable[[], bool], timeout_s: float = SOON_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def await_members(client: WireClient, expected: list[str]) -> None:
    """Until the group's clients are these, for SOON_S at most."""
    deadline = time.monotonic() + SOON_S
    while (found := members(client)) != expected:
        assert time.monotonic() < deadline, found
        time.sleep(0.01)


def lock(client: WireClient, client_id: str, *queue_ids: int, group: str = "billing") -> list[int]:
    """The queues that a client got."""
    queues = [{"topic": "orders", "brokerName": "broker-a", "queueId": queue_id} for queue_id in queue_ids]
    body = {"consumerGroup": group, "clientId": client_id, "mqSet": queues}
    answer = client.request(Code.LOCK_BATCH_MQ, body=json.dumps(body).encode())
    return sorted(one["queueId"] for one in json.loads(answer.body)["lockOKMQSet"])
