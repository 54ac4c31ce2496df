"""A take-over, and what there is before and after it."""

from __future__ import annotations

from pathlib import Path

from broker.store.disk.files import Disk
from recovery.repair import crash
from tests.rebuild.derived_files import on_disk


def seen(path: Path) -> tuple[dict[str, str], list[Path]]:
    """Every file with its digest, and every name."""
    return on_disk(path), sorted(path.rglob("*"))


def taken(path: Path, disk: Disk | None = None, *, even_short: bool = False) -> crash.RecoveryReport:
    """Take a store over."""
    made = crash.plan(crash.survey(path))
    return crash.apply(made, broker_is_stopped=True, still_s=0, disk=disk, even_short=even_short)
