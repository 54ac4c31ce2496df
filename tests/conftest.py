"""Fixtures for every room: the golden stores and the truth about them."""

from __future__ import annotations

import gc
import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from broker.store import engines
from tests.golden import unpack
from tests.ledger.servers import mariadb_socket, postgres_socket
from tests.samples import leave_to_torture
from tests.scan.effort import EFFORT

# One server of each kind for all rooms.
__all__ = ["mariadb_socket", "postgres_socket"]

# Time limits for one example fail by chance on a busy machine; pytest's own limit catches what hangs.
settings.register_profile(
    "checkback", max_examples=50 if EFFORT == 1 else 100, deadline=None, print_blob=True, derandomize=EFFORT == 1
)
settings.load_profile("checkback")

# A shell has what it runs in the background ignore Ctrl-C, and so would the programs that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Spark reads its defaults there, in whichever process a test starts it.
os.environ.setdefault("SPARK_CONF_DIR", str(Path(__file__).parent / "spark" / "conf"))

_FILES_MAX = 300

# The producers of these stores are those of another: their truth is kept once.
TRUTH_OF = {"rocketmq-3.1.5-recovered": "rocketmq-3.1.5-killed"}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What runs over each place that an application's messages may go to, and what `make test` takes a sample of."""
    for item in items:
        if {"backend", "backend_shop", "desk"} & set(getattr(item, "fixturenames", ())):
            item.add_marker("each_backend")
    leave_to_torture(config, items)


@pytest.fixture(scope="module", autouse=True)
def _what_stays_is_not_searched() -> None:
    """What was collected and imported stays to the end: without this each search for garbage takes 2 s."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def few_open_files() -> Iterator[None]:
    """A store that crashed on purpose is garbage in circles, and keeps its files open until it is found.

    Many systems give a process 1,024 of them.
    """
    yield
    if os.path.isdir("/proc/self/fd") and len(os.listdir("/proc/self/fd")) > _FILES_MAX:
        gc.collect()


@pytest.fixture(params=sorted(engines.ENGINES, reverse=True))
def each_engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The test runs with each engine of transactions: new stores get it, and processes that open them know it."""
    name = str(request.param)
    monkeypatch.setattr(engines, "default", name)
    return name


@pytest.fixture(scope="session")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`golden(name)`: the directory of a golden store, unpacked at its first use. All tests share it: only read it."""
    directory = tmp_path_factory.mktemp("golden")

    def store(name: str) -> Path:
        path = directory / name
        return path if path.is_dir() else unpack.unpack(name, path)

    return store


@pytest.fixture
def golden_copy(golden: Callable[[str], Path], tmp_path: Path) -> Callable[[str], Path]:
    """`golden_copy(name)`: a fresh copy of a golden store, for this test alone; holes stay holes."""
    numbers = itertools.count()
    sparse = ["--sparse=always"] if sys.platform == "linux" else []

    def copy(name: str) -> Path:
        path = tmp_path / f"{name}.{next(numbers)}"
        subprocess.run(["cp", "-a", *sparse, golden(name), path], check=True)
        return path

    return copy


@pytest.fixture(scope="session")
def truth() -> Callable[[str], list[dict[str, Any]]]:
    """`truth(name)`: what the producers of a golden store sent and answered, in their order."""

    def lines(name: str) -> list[dict[str, Any]]:
        path = unpack.HERE / f"{TRUTH_OF.get(name, name)}.truth.jsonl"
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]

    return lines
