"""`checkback serve` beside the real RocketMQ 5.3.3: the same Java client, the same sync mode, one after the other.

    python -m tests.bench.serving [--count 16000] [--turns 3] [--sync os group]

Plain and transactional sends of 1 KiB with 1, 8 and 32 threads, then a push consumer (`java/ServingLoad.java`). Of
several turns, ours and theirs by turns, the best counts for each. Requests per second of the server's CPU (a
transaction is two requests), its largest resident memory, and its own memory at the end: without the pages of mapped
files, which the system takes back when it needs them. Sync mode `os` is RocketMQ's ASYNC_FLUSH, `group` its SYNC_FLUSH.
Measures, and never fails a build.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import broker
from tests.compat.rocketmq import BrokerFailed, Cluster, Installation, NotToBeHad, free_port, install

SOURCE = Path(__file__).resolve().parent / "java" / "ServingLoad.java"
TOPIC, QUEUES, TIMEOUT_S = "serving", 8, 900
OURS, THEIRS = "checkback serve", "RocketMQ 5.3.3"
SEGMENT_BYTES = 256 << 20
FLUSH = {"os": "ASYNC_FLUSH", "group": "SYNC_FLUSH"}
ENGINE = "half-op"  # that of 5.3.3
_TICKS = os.sysconf("SC_CLK_TCK")


class Figure(NamedTuple):
    """One load on one server."""

    rate: float  # messages per second
    p50_us: int
    p99_us: int
    requests_per_cpu_s: float
    failed: int


class Turn(NamedTuple):
    """All loads on one server."""

    figures: dict[tuple[str, int], Figure]  # by kind and threads
    memory_bytes: int  # the largest resident
    own_bytes: int  # without pages of files, at the end


class FullSpeed(Installation):
    """The tests start their JVMs with the quick compiler only: not here."""

    def command(self, home: Path, main: str, *words: str, heap: str = "1g") -> list[str]:
        made = super().command(home, main, *words, heap=heap)
        return [word for word in made if not word.startswith("-XX:TieredStopAtLevel")]


def real() -> FullSpeed:
    """The real 5.3.3. Raises NotToBeHad."""
    return FullSpeed(**vars(install("5.3.3")))


def cpu_s(pid: int) -> float:
    """Seconds of CPU that a process took."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def memory_bytes(pid: int, field: str) -> int:
    """Memory of a process, by the name of a line of its status: VmHWM is the largest resident, RssAnon its own now."""
    found = re.search(rf"{field}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found[1]) << 10


@contextmanager
def ours(directory: Path, sync: str) -> Iterator[tuple[int, str]]:
    """Process id and address of our server."""
    store = directory / "ours"
    with broker.open(store, transactions=ENGINE) as made:
        made.create_topic(TOPIC, queues=QUEUES, message_type="")
    words = [sys.executable, "-m", "recovery.cli", "serve", str(store), "--listen", "127.0.0.1:0", "--sync", sync]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            found = re.search(r"on (\S+): name server", server.stdout.readline())
            assert found
            yield server.pid, found[1]
        finally:
            server.terminate()
            server.wait(60)
    shutil.rmtree(store)


@contextmanager
def theirs(directory: Path, sync: str) -> Iterator[tuple[int, str]]:
    """Process id of the real broker, and the address of its name server."""
    store = directory / "theirs"
    settings = {
        "mappedFileSizeCommitLog": SEGMENT_BYTES, "mappedFileSizeConsumeQueue": 6_000_000, "maxHashSlotNum": 5_000_000,
        "maxIndexNum": 20_000_000, "flushDiskType": FLUSH[sync], "defaultTopicQueueNums": QUEUES,
    }  # fmt: skip
    with Cluster(real(), store) as cluster:
        java = cluster.start_master("broker-a", store, free_port(), heap="1g", **settings)
        yield java.process.pid, cluster.namesrv
    shutil.rmtree(store)


SERVERS = {OURS: ours, THEIRS: theirs}


def compiled(home: Path, installation: Installation) -> list[str]:
    """The command of the load, without its arguments. Raises NotToBeHad."""
    words = ["javac", "-nowarn", "-d", str(home), "-cp", f"{installation.lib}/*", str(SOURCE)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotToBeHad(f"the load does not compile: {done.stderr[-1000:]}")
    command = installation.command(home, "ServingLoad")
    at = command.index("-cp") + 1
    return [*command[:at], f"{home}:{command[at]}", *command[at + 1 :]]


def turn(name: str, directory: Path, sync: str, load: list[str], count: int) -> Turn:
    """Start a server, run the load, and stop it."""
    figures: dict[tuple[str, int], Figure] = {}
    with SERVERS[name](directory, sync) as (pid, address):
        with subprocess.Popen([*load, address, str(count)], stdout=subprocess.PIPE, text=True) as program:
            assert program.stdout is not None
            watchdog = threading.Timer(TIMEOUT_S, program.kill)
            watchdog.start()
            began_s = 0.0
            for line in program.stdout:
                if line.startswith("begin"):
                    began_s = cpu_s(pid)
                elif line.startswith("{"):
                    one = json.loads(line)
                    print(f"{name}: {line.strip()}", file=sys.stderr, flush=True)
                    requests = one["messages"] * (2 if one["kind"] == "transactional" else 1)
                    figures[one["kind"], one["threads"]] = Figure(
                        one["messages"] / one["seconds"], one["p50_us"], one["p99_us"],
                        requests / max(cpu_s(pid) - began_s, 1 / _TICKS), one["failed"],
                    )  # fmt: skip
            watchdog.cancel()
            if program.wait():
                raise BrokerFailed(f"the load ended with {program.returncode} against {name}, or took {TIMEOUT_S} s")
        return Turn(figures, memory_bytes(pid, "VmHWM"), memory_bytes(pid, "RssAnon"))


def _rank(figure: Figure) -> tuple[int, float]:
    """A turn in which sends failed is none, however fast they failed."""
    return -figure.failed, figure.rate


def compare(sync: str, count: int, turns: int) -> None:
    """Print a table for one sync mode."""
    found: dict[str, list[Turn]] = {name: [] for name in SERVERS}
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        load = compiled(directory, real())
        for _ in range(turns):
            for name in SERVERS:
                found[name].append(turn(name, directory, sync, load, count))
    print(f"sync mode {sync} ({FLUSH[sync]}), {count} messages of 1 KiB, the best of {turns} turns")
    for load_of in found[OURS][0].figures:
        best = {name: max((one.figures[load_of] for one in found[name]), key=_rank) for name in SERVERS}
        for name, figure in best.items():
            print(
                f"  {load_of[0]:13} {load_of[1]:2} threads  {name:15} {figure.rate:9,.0f}/s  p50 {figure.p50_us:7,} µs"
                f"  p99 {figure.p99_us:8,} µs  {figure.requests_per_cpu_s:9,.0f} requests/CPU s  failed {figure.failed}"
            )
        print(f"  {'':13} {'':10}  {best[OURS].rate / best[THEIRS].rate:.2f} of {THEIRS}")
    for name in SERVERS:
        most, own = (max(sizes) >> 20 for sizes in zip(*(one[1:] for one in found[name]), strict=True))
        print(f"  memory of {name}: {most} MiB, its own {own} MiB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=16_000)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--sync", nargs="+", choices=list(FLUSH), default=list(FLUSH))
    options = parser.parse_args()
    try:
        for sync in options.sync:
            compare(sync, options.count, options.turns)
    except (BrokerFailed, NotToBeHad) as error:
        print(f"not measured: {error}")


if __name__ == "__main__":
    main()
