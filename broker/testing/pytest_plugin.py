"""Fixtures for tests of applications that use checkback. pytest loads this by itself when checkback is installed.

checkback_store               a store of its own for each test
checkback_clock               the wall clock, to be moved: clock.advance(10)
lose_the_commit               with lose_the_commit(engine, committed=True): ...
crash_between_commit_and_end  with crash_between_commit_and_end(store): ...

Nothing is imported before a test asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from broker.live import LiveStore
    from broker.testing.fixtures import FakeClock


@pytest.fixture
def checkback_store(tmp_path: Path) -> Iterator[LiveStore]:
    """A new store in the test's temporary directory, open for writing, as `temporary_store` makes it."""
    from broker.testing.fixtures import temporary_store

    with temporary_store(str(tmp_path / "store")) as store:
        yield store


@pytest.fixture
def checkback_clock() -> Iterator[FakeClock]:
    """The wall clock of this process, to be moved."""
    from broker.testing.fixtures import FakeClock

    with FakeClock() as clock:
        yield clock


@pytest.fixture
def lose_the_commit() -> Callable[..., AbstractContextManager[None]]:
    """`with lose_the_commit(engine, committed=True): ...`: the next COMMIT ends in a lost connection."""
    from broker.testing import fixtures as testkit

    return testkit.lose_the_commit


@pytest.fixture
def crash_between_commit_and_end() -> Callable[[Any], AbstractContextManager[None]]:
    """`with crash_between_commit_and_end(store): ...`: the block ends as by a kill between COMMIT and end."""
    from broker.testing import fixtures as testkit

    return testkit.crash_between_commit_and_end
