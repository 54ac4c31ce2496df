"""Metrics of a store, through Airflow's own: StatsD or OpenTelemetry, as `[metrics]` of Airflow says.

    checkback.in_doubt.shop             gauge: transactions in doubt that are not parked
    checkback.oldest_in_doubt_s.shop    gauge: the age of the oldest of them, in seconds
    checkback.parked.shop               gauge: transactions that wait for a person
    checkback.crashed.shop              gauge: 1 while the store is as a crash left it
    checkback.findings.shop             gauge: findings of the last verification
    checkback.check_back.shop           counters .committed, .rolled_back, .parked: what rounds decided

The first four are sent at each look of the triggerer, the others by the tasks.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from recovery.airflow.versions import stats

_log = logging.getLogger(__name__)
_COUNTED = {"committed": "committed", "rolled_back": "rolled_back", "newly_parked": "parked"}


def send_gauges(store: str, gauges: Mapping[str, float]) -> None:
    """Send the gauges of a store; metrics that cannot be sent stop no work."""
    for name, value in gauges.items():
        _send(lambda sink, name=name, value=value: sink.gauge(f"checkback.{name}.{store}", value))


def count_round(store: str, report: Mapping[str, Any]) -> None:
    """Count what a round of check-back decided."""
    for name, shown in _COUNTED.items():
        if report.get(name):
            _send(lambda sink, shown=shown, n=report[name]: sink.incr(f"checkback.check_back.{store}.{shown}", count=n))


def _send(call: Any) -> None:
    try:
        call(stats())
    except Exception as error:  # noqa: BLE001 - whatever the sink raises
        _log.warning("a metric is not sent: %s", error)
