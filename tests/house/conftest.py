"""The syntax trees of the project, half a million objects, are kept no longer than this room looks at them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.house import tree


@pytest.fixture(scope="package", autouse=True)
def _trees_are_dropped() -> Iterator[None]:
    yield
    tree.imports.cache_clear()
    tree.modules.cache_clear()
