"""Every bit of every byte of the small stores, and every cut: what the published table says is exactly what escapes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scan.small_broker import GENERATIONS, Generation
from tests.scan.small_stores import build
from tests.verify import unprotected
from tests.verify.damage import Patient, files, judge_cut, judge_loss

each = pytest.mark.parametrize("generation", GENERATIONS, ids=lambda generation: generation.name)


@pytest.mark.timeout(3 * 3600)
def test_what_escapes_is_what_is_published() -> None:
    measured = unprotected.measure_all()
    for name, found in measured.items():
        assert not found.wrong, f"{name}: {len(found.wrong)} of {found.trials}, first {found.wrong[0]}"
    assert {name: found.masks for name, found in measured.items()} == unprotected.load()


@each
@pytest.mark.timeout(3600)
def test_every_cut(generation: Generation, tmp_path: Path) -> None:
    store = tmp_path / "store"
    build(generation, store)
    with Patient(store) as sick:
        for file, size, used in files(store):
            behind = [size - 1, *range(used, min(used + 64, size)), *range(used, size, 97)]
            for length in sorted({*range(min(used, size)), *behind}):
                judge_cut(sick, file, length, used)
            judge_loss(sick, file, used)
