"""How a round of check-back is shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recovery.cli.terminal.output import print_json, show, warn

if TYPE_CHECKING:
    from recovery.checkback.round import RoundReport


def show_round(report: RoundReport, as_json: bool) -> None:
    """The refusals, what was or would be done, and the errors; or one value of JSON."""
    for why in report.refusals:
        warn(why)
    if as_json:
        print_json(report.as_json())
        return
    if report.is_dry_run:
        for one in report.planned:
            last = ", at its limit" if one["at_limit"] else ""
            show([f"would ask: {one['message_id']} {one['topic']} group {one['producer_group']}{last}"])
    show([_summary(report)])
    show([f"  {count:,} not asked: {why}" for why, count in report.not_asked.items()])
    show([f"  {error}" for error in report.errors])


def _summary(report: RoundReport) -> str:
    ended = f"{report.committed:,} committed, {report.rolled_back:,} rolled back, {report.newly_parked:,} parked"
    open_ = f"{report.unknown:,} unknown, {report.running:,} still running, {report.down:,} not asked"
    open_ += f", {report.refused:,} refused" if report.refused else ""
    rest = f"{report.waiting:,} wait, {report.left:,} are left for the next round"
    return f"{report.in_doubt:,} in doubt, {report.asked:,} asked: {ended}; {open_}; {rest} ({report.duration_s:.2f} s)"
