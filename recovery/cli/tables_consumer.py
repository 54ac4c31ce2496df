"""What `dlq`, `consumer` and `demo` show to people. It prints nothing; the verbs do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from recovery.demo.reconcile import Reconciliation
from recovery.humanize import count, moment, printable
from recovery.views.consumer_lag import GroupPosition
from recovery.views.dead_letters import DeadLetter

Shown = str | Table | Text


def table(columns: Sequence[str], rows: Sequence[Sequence[object]], right: Sequence[str] = ()) -> Table:
    """Cells as text; what comes from a store cannot move the cursor."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True, header_style="bold")
    for name in columns:
        made.add_column(name, justify="right" if name in right else "left", overflow="fold")
    for row in rows:
        made.add_row(*(Text(printable(str(cell))) for cell in row))
    return made


def dead_letter_groups(found: dict[str, int]) -> Iterator[Shown]:
    if not found:
        yield "No group has dead letters."
        return
    yield table(("group", "dead letters"), list(found.items()), right=("dead letters",))


def dead_letters(letters: Sequence[DeadLetter], *, resent: bool = False) -> Iterator[Shown]:
    if letters:
        rows = [
            (_id(one), one.topic, one.tag, " ".join(one.keys), moment(one.store_timestamp_ms), "yes" * one.resent)
            for one in letters
        ]
        yield table(("id", "topic", "tag", "keys", "given up", "resent"), rows)
    yield count(len(letters), "dead letter") + (" sent to the group again" if resent else "")


def _id(letter: DeadLetter) -> str:
    return letter.unique_key or letter.message_id


def group_positions(found: Sequence[GroupPosition]) -> Iterator[Shown]:
    if not found:
        yield "No group has a position here."
        return
    rows = [(one.group, one.topic, one.queue_id, one.position, one.end, one.lag) for one in found]
    yield table(("group", "topic", "queue", "position", "end", "lag"), rows, right=("queue", "position", "end", "lag"))


def reconciliation(result: Reconciliation) -> Iterator[Shown]:
    """The demo's end: what crashed, what came of it, and whether it adds up."""
    yield table(("crash", "hit"), list(result.crashes.items()), right=("hit",))
    yield ""
    yield table(("counted", "expected", "found"), [(one.what, one.expected, one.found) for one in result.counts],
                right=("expected", "found"))  # fmt: skip
    yield ""
    yield from (printable(fault) for fault in (*result.faults, *result.rare))
    if result.faults:
        yield Text(f"NOT reconciled: {count(len(result.faults), 'fault')}", style="bold red")
    elif result.rare:
        yield Text("it adds up, but too few crashes hit to prove it: sell longer (--seconds)", style="bold yellow")
    else:
        yield Text("reconciled: nothing lost, nothing twice, nothing oversold", style="bold green")
