"""How long property tests search.

`make test` takes the same few examples each time, in every room; tests/torture runs those of some rooms again with
CHECKBACK_EFFORT=20, at random: a change is never refused for what chance found elsewhere, and chance still looks.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

EFFORT = int(os.environ.get("CHECKBACK_EFFORT", "1"))


def tries(count: int) -> settings:
    """Settings for a test that tries `count` examples in `make test`."""
    slow = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    return settings(max_examples=count * EFFORT, suppress_health_check=slow)
