"""Memory stays bounded: four times the store, about the same peak, far under the 512 MB that were promised."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench.stores import make_store

MIB = 1 << 20
LIMIT = 512 * MIB
GROWTH = 64 * MIB  # rows of events in memory, until they are spilled

VERIFY = """
import resource, sys
from recovery.verify.verifier import verify
report = verify(sys.argv[1])
assert report.ok, dict(report.findings.counts)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(report.bytes, peak * (1 if sys.platform == "darwin" else 1024))
"""


def peak_of(store: Path) -> int:
    """Peak memory, in bytes, of a process that verifies a store."""
    done = subprocess.run([sys.executable, "-c", VERIFY, store], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split()[1])


@pytest.mark.parametrize("generation", ["state-table", "half-op"])
def test_verify_needs_no_more_for_a_larger_store(generation: str, tmp_path: Path) -> None:
    peaks = []
    for size in (64 * MIB, 256 * MIB):
        store = tmp_path / f"{generation}-{size}"
        make_store(store, generation, size)
        peaks.append(peak_of(store))
    print(f"{generation}: {[peak // MIB for peak in peaks]} MiB; the limit is {LIMIT // MIB}")
    assert max(peaks) < LIMIT
    assert peaks[1] - peaks[0] < GROWTH
