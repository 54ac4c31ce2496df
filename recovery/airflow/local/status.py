"""The lines that `checkback up` writes while it stays up: how the transactions stand, how the DAGs' last runs ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from broker.errors import BrokerError
from recovery.airflow.local.rest import ASKS, Rest, Run
from recovery.views.overview import Overview, overview

_MARKS = {"success": "ok", "failed": "FAILED", "running": "running", "queued": "waits", ASKS: "asks you"}
_ORDER = ("check_back", "verify_store", "recover_after_crash", "rebuild_state_table", "resolve_parked", "retention")


def standing(store: str, path: str, now_ms: int) -> str:
    """One store in a line: in doubt, committed, rolled back, parked."""
    try:
        seen = overview(path, now_ms, limit=1000, parked_limit=0)
    except (BrokerError, OSError) as error:
        return f"{store}: {error}"
    return f"{store}: {counts(seen)}"


def counts(seen: Overview) -> str:
    """The numbers of an overview as a person says them."""
    words = {"in_doubt": "in doubt", "committed": "committed", "rolled_back": "rolled back", "parked": "parked"}
    parts = [f"{seen.counts[name]:,} {word}" for name, word in words.items() if name in seen.counts]
    if seen.in_doubt:
        parts[0] += f" (oldest {seen.oldest_s:.0f} s, {sum(one.checks > 0 for one in seen.in_doubt)} asked before)"
    return ", ".join(parts)


def runs(stores: Sequence[str], last: Mapping[str, Run]) -> str:
    """How the last run of each DAG ended; those that never ran are left out."""
    parts = []
    for store in stores:
        for work in _ORDER:
            run = last.get(f"{store}.{work}")
            if run is not None:
                name = work if len(stores) == 1 else run.dag_id
                parts.append(f"{name} {_MARKS.get(run.state, run.state)}")
    return "DAGs: " + (", ".join(parts) or "none has run yet")


def last_runs(stores: Sequence[str], rest: Rest) -> str:
    """The same, asked for now; Airflow may be busy. A part of Airflow that ended is named: nothing starts it again."""
    try:
        line = runs(stores, rest.last_runs())
    except BrokerError as error:
        return f"DAGs: {error}"
    gone = ", ".join(rest.unhealthy())
    return f"{line}. No heartbeat of Airflow's {gone}: if it stays so, stop this and start it again" if gone else line
