"""A store with something for each part of the page, and the page over it as a process."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import broker
from recovery.jobs import tasks
from tests.jobs.shops import SMALL, park, prepare

HOSTILE = "<img/src=x/onerror=alert(1)>"


def shown_shop(path: Path, broker_engine: str = "state-table") -> Path:
    """Two parked, three in doubt, one of them with markup as its key; a consumer with a lag and a dead letter."""
    with broker.open(str(path), layout=SMALL, transactions=broker_engine) as store:  # type: ignore[arg-type]
        prepare(store, range(100, 102))
    park(path, "asked 15 times: the till was closed")
    with broker.open(str(path)) as store:
        prepare(store, range(2))
        store.transactions.prepare(broker.Message("orders", b"a body", keys=[HOSTILE]), "shop")
        for number in range(4):
            store.append(broker.Message("paid", b"a body %d" % number, keys=[f"paid-{number}"]), queue_id=0)
        with store.consumer("billing", "paid") as consumer:
            first = consumer.receive(20)
            assert first is not None
            assert consumer.retry(first, delay_level=-1)
    tasks.verify(str(path), now_ms=1_795_000_000_000)
    return path


@contextlib.contextmanager
def page_over(*words: str, ended_by: int = signal.SIGTERM) -> Iterator[tuple[str, str]]:
    """`checkback page` on a free port: (its URL, its token)."""
    command = [sys.executable, "-m", "recovery.cli", "page", *words, "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            found = re.search(r"(http://127\.0\.0\.1:\d+)/#token=(\S+)", line)
            assert found, line
            yield found[1], found[2]
        finally:
            process.send_signal(ended_by)
            assert process.wait(30) == 0
