"""A copy follows a real master through mixed traffic, a kill and a restart: the same bytes, the same judgement."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from recovery.following.status import FollowerStatus
from recovery.verify.verifier import verify
from tests.compat import rocketmq
from tests.compat.rocketmq import Cluster
from tests.following.masters import follow_once

VERSIONS = os.environ.get("CHECKBACK_FOLLOWED", "5.3.3").split(",")  # 4.9.7 and 5.5.0 pass, too
SEGMENT = 4 << 20
COUNT = int(os.environ.get("CHECKBACK_FOLLOWED_COUNT", "1500"))

pytestmark = pytest.mark.timeout(1200)


@pytest.fixture(autouse=True, params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    try:
        rocketmq.install(request.param)
        rocketmq.install(rocketmq.NAME_SERVER)
    except rocketmq.NotToBeHad as missing:
        pytest.skip(str(missing))
    return str(request.param)


def follower(master: str, copy: Path, out: Path) -> subprocess.Popen[str]:
    """`checkback follow` as an operator runs it."""
    words = [sys.executable, "-m", "recovery.cli", "follow", master, str(copy), "--from", "first", "--every", "1",
             "--segment-bytes", str(SEGMENT)]  # fmt: skip
    with out.open("ab") as file:
        return subprocess.Popen(words, stdout=file, stderr=subprocess.STDOUT, text=True)


def same_bytes(master: Path, copy: Path, end: int) -> bool:
    """Whether the copy has every byte of the master's log below an offset."""
    for base in range(0, end, SEGMENT):
        name, size = f"commitlog/{base:020d}", min(SEGMENT, end - base)
        if (master / name).read_bytes()[:size] != (copy / name).read_bytes()[:size]:
            return False
    return True


def test_it_has_every_byte_of_a_master_that_is_killed(tmp_path: Path, version: str) -> None:
    store, copy, out = tmp_path / "master", tmp_path / "copy", tmp_path / "follow.log"
    options = {
        "group": "order_producer", "seed": 7, "threads": 2, "body": 9000, "plain": 30, "rollback": 20, "unknown": 20,
        "topics": "Orders,Payments", "quiet": 5,
    }  # fmt: skip
    with Cluster(rocketmq.install(version), store) as cluster:
        cluster.start_broker()
        address = f"127.0.0.1:{cluster.broker_port + 1}"
        following = follower(address, copy, out)
        try:
            cluster.run("Generate", tmp_path / "first.jsonl", count=COUNT, **options)
            sender = cluster.start("Generate", tmp_path / "second.jsonl", count=100_000, pause_ms=2, **options)
            sent = tmp_path / "second.jsonl"
            rocketmq.await_events(sent, lambda events: sum(one["event"] == "half" for one in events) > 100)
            assert cluster.broker is not None
            cluster.broker.kill()
            sender.kill()
            cluster.start_broker()
            following.kill()  # the copy's turn
            following.wait()
            cluster.run("Generate", tmp_path / "third.jsonl", count=300, **{**options, "seed": 8})
            known = len(out.read_text())
            following = follower(address, copy, out)
            await_text(out, known, "up to date")
            last = follow_to_the_end(cluster, following, address, copy)
        except BaseException:
            print(out.read_text()[-3000:])
            raise
        finally:
            following.kill()
            following.wait()
        cluster.broker.stop()
    offline = verify(store)
    assert last.end_offset == offline.end_offset, "the broker wrote while it stopped"
    assert same_bytes(store, copy, offline.end_offset)
    assert offline.end_offset > 2 * SEGMENT
    assert (last.digest, dict(last.transactions), last.records, last.bytes, last.generation) == (
        offline.digest, offline.transactions, offline.records, offline.bytes, offline.generation,
    )  # fmt: skip
    assert last.transactions["committed"] > 100
    of_files = ("queue", "index", "files", "slot", "table", "redo")
    of_log = {kind: count for kind, count in offline.findings.counts.items() if not kind.startswith(of_files)}
    assert dict(last.counts) == of_log
    assert verify(copy).digest == offline.digest


def await_text(file: Path, after: int, text: str, seconds: float = 120) -> None:
    """Wait until a file has a text behind a position."""
    deadline = time.monotonic() + seconds
    while text not in file.read_text()[after:]:
        assert time.monotonic() < deadline, file.read_text()[after:]
        time.sleep(0.2)


def follow_to_the_end(cluster: Cluster, following: subprocess.Popen[str], address: str, copy: Path) -> FollowerStatus:
    """Until the broker is quiet: it writes op messages and timers of its own for a while."""
    time.sleep(8)
    following.send_signal(signal.SIGTERM)
    following.wait(120)
    assert following.returncode in (0, 1)  # 5.x forgets op messages when it is killed, and delivers again
    assert cluster.broker is not None
    size = -1
    for _ in range(20):
        status = follow_once(address, copy)
        if status.end_offset == size:
            return status
        size = status.end_offset
    raise AssertionError("the broker was never quiet")
