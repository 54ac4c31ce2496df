"""What a person reads before a repair is approved, and what binds the approval to what was read.

    plan_id(lines)      stands for a plan; the task that carries it out plans again and compares the two

Another plan is not carried out: `PlanChanged`, and the DAG asks again.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from broker.errors import BrokerError
from recovery.humanize import count, printable, span

if TYPE_CHECKING:
    from recovery.views.overview import WaitingTransaction

SHOWN = 10  # transactions that an approval lists
_KEYS_SHOWN, _KEY_SIZE = 5, 100  # a message may have 30 KiB of them; MySQL holds 64 KiB of an approval
_ANSWERS = (
    "- **Commit**: the message is delivered. This cannot be undone.\n"
    "- **Roll back**: it is never delivered. This cannot be undone.\n"
    "- **Ask again**: check-back queries it again from now on.\n"
    "- **Leave**, or no answer in time: it stays parked."
)


class PlanChanged(BrokerError):
    """The store is not as it was when the plan was shown: nothing was done."""

    def __init__(self, path: str) -> None:
        text = "the store is not as it was when the plan was shown, so that plan is not carried out: plan again"
        super().__init__(f"{path}: {text}")


def plan_id(lines: Sequence[str]) -> str:
    """What stands for a plan: 16 hexadecimal digits of its lines."""
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def code(text: object) -> str:
    """Text of an application as a code span of Markdown, which it cannot leave: no backtick, no line, no NUL in it."""
    return f"`{printable(str(text)).replace('`', chr(39))}`"


def keys_of(keys: Sequence[str]) -> str:
    """The keys of a message: the first, each with its first characters."""
    if not keys:
        return "no keys"
    shown = [code(key if len(key) <= _KEY_SIZE else f"{key[:_KEY_SIZE]}…") for key in keys[:_KEYS_SHOWN]]
    more = f" and {len(keys) - len(shown)} more" if len(keys) > len(shown) else ""
    return f"key{'s' if len(keys) > 1 else ''} {', '.join(shown)}{more}"


def parked_subject(name: str, one: WaitingTransaction) -> str:
    """The question about a parked transaction in a line, as text."""
    keys = f", {', '.join(one.keys)}" if one.keys else ""
    return f"{name}: how did half message {one.commitlog_offset} end ({printable(f'{one.topic}{keys}'):.100})?"


def parked_text(path: str, one: WaitingTransaction) -> str:
    """What a person needs to decide about a parked transaction, and what each answer leads to."""
    facts = f"half message {one.commitlog_offset}, topic {code(one.topic)}, {keys_of(one.keys)}"
    return "\n\n".join(
        [
            f"**Store**: {code(path)}",
            f"**Transaction**: {facts}, group {code(one.producer_group)}, in doubt for {span(one.age_s)}",
            f"**Parked because**: {code(one.why or 'no reason was given')}",
            "Look into the application's database first: is there what the message is about?",
            _ANSWERS,
        ]
    )


def waiting_lines(path: str) -> list[str]:
    """The transactions in doubt: how many, since when, which.

    Their age is by the clock, not by the run's own time: after a pause the run was due days ago.
    """
    from recovery.views.overview import overview

    seen = overview(path, time.time_ns() // 1_000_000, limit=SHOWN, parked_limit=0)
    total = seen.counts["in_doubt"]
    if not total:
        return ["**In doubt**: no transaction."]
    lines = [f"**In doubt**: {count(total, 'transaction')}, the oldest for {span(seen.oldest_s)}:"]
    for one in seen.in_doubt:
        group = f"group {code(one.producer_group)}, for {span(one.age_s)}"
        lines.append(f"- {code(one.topic)}, {keys_of(one.keys)}, {group}")
    if total > len(seen.in_doubt):
        lines.append(f"- and {total - len(seen.in_doubt)} more")
    return lines
