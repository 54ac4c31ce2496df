"""`checkback follow` beside a real master: the process, and whether its copy and judgement are the master's."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

from recovery.following.status import FollowerStatus
from recovery.verify.verifier import verify
from tests.compat.rocketmq import Cluster
from tests.following.masters import follow_once

SEGMENT = 4 << 20
_OF_FILES = ("queue", "index", "files", "slot", "table", "redo")  # findings about files that a copy does not have
_QUIET_ROUNDS = 20


def follower(master: str, copy: Path, out: Path, *more: str) -> subprocess.Popen[str]:
    """`checkback follow` as an operator runs it."""
    words = [sys.executable, "-m", "recovery.cli", "follow", master, str(copy), "--from", "first", "--every", "1",
             "--segment-bytes", str(SEGMENT), *more]  # fmt: skip
    with out.open("ab") as file:
        return subprocess.Popen(words, stdout=file, stderr=subprocess.STDOUT, text=True)


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
    for _ in range(_QUIET_ROUNDS):
        status = follow_once(address, copy)
        if status.end_offset == size:
            return status
        size = status.end_offset
    raise AssertionError("the broker was never quiet")


def same_bytes(master: Path, copy: Path, begin: int, end: int) -> bool:
    """Whether the copy has every byte of the master's log between two offsets."""
    for base in range(begin, end, SEGMENT):
        name, size = f"commitlog/{base:020d}", min(SEGMENT, end - base)
        if (master / name).read_bytes()[:size] != (copy / name).read_bytes()[:size]:
            return False
    return True


def first_offset(store: Path) -> int:
    """Where the log of a store begins: a broker removes its oldest segments when the disk is three quarters full."""
    return min(int(file.name) for file in (store / "commitlog").iterdir())


def part_from(copy: Path, begin: int) -> Path:
    """A copy without its segments below an offset, beside it."""
    part = copy.with_name(f"{copy.name}-from-{begin}")
    (part / "commitlog").mkdir(parents=True)
    for file in (copy / "commitlog").iterdir():
        if int(file.name) >= begin:
            (part / "commitlog" / file.name).hardlink_to(file)
    return part


def assert_same(store: Path, copy: Path, last: FollowerStatus) -> None:
    """The bytes of the copy, and what its follower and a verification of it say, are those of the master's store."""
    offline, begin = verify(store), first_offset(store)
    assert last.end_offset == offline.end_offset, "the broker wrote while it stopped"
    assert same_bytes(store, copy, begin, offline.end_offset)
    assert offline.end_offset > 2 * SEGMENT
    of_log = {kind: count for kind, count in offline.findings.counts.items() if not kind.startswith(_OF_FILES)}
    whole = verify(copy)
    assert (last.digest, dict(last.transactions), last.records) == (whole.digest, whole.transactions, whole.records)
    ours = whole if begin == 0 else verify(part_from(copy, begin))
    assert (ours.digest, ours.transactions, ours.records, ours.bytes, ours.generation) == (
        offline.digest, offline.transactions, offline.records, offline.bytes, offline.generation,
    )  # fmt: skip
    assert dict(last.counts if begin == 0 else ours.findings.counts) == of_log
