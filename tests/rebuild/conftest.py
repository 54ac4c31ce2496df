"""Small stores of each kind that a real broker wrote."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def kind_store(golden_copy: Callable[[str], Path], tmp_path: Path) -> Callable[[str], Path]:
    """A copy of one of the small stores in tests/golden/kinds, for this test alone."""
    (tmp_path / "kinds").mkdir()
    return lambda name: golden_copy(f"kinds/{name}")


@pytest.fixture
def is_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody watches for three seconds whether a store of these tests changes."""
    for module in ("rebuilder", "undo"):
        monkeypatch.setattr(f"recovery.rebuild.{module}.check_still", lambda *_arguments, **_options: None)
