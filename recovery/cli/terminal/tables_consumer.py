"""What `dlq`, `consumer`, `retain` and `demo` show to people. It prints nothing; `output.py` does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from broker.consuming.unread import Unread
from broker.retainer import RetentionReport
from broker.store.maintain.retention import Retention
from recovery.cli.terminal.table import Shown, Styled, Table
from recovery.humanize import count, moment, printable, size, span
from recovery.views.consumer_lag import GroupPosition
from recovery.views.dead_letters import DeadLetter

if TYPE_CHECKING:
    from recovery.demo.reconcile import Reconciliation  # loads SQLAlchemy, which the other verbs do not need

_FAULTS_SHOWN = 20


def table(columns: Sequence[str], rows: Sequence[Sequence[object]], right: Sequence[str] = ()) -> Table:
    made = Table(*columns, right=right)
    for row in rows:
        made.add(*row)
    return made


def dead_letter_groups(found: dict[str, int]) -> Iterator[Shown]:
    if not found:
        yield "No group has dead letters."
        return
    yield table(("group", "dead letters"), list(found.items()), right=("dead letters",))


def dead_letters(letters: Sequence[DeadLetter], *, resent: bool = False) -> Iterator[Shown]:
    if letters:
        rows = [
            (
                _id(one),
                one.topic,
                one.tag,
                " ".join(one.keys),
                moment(one.store_timestamp_ms),
                "yes" * one.resent,
                one.why,
            )
            for one in letters
        ]
        yield table(("id", "topic", "tag", "keys", "given up", "resent", "why"), rows)
    yield count(len(letters), "dead letter") + (" sent to the group again" if resent else "")


def _id(letter: DeadLetter) -> str:
    return letter.unique_key or letter.message_id


def group_positions(found: Sequence[GroupPosition], group: str | None, topic: str | None) -> Iterator[Shown]:
    if not found:
        who = "No group" if group is None else f"No group {printable(group)}"
        yield f"{who} has a position {'here' if topic is None else f'in {printable(topic)}'}."
        return
    rows = [
        (one.group, one.topic, one.queue_id, one.position, one.end, one.lag, "paused" * one.paused) for one in found
    ]
    right = ("queue", "position", "end", "lag")
    yield table(("group", "topic", "queue", "position", "end", "lag", ""), rows, right=right)


def reconciliation(result: Reconciliation) -> Iterator[Shown]:
    """The demo's end: what crashed, what came of it, and whether it adds up."""
    yield table(("crash", "hit"), list(result.crashes.items()), right=("hit",))
    yield ""
    yield table(("counted", "expected", "found"), [(one.what, one.expected, one.found) for one in result.counts],
                right=("expected", "found"))  # fmt: skip
    yield ""
    omitted = len(result.faults) - _FAULTS_SHOWN
    more = [f"... and {omitted} more"] if omitted > 0 else []
    yield from (printable(line) for line in (*result.faults[:_FAULTS_SHOWN], *more, *result.rare))
    if result.faults:
        yield Styled(f"NOT reconciled: {count(len(result.faults), 'fault')}", "bold red")
    elif result.rare:
        yield Styled("it adds up, but too few crashes hit to prove it: sell longer (--seconds)", "bold yellow")
    else:
        yield Styled("reconciled: nothing lost, nothing twice, nothing oversold", "bold green")


SPARE = Retention(keep_s=0)  # everything that everybody has read


def retention(report: RetentionReport, theirs: Retention | None, history: Mapping[str, Any]) -> Iterator[Shown]:
    """The plan or what was done, who has yet to read what, and what pins segments that are due."""
    free = f"{size(report.disk_free_bytes)} free on its disk"
    yield printable(f"{report.path}: {size(report.used_bytes)}, {free}; {_rules(report.retention)}")
    if theirs is not None and theirs != report.retention:
        yield f"The processes that have it open {_rules(theirs)}"
    if report.unread:
        yield table(
            ("group", "topic", "unread", "of these go", "last seen"),
            [_unread_row(one) for one in report.unread],
            right=("unread", "of these go"),
        )
    kept = report.due - len(report.segments)
    if kept:
        pinned = count(kept, "segment that is due stays", "segments that are due stay")
        yield f"{pinned}, pinned by:"
        yield from (printable(f"  {pin.commitlog_offset:>20,}  {pin.text}") for pin in report.pins[:_PINS_SHOWN])
        if (more := max(0, len(report.pins) - _PINS_SHOWN) + report.pins_omitted) > 0:
            yield f"  and {more:,} more"
    yield _retention_verdict(report)
    if history.get("unread"):
        total = sum(history["unread"].values())
        since = f"until {moment(history['last_ms'])}" if "last_ms" in history else ""
        yield f"Removed unread so far: {count(total, 'message')} {since}"


_PINS_SHOWN = 20


def _retention_verdict(report: RetentionReport) -> str:
    gone = f"{count(len(report.segments), 'segment')}, {size(report.bytes)}"
    unread = f", with {count(report.unread_gone, 'unread message')}" if report.unread_gone else ""
    if report.applied:
        return f"Removed {gone}{unread}" if report.segments else "Nothing was removed"
    if not report.segments:
        return "Nothing may go"
    how = "give --keep and --apply" if report.retention == SPARE else "give the same options and --apply"
    return f"May go: {gone}{unread}. To remove them {how}"


def _unread_row(one: Unread) -> tuple[object, ...]:
    seen = "" if one.idle_s is None else f"{span(one.idle_s)} ago"
    group = one.group or ("(nobody)" if one.kind == "topic" else "")
    return group, one.topic, one.waiting, one.going, f"{seen}, gone" if one.is_gone else seen


def _rules(retention: Retention) -> str:
    """What a retention keeps, in words."""
    words = []
    if retention.keep_s is not None:
        words.append(f"{span(retention.keep_s)}" if retention.keep_s else "nothing that everybody has read")
    if retention.max_bytes is not None:
        words.append(f"at most {size(retention.max_bytes)}")
    if retention.free_bytes is not None:
        words.append(f"{size(retention.free_bytes)} of the disk free")
    unread = "; even what is unread goes" if retention.even_unread else ""
    return f"keep {', '.join(words)}{unread}"
