"""So many kills, judged: what `make test` and `make torture` do with `recovery.torture.kills`."""

from __future__ import annotations

from pathlib import Path

from recovery.torture.kills import KillPlan, kill_and_reconcile


def kill_and_judge(directory: Path, kills: int, seed: int, engine: str) -> None:
    plan = KillPlan(str(directory / "store"), str(directory / "notes"), seed, engine, kills=kills)
    result = kill_and_reconcile(plan)
    assert result.kills == kills
    assert min(result.acknowledged.values()) > kills, result.acknowledged
