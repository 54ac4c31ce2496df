"""What a person reads before a repair is approved, and what binds the approval to what was read.

    plan_id(lines)      stands for a plan; the task that carries it out plans again and compares the two

Another plan is not carried out: `PlanChanged`, and the DAG asks again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from broker.errors import BrokerError
from recovery.humanize import count, span

if TYPE_CHECKING:
    from recovery.views.overview import Overview

SHOWN = 10  # transactions that an approval lists


class PlanChanged(BrokerError):
    """The store is not as it was when the plan was shown: nothing was done."""

    def __init__(self, path: str) -> None:
        text = "the store is not as it was when the plan was shown, so that plan is not carried out: plan again"
        super().__init__(f"{path}: {text}")


def plan_id(lines: Sequence[str]) -> str:
    """What stands for a plan: 16 hexadecimal digits of its lines."""
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def code(text: object) -> str:
    """Text of an application as a code span of Markdown, which it cannot leave."""
    return f"`{str(text).replace('`', chr(39))}`"


def keys_of(keys: Sequence[str]) -> str:
    """The keys of a message."""
    return ", ".join(code(key) for key in keys) or "no keys"


def waiting_lines(seen: Overview) -> list[str]:
    """The transactions in doubt: how many, since when, which."""
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
