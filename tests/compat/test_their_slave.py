"""A real 5.3.3 slave copies a store of ours, and has the same CommitLog after kills of both sides.

Quirk (5.3.3): a slave forgets the haMasterAddress of its own settings, since DefaultMessageStore.start makes the HA
client after they were applied; it learns the address from the name server, where our server registers.
"""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import broker
from broker.remoting.codes import RequestCode as Code
from broker.remoting.codes import ResponseCode as Answer
from tests.compat import rocketmq
from tests.compat.copied_log import await_same
from tests.compat.rocketmq import Cluster, free_port
from tests.server.wire_client import WireClient, sending

VERSION = "5.3.3"
LAYOUT = broker.StoreLayout(segment_bytes=4 << 20)  # the slave's mappedFileSizeCommitLog
ROUNDS, SENDS = 3, 900

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(autouse=True)
def _broker_to_be_had() -> None:
    try:
        rocketmq.install(VERSION)
    except rocketmq.NotToBeHad as missing:
        pytest.skip(str(missing))


@contextmanager
def master(path: Path, port: int, name_server: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Our server with slaves on a port, and where clients reach it."""
    command = [sys.executable, "-m", "recovery.cli", "serve", str(path), "--listen", "127.0.0.1:0", "--ha", str(port),
               "--register", name_server]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            found = re.search(r"on (\S+): name server", line)
            assert found, line
            yield process, found[1]
        finally:
            process.kill()


def publish(address: str, name: str, victim: subprocess.Popen[str] | None) -> None:
    """Messages, half messages and their ends; the victim is killed amidst them."""
    with WireClient(address) as client, contextlib.suppress(OSError):
        for number in range(SENDS):
            half = {"TRAN_MSG": "true", "PGROUP": "shop"} if number % 3 == 0 else {}
            fields = sending("orders", UNIQ_KEY=f"{name}-{number}", KEYS=f"{name}-{number}", **half)
            sent = client.request(Code.SEND_MESSAGE_V2, fields, bytes(8000))
            assert sent.code == Answer.SUCCESS
            if half and number % 2:
                end = {"producerGroup": "shop", "tranStateTableOffset": sent.ext["queueOffset"],
                       "commitLogOffset": int(sent.ext["msgId"][16:], 16), "commitOrRollback": 8}  # fmt: skip
                client.request(Code.END_TRANSACTION, end)
            if victim is not None and number == SENDS // 2:
                victim.send_signal(signal.SIGKILL)


def test_a_slave_has_every_byte_after_kills_of_both(tmp_path: Path) -> None:
    ours, theirs, port = tmp_path / "ours", tmp_path / "theirs", free_port(range(1))
    with broker.open(ours, layout=LAYOUT) as store:
        store.append(broker.Message("orders", b"first"))
    settings = {"brokerRole": "SLAVE", "brokerId": 1}  # where its master is, it learns from the name server
    with Cluster(rocketmq.install(VERSION), theirs, **settings) as cluster:
        slave = cluster.start_broker()
        with master(ours, port, cluster.namesrv):
            await_same(ours, theirs)  # a slave without a log begins with the last segment: this is it
        for number in range(ROUNDS):
            with master(ours, port, cluster.namesrv) as (process, address):
                publish(address, f"kill-{number}", process if number != 1 else None)
                if number == 1:  # the slave's turn, while it copies
                    slave.kill()
                    publish(address, "without-slave", None)
                    slave = cluster.start_broker()
                    await_same(ours, theirs)
        with master(ours, port, cluster.namesrv) as (_, address):
            publish(address, "last", None)
            await_same(ours, theirs)
    assert len(sorted((ours / "commitlog").iterdir())) >= 4
