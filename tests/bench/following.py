"""What following costs a real master, and how far a copy is behind it.

    python -m tests.bench.following [--seconds 4] [--turns 10] [--rate 1000]

A 5.3.3 master and a Java producer that sends messages of 1 KiB. By turns the master is alone, has a slave that throws
away what it reads (what any follower on another machine costs the master), and has `checkback follow`, which takes its
processor time from the same machine. Each turn is measured twice: as fast as the master answers, and at a fixed rate.
The processor time of the master's process for each message tells the cost of the HA connection apart from the noise of
a busy machine.

The lag is measured at the fixed rate: from the answer to a send until the record's bytes are in the copy's file, and
the age of the newest verified record. A master that is not SYNC_MASTER sends to its slaves every 100 ms. RocketMQ:
DefaultHAConnection.WriteSocketService.run (5.3.3). Needs Java 17 and Maven, as tests/compat does.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import broker
from recovery.following.decisions import NOT_A_SLAVE
from recovery.following.link import MasterLink, parse_master
from tests.cluster.waiting import awaited
from tests.compat import rocketmq

VERSION = "5.3.3"
SOURCE = Path(__file__).resolve().parent / "java" / "SendYardstick.java"
SEGMENT = 64 << 20
THREADS, BODY_BYTES, TOPIC = 8, 1024, "Orders"
KINDS = ("alone", "a slave that reads", "checkback follow")
WARM_S, READY_S = 10.0, 120.0
PROBE_S = 0.2  # at most, between two probes: not in step with the master
BEGIN_S = 1.0  # of a turn, in which the newest record is not new
LIMIT_S = 5.0  # a probe that is not there after this is counted with this


@dataclass(frozen=True)
class Sent:
    """What a producer did in one turn."""

    rate: float  # messages per second
    failed: int
    p50_ms: float
    p99_ms: float
    master_us: float  # processor time of the master's process for a message


@dataclass
class Lags:
    """How far the copy was behind, in ms: bytes in its file, records verified. Noted while there is traffic."""

    copied: list[float] = field(default_factory=list)
    verified: list[float] = field(default_factory=list)
    is_noted: bool = False


class Sender:
    """The Java producer, one process for all turns, so that it stays warm."""

    def __init__(self, cluster: rocketmq.Cluster, home: Path) -> None:
        assert cluster.broker is not None
        self._master, lib = cluster.broker.process.pid, cluster.installation.lib
        words = ["javac", "-nowarn", "-d", str(home), "-cp", f"{lib}/*", str(SOURCE)]
        subprocess.run(words, capture_output=True, text=True, check=True)
        command = ["java", f"-Duser.home={home}", "-Xmx256m", "-cp", f"{home}:{lib}/*", "SendYardstick",
                   cluster.namesrv, TOPIC, str(THREADS), str(BODY_BYTES)]  # fmt: skip
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=home
        )
        self._line("ready")

    def _line(self, begin: str) -> str:
        """The next line that begins with a word; the client's own warnings are between them."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(begin):
                return line
        raise RuntimeError("the Java producer ended")

    def turn(self, seconds: float, rate: float = 0) -> Sent:
        """Send for some seconds, at a rate or as fast as the master answers."""
        assert self._process.stdin is not None
        before_s = processor_s(self._master)
        self._process.stdin.write(f"{seconds} {rate}\n")
        self._process.stdin.flush()
        _, count, failed, took, p50_us, p99_us = self._line("sent ").split()
        master_us = (processor_s(self._master) - before_s) / max(1, int(count)) * 1e6
        return Sent(int(count) / float(took), int(failed), int(p50_us) / 1000, int(p99_us) / 1000, master_us)

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def processor_s(pid: int) -> float:
    """The processor time that a process took so far, in seconds; of Linux."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


# Who is connected to the master


def read_and_forget(address: str) -> None:
    """A slave that reads from the master's last segment on, until it is killed."""
    with MasterLink(parse_master(address)) as link:
        link.ask(0)
        print("connected", flush=True)
        while True:
            link.receive(1.0)
            link.acknowledge(NOT_A_SLAVE)


@contextlib.contextmanager
def connected(kind: str, address: str, copy: Path, lags: Lags | None = None) -> Iterator[None]:
    """One of KINDS at work on the master; the verified lag is noted from the follower's status lines."""
    if kind == "alone":
        yield
        return
    if kind == "checkback follow":
        words = ["recovery.cli", "follow", address, str(copy), "--segment-bytes", str(SEGMENT), "--every", "0.2",
                 "--json"]  # fmt: skip
    else:
        words = ["tests.bench.following", "read", address]
    process = subprocess.Popen([sys.executable, "-m", *words], stdout=subprocess.PIPE, text=True)
    ready = threading.Event()
    reader = threading.Thread(target=_watch, args=(process, ready, lags), daemon=True)
    reader.start()
    try:
        if not ready.wait(READY_S):
            raise RuntimeError(f"{kind} did not come up")
        yield
    finally:
        process.terminate()
        try:
            process.wait(60)
        finally:
            process.kill()
            reader.join()


def _watch(process: subprocess.Popen[str], ready: threading.Event, lags: Lags | None) -> None:
    assert process.stdout is not None
    with process.stdout as lines:
        for line in lines:
            if not line.startswith("{"):
                ready.set()
                continue
            status = json.loads(line)
            if status["caught_up"]:
                ready.set()
            if lags is not None and lags.is_noted and status["last_stored"]:
                stored = datetime.fromisoformat(f"{status['last_stored']}+00:00")
                lags.verified.append((datetime.now(UTC) - stored).total_seconds() * 1000)


def probe(namesrv: str, copy: Path, seconds: float, lags: Lags) -> None:
    """Send messages besides the load, and wait for the bytes of each in the copy."""
    chance = random.Random(int(seconds))
    with broker.connect(f"rocketmq://{namesrv}") as cluster:
        producer = cluster.producer("probes")
        ends, lags.is_noted = time.monotonic() + seconds, True
        while time.monotonic() < ends:
            at = producer.send(broker.Message(TOPIC, b"probe")).commitlog_offset
            sent_s = time.monotonic()
            while not _is_there(copy, at) and time.monotonic() - sent_s < LIMIT_S:
                time.sleep(0.0002)
            lags.copied.append((time.monotonic() - sent_s) * 1000)
            time.sleep(chance.uniform(0, PROBE_S))


def note(namesrv: str, copy: Path, seconds: float, lags: Lags) -> None:
    """Note both lags for so long, from a moment after the traffic began on."""
    time.sleep(BEGIN_S)
    try:
        probe(namesrv, copy, seconds, lags)
    finally:
        lags.is_noted = False


def _is_there(copy: Path, commitlog_offset: int) -> bool:
    base = commitlog_offset - commitlog_offset % SEGMENT
    try:
        with (copy / "commitlog" / f"{base:020d}").open("rb", buffering=0) as file:
            return any(os.pread(file.fileno(), 4, commitlog_offset - base))
    except FileNotFoundError:
        return False


# The measurement


def percentile(values: list[float], percent: int) -> float:
    """The value below which so many percent are; NaN of none."""
    ordered = sorted(values) or [float("nan")]
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


def measure(cluster: rocketmq.Cluster, directory: Path, seconds: float, turns: int, rate: float) -> None:
    """Print both tables."""
    address, sender = f"127.0.0.1:{cluster.broker_port + 1}", Sender(cluster, directory)
    full: dict[str, list[Sent]] = {kind: [] for kind in KINDS}
    steady: dict[str, list[Sent]] = {kind: [] for kind in KINDS}
    lags = Lags()
    try:
        sender.turn(WARM_S)
        for number in range(turns):
            for kind in KINDS if number % 2 == 0 else KINDS[::-1]:
                with connected(kind, address, directory / f"full-{number}"):
                    full[kind].append(sender.turn(seconds))
                with connected(kind, address, directory / f"steady-{number}"):
                    steady[kind].append(sender.turn(seconds, rate))
            copy = directory / f"lag-{number}"
            with connected(KINDS[-1], address, copy, lags):
                probing = threading.Thread(target=note, args=(cluster.namesrv, copy, seconds, lags))
                probing.start()
                sender.turn(seconds + 2 * BEGIN_S, rate)
                probing.join()
    finally:
        sender.close()
    show("as fast as the master answers", full)
    show(f"{rate:,.0f}/s asked for", steady)
    for what, values in (("bytes in the copy", lags.copied), ("verified", lags.verified)):
        print(f"lag at {rate:,.0f}/s, {what:20}p50 {percentile(values, 50):7.1f} ms"
              f"   p99 {percentile(values, 99):7.1f} ms   of {len(values)}")  # fmt: skip


def show(title: str, results: dict[str, list[Sent]]) -> None:
    """Medians of all turns, and their ratio to the master alone in the same turn."""
    print(f"{title}, median of {len(results['alone'])} turns:")
    for kind, turns in results.items():
        ratios = [one.rate / alone.rate for one, alone in zip(turns, results["alone"], strict=True)]
        rate, p50_ms, p99_ms, master_us = (statistics.median(getattr(one, name) for one in turns)
                                           for name in ("rate", "p50_ms", "p99_ms", "master_us"))  # fmt: skip
        print(f"  {kind:20}{rate:9,.0f}/s   ratio {statistics.median(ratios):5.2f}"
              f" ({min(ratios):.2f} to {max(ratios):.2f})   p50 {p50_ms:6.2f} ms   p99 {p99_ms:7.2f} ms"
              f"   master {master_us:4.0f} µs CPU   failed {sum(one.failed for one in turns)}")  # fmt: skip


def main() -> None:
    """Start the master and measure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=4.0, help="of one turn")
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--rate", type=float, default=1000.0, help="messages per second where the lag is measured")
    words = parser.parse_args()
    try:
        installation = rocketmq.install(VERSION)
    except rocketmq.NotToBeHad as missing:
        print(f"not measured: {missing}")
        return
    with tempfile.TemporaryDirectory(prefix="checkback-bench-") as name:
        directory = Path(name)
        options = {"mappedFileSizeCommitLog": SEGMENT, "mappedFileSizeConsumeQueue": 6_000_000}
        with rocketmq.running(installation, directory / "master", **options) as cluster:
            assert awaited(lambda: _has_topic(cluster.namesrv), READY_S)
            measure(cluster, directory, words.seconds, words.turns, words.rate)


def _has_topic(namesrv: str) -> bool:
    """Whether the master is registered; it has the topic then."""
    try:
        with broker.connect(f"rocketmq://{namesrv}") as cluster:
            cluster.create_topic(TOPIC)
    except broker.BrokerError:
        return False
    return True


if __name__ == "__main__":
    read_and_forget(sys.argv[2]) if sys.argv[1:2] == ["read"] else main()
