"""Which cases of a test `make test` runs, where `make torture` runs all: `@pytest.mark.sample(*ids)`.

An id names a case, or all whose ids have it between two dashes: `half-op` also names `before-half-op-sqlite`.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest

UNKNOWN = pytest.StashKey[list[str]]()
"""Ids in a sample of which no case was collected."""


def leave_to_torture(config: pytest.Config, items: Iterable[pytest.Item]) -> None:
    """Mark the cases that no sample names, and keep the ids that name no case: tests/house looks at them."""
    missing: dict[str, set[str]] = {}
    for item in items:
        sample = item.get_closest_marker("sample")
        if sample is not None and isinstance(item, pytest.Function):
            named = {one for one in sample.args if f"-{one}-" in f"-{item.callspec.id}-"}
            missing.setdefault(item.nodeid.partition("[")[0], set(sample.args)).difference_update(named)
            if not named:
                item.add_marker("torture")
    config.stash[UNKNOWN] = [f"{test}[{case}]" for test, cases in missing.items() for case in sorted(cases)]
