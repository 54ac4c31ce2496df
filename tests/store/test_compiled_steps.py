"""The C module's append, ended behind its steps: by SIGKILL, by a power cut; here some of them, all in the torture."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from broker.store.engines import ENGINES
from tests.compiled_module import use
from tests.compiled_module import watched_module as watched_module
from tests.store.compiled_lives import cut_at_steps, kill_at_steps


@pytest.mark.sample("half-op")
@pytest.mark.parametrize("engine", ENGINES)
def test_killed_behind_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, watched_module: ModuleType, engine: str
) -> None:
    use(monkeypatch, watched_module)
    kill_at_steps(tmp_path, engine, watched_module, every=15)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_power_goes_behind_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, watched_module: ModuleType, engine: str
) -> None:
    use(monkeypatch, watched_module)
    cut_at_steps(tmp_path, engine, watched_module, "group", every=61)
