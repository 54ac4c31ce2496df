"""How long a held pull takes to wake: from a send through another process until its answer arrives.

    python -m tests.bench.waking [SENDS]

Two server processes share a store. A pull is held at one; the message comes through the other server, or from a third
process that has the store open. The time runs from the end of the send (it is acknowledged) to the answer of the pull,
and from the beginning of the send; p50, p99 and the longest, in ms, for each sync mode.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import broker
from tests.server.processes import server_process
from tests.server.wire_client import WireClient

SENDS = 300
TOPIC = "orders"


def sending_locally(path: Path, sync: str) -> None:
    """The third process: sends one message for each line of its input; prints when it began and ended."""
    with broker.open(path, sync=sync) as store:  # type: ignore[arg-type]
        producer = store.producer("waking")
        print("ready", flush=True)
        for _ in sys.stdin:
            began = time.monotonic()
            producer.send(broker.Message(TOPIC, b"x" * 1024))
            print(json.dumps([began, time.monotonic()]), flush=True)


def wakings(address: str, send: Callable[[], tuple[float, float]], count: int) -> list[tuple[float, float]]:
    """For each send: ms from its beginning, and from its end, to the answer of a pull that was held before."""
    found = []
    with WireClient(address) as client:
        queue_offset = int(client.answer(client.pull("waking", TOPIC)).ext["maxOffset"])
        for _ in range(count):
            pull = client.pull("waking", TOPIC, queue_offset, hold_ms=20_000)
            time.sleep(0.02)  # until it is held
            began, ended = send()
            answer = client.answer(pull)
            woken = time.monotonic()
            assert answer.code == 0, answer
            queue_offset = int(answer.ext["nextBeginOffset"])
            found.append(((woken - began) * 1000, (woken - ended) * 1000))
    return found


def measure(directory: Path, sync: str, count: int) -> dict[str, list[tuple[float, float]]]:
    """By how the message came."""
    path = directory / "store"
    with broker.open(path, layout=broker.StoreLayout.small()) as store:
        store.create_topic(TOPIC, queues=1)
    with ExitStack() as stack:
        first, second = (stack.enter_context(server_process(path, sync))[1] for _ in range(2))
        client = stack.enter_context(WireClient(second))
        words = [sys.executable, "-m", "tests.bench.waking", "local", str(path), sync]
        third = stack.enter_context(subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        assert third.stdin is not None
        assert third.stdout is not None
        stack.callback(third.stdin.close)
        third.stdout.readline()

        def through_server() -> tuple[float, float]:
            began = time.monotonic()
            assert client.publish(TOPIC, b"x" * 1024).code == 0
            return began, time.monotonic()

        def locally() -> tuple[float, float]:
            assert third.stdin is not None
            assert third.stdout is not None
            third.stdin.write("send\n")
            third.stdin.flush()
            began, ended = json.loads(third.stdout.readline())
            return began, ended

        return {
            "another server": wakings(first, through_server, count),
            "a local store": wakings(first, locally, count),
        }


def quantile(values: list[float], part: float) -> float:
    """The value that `part` of all do not exceed."""
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]


def main(count: int) -> None:
    for sync in ("os", "group"):
        with tempfile.TemporaryDirectory() as directory:
            for way, found in measure(Path(directory), sync, count).items():
                for what, values in zip(("begin", "end"), zip(*found, strict=True), strict=True):
                    p50, p99, most = quantile(list(values), 0.5), quantile(list(values), 0.99), max(values)
                    print(f"{sync:6} {way:15} from {what:5} of send: p50 {p50:5.1f} p99 {p99:5.1f} max {most:5.1f} ms")


if __name__ == "__main__":
    if sys.argv[1:2] == ["local"]:
        sending_locally(Path(sys.argv[2]), sys.argv[3])
    else:
        main(int(sys.argv[1]) if sys.argv[1:] else SENDS)
