"""The places that the suites run over: CHECKBACK_BACKENDS names them, with blanks between."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.backends.backend import Backend
from tests.backends.clusters import real, served
from tests.backends.embedded import Embedded
from tests.compat import rocketmq

NAMES = os.environ.get("CHECKBACK_BACKENDS", "embedded served").split()
"""`embedded`, `served`, or the version of a real RocketMQ. `make compat` runs the suites over the last."""


@contextmanager
def backend_of(name: str, path: Path) -> Iterator[Backend]:
    """A new place. Without Java or the jars the test is skipped."""
    if name == "embedded":
        with closing(Embedded(path)) as embedded:
            yield embedded
    elif name == "served":
        with served(path) as connected:
            yield connected
    else:
        try:
            rocketmq.install(name)
        except rocketmq.NotToBeHad as missing:
            pytest.skip(str(missing))
        with real(name, path) as connected:
            yield connected


@pytest.fixture(params=NAMES)
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    """The same test over each place."""
    with backend_of(str(request.param), tmp_path / "place") as made:
        yield made
