"""The chains of an index file, followed by the C module and by the NumPy that is the reference: the same findings."""

from __future__ import annotations

import random
from pathlib import Path
from unittest.mock import patch

import pytest

from broker.compiled import fast
from broker.format.index import HEADER_SIZE
from broker.store.disk.files import Disk
from broker.store.writer import open_writer
from recovery.findings import Findings
from recovery.scan.store_files import StoreFiles
from recovery.verify import index_files
from tests.store.filled import SMALL, fill


def found(store: Path) -> list[str]:
    """What the chains of a store's index files say."""
    findings, files = Findings(), StoreFiles.open(store)
    for file in index_files.open_live_index(files, findings):
        index_files.Chains(file, findings).check()
    return [str(one) for one in findings]


@pytest.mark.skipif(fast is None, reason="the C module was not built, or CHECKBACK_PURE=1 leaves it out")
def test_damage_anywhere_in_chains_has_the_findings_of_the_reference(tmp_path: Path) -> None:
    store = open_writer(str(tmp_path), Disk(), SMALL, sync="os")
    fill(store, 0, 60)
    store.close()
    (path, *_) = sorted((tmp_path / "index").iterdir())
    raw, chance, differ = path.read_bytes(), random.Random(7), 0
    assert found(tmp_path) == []
    for at_once in (5, 1 << 18):  # chains go on from one read to the next
        with patch.object(index_files, "_AT_ONCE", at_once):
            for _ in range(60):
                damaged = bytearray(raw)
                for _ in range(chance.choice((1, 1, 3))):
                    damaged[chance.randrange(HEADER_SIZE, len(raw))] ^= 1 << chance.randrange(8)
                path.write_bytes(damaged)
                by_c = found(tmp_path)
                with patch.object(index_files, "fast", None):
                    assert found(tmp_path) == by_c
                differ += any("names a wrong item" in one for one in by_c)
    assert differ > 20
