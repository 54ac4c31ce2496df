"""How long the property tests of this room and of tests/transaction search.

`make test` takes the same few examples each time; tests/torture runs the same tests with CHECKBACK_EFFORT=20, at
random.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

EFFORT = int(os.environ.get("CHECKBACK_EFFORT", "1"))


def tries(count: int) -> settings:
    """Settings for a test that tries `count` examples in `make test`."""
    slow = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    return settings(max_examples=count * EFFORT, derandomize=EFFORT == 1, suppress_health_check=slow)
