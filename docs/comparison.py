"""The comparison of docs/comparison.json as tables and as a plot. `python docs/comparison.py` writes them.

docs/comparison.md              the tables between the markers `<!-- comparison -->` and `<!-- end -->`
docs/images/comparison.svg      purchases a second, and the time from a purchase to its order
"""

from __future__ import annotations

import json
import math
import re
from html import escape
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
PAGE, RESULT, PLOT = DOCS / "comparison.md", DOCS / "comparison.json", DOCS / "images" / "comparison.svg"
BLOCK = re.compile(r"(<!-- comparison -->\n)(.*?)(<!-- end -->)", re.DOTALL)

WIDTH, LEFT, TOP, ROW, GAP = 1000, 210, 52, 34, 70
BAR = 300  # the width of either half
STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#24292f}.value{fill:#57606a;font-size:12px}.title{font-weight:600}"
    ".ours{fill:#2f7d5b}.other{fill:#8b949e}.late{fill:#b7791f}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.value{fill:#9198a1}}"
)


def comparison() -> dict[str, Any]:
    """The machine, and what was measured of each contender."""
    loaded: dict[str, Any] = json.loads(RESULT.read_text(encoding="utf-8"))
    return loaded


def tables() -> str:
    """Markdown: speed and code; crashes; what blocks."""
    data = comparison()
    rows = data["contenders"]
    lines = ["| | purchases/s | purchase p50, p99 | until its order p50, p99 | lines of code | durable by |", _rule(6)]
    for row in rows:
        speed = row["undisturbed"]
        cells = [f"{speed['rate']:g}", _pair(speed["purchase"]), _pair(speed["to_order"]), str(row["code_lines"])]
        lines.append(f"| {_name(row)} | {' | '.join(cells)} | {row['durability']} |")
    lines += ["", "Killed at random:", ""]
    lines += ["| | kills | purchases | lost | doubled | invented | settled after |", _rule(7)]
    for row in rows:
        crash = row["killed"]
        numbers = [crash[name] for name in ("kills", "locks", "lost", "doubled", "invented")]
        cells = [*map(str, numbers), _settled(crash["settled_s"], crash["lost"])]
        lines.append(f"| {_name(row)} | {' | '.join(cells)} |")
    lines += ["", "When one side dies:", ""]
    lines += ["| | a buyer dies half-way: the product is | its order came | purchases/s without the orders' database |"]
    lines += [_rule(4)]
    for row in rows:
        dead, away = row["one_dies"], row["orders_away"]
        blocked = "**locked until the buyer starts again**" if dead["blocks_the_product"] else "free"
        came = (
            "not while it was dead" if dead["order_came_after_s"] is None else f"after {dead['order_came_after_s']:g} s"
        )
        lines.append(f"| {_name(row)} | {blocked} | {came} | {away['rate']:g} |")
    return "\n".join([*lines, "", _machine(data), ""])


def _rule(columns: int) -> str:
    return "|" + "---|" * columns


def _name(row: dict[str, Any]) -> str:
    return f"{row['title']} {row['version']}".strip()


def _pair(values: dict[str, float]) -> str:
    return f"{_time(values['p50_ms'])}, {_time(values['p99_ms'])}"


def _time(ms: float) -> str:
    return f"{ms / 1000:.1f} s" if ms >= 1000 else f"{ms:.0f} ms" if ms >= 10 else f"{max(ms, 0):.1f} ms"


def _settled(seconds: float, lost: int) -> str:
    return f"not within {seconds:.0f} s" if lost else f"{seconds:g} s"


def _machine(data: dict[str, Any]) -> str:
    machine = data["machine"]
    loads = machine["load_average_at_the_start"], machine["load_average_at_the_end"]
    load = f"load average {loads[0]} at the start, {loads[1]} at the end"
    return (
        f"A machine with {machine['cores']} cores ({machine['processor']}), Python {machine['python']}, PostgreSQL "
        f"{machine['postgresql']}; {load}; {data['buyers']} buyers, {data['seconds']:g} s for each part."
    )


def with_tables(text: str) -> str:
    """The page with its tables as the measurements are now."""
    return BLOCK.sub(lambda block: block[1] + tables() + block[3], text)


def plot() -> str:
    """Left: purchases a second. Right: p50 and p99 from a purchase to its order, on a logarithmic scale."""
    rows = comparison()["contenders"]
    height = TOP + ROW * len(rows) + 16
    fastest = max(row["undisturbed"]["rate"] for row in rows) or 1
    title = "Purchases a second, and the time until their orders, by contender"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{title}">',
        f"<style>{STYLE}</style>",
        f'<text class="title" x="{LEFT}" y="24">purchases a second</text>',
        f'<text class="title" x="{LEFT + BAR + GAP}" y="24">until its order: p50, p99 (logarithmic)</text>',
    ]
    for number, row in enumerate(rows):
        y, speed = TOP + ROW * number, row["undisturbed"]
        kind = "ours" if row["module"] == "transactional" else "other"
        label = row["title"].replace("`", "").split(" (")[0]
        width = max(1.5, BAR * 0.85 * speed["rate"] / fastest)
        parts += [
            f'<text x="{LEFT - 10}" y="{y + 14}" text-anchor="end">{escape(label)}</text>',
            f'<rect class="{kind}" x="{LEFT}" y="{y}" width="{width:.1f}" height="{ROW - 14}" rx="2"/>',
            f'<text class="value" x="{LEFT + width + 6:.1f}" y="{y + 14}">{speed["rate"]:g}</text>',
            *_late(LEFT + BAR + GAP, y, speed["to_order"], kind),
        ]
    return "\n".join([*parts, "</svg>", ""])


def _late(x: int, y: int, delay: dict[str, float], kind: str) -> list[str]:
    half, most = _x(delay["p50_ms"]), _x(delay["p99_ms"])
    words = f"{_time(delay['p50_ms'])}, {_time(delay['p99_ms'])}"
    return [
        f'<rect class="late" x="{x}" y="{y + 6}" width="{max(most, 2):.1f}" height="{ROW - 26}" rx="2"/>',
        f'<rect class="{kind}" x="{x}" y="{y}" width="{max(half, 2):.1f}" height="{ROW - 14}" rx="2"/>',
        f'<text class="value" x="{x + max(most, half) + 6:.1f}" y="{y + 14}">{words}</text>',
    ]


def _x(ms: float) -> float:
    """From 0.1 ms to 100 s."""
    return BAR * 0.85 * min(1.0, max(0.0, math.log10(max(ms, 0.1) * 10) / 6))


def main() -> None:
    """Write the tables and the plot."""
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    PLOT.write_text(plot(), encoding="utf-8")


if __name__ == "__main__":
    main()
