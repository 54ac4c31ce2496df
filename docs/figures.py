"""The measured figures of docs/figures.json as tables and as a plot. `python docs/figures.py` writes them.

README.md, docs/reference/figures.md    the table between the markers `<!-- figures -->` and `<!-- end -->`
docs/images/figures.svg                 each comparison as a bar on a logarithmic scale
"""

from __future__ import annotations

import json
import math
import re
from html import escape
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
PAGES = (DOCS.parent / "README.md", DOCS / "reference" / "figures.md")
PLOT = DOCS / "images" / "figures.svg"
BLOCK = re.compile(r"(<!-- figures -->\n)(.*?)(<!-- end -->)", re.DOTALL)

WIDTH, LEFT, RIGHT, TOP, ROW = 1000, 430, 290, 44, 24
SCALE = (0.125, 16.0)
SHORT = {
    "an outbox row and no message": "outbox",
    "the local engine, 2 processes": "local engine",
    "`binaryFile` and `mapInArrow`": "binaryFile",
    "SQLite row, WAL, NORMAL": "SQLite NORMAL",
    "SQLite row, WAL, FULL": "SQLite FULL",
    "huey's dequeue": "huey",
}
PREFIXES = {"Spark": "Spark: ", "Serving": "Java client: "}
STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#24292f}.tick,.value{fill:#57606a;font-size:12px}"
    ".axis{stroke:#57606a}.grid{stroke:#d0d7de}.faster{fill:#2f7d5b}.slower{fill:#b7791f}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.tick,.value{fill:#9198a1}.axis{stroke:#9198a1}"
    ".grid{stroke:#3d444d}}"
)


def figures() -> dict[str, Any]:
    """The machine and the measured figures."""
    loaded: dict[str, Any] = json.loads((DOCS / "figures.json").read_text(encoding="utf-8"))
    return loaded


def table() -> str:
    """The figures as a Markdown table; a section is named once."""
    data, section = figures(), ""
    lines = ["| | measured | checkback | yardstick | ratio |", "|---|---|---|---|---|"]
    for figure in data["figures"]:
        title = "" if figure["section"] == section else f"**{figure['section']}**"
        section = figure["section"]
        yardstick = f"{figure['yardstick']}: {figure['theirs']}" if "yardstick" in figure else ""
        lines.append(f"| {title} | {figure['what']} | {figure['ours']} | {yardstick} | {figure.get('ratio', '')} |")
    return "\n".join([*lines, "", f"{data['machine']}. Bodies of 1 KiB; the best of several turns.", ""])


def with_table(text: str) -> str:
    """A page with its table as the figures are now."""
    return BLOCK.sub(lambda block: block[1] + table() + block[3], text)


def plot() -> str:
    """Each comparison as a bar: right of 1 checkback is faster than the yardstick, left of it slower."""
    rows = [figure for figure in figures()["figures"] if "ratio" in figure]
    height = TOP + ROW * len(rows) + 34
    title = "checkback compared with a yardstick, measured in the same run"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{title}">',
        f"<style>{STYLE}</style>",
        f'<text x="{_x(1):.0f}" y="16" text-anchor="middle" class="tick">slower ← yardstick = 1 → faster</text>',
    ]
    for value in (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0):
        line = f'x1="{_x(value):.1f}" x2="{_x(value):.1f}" y1="{TOP - 8}" y2="{height - 24}"'
        parts.append(f'<line class="{"axis" if value == 1 else "grid"}" {line}/>')
        shown = f"1/{1 / value:g}" if value < 1 else f"{value:g}"  # 0.125 would reach into the next
        parts.append(f'<text class="tick" x="{_x(value):.1f}" y="{height - 8}" text-anchor="middle">{shown}×</text>')
    for number, figure in enumerate(rows):
        parts += _bar(TOP + ROW * number, rows, number, figure)
    return "\n".join([*parts, "</svg>", ""])


def _bar(y: int, rows: list[dict[str, Any]], number: int, figure: dict[str, Any]) -> list[str]:
    ratio, what = figure["ratio"], figure["what"]
    for earlier in reversed(rows[:number]):  # "the same" says what it is the same as
        if what.startswith("the same") and not earlier["what"].startswith("the same"):
            what = earlier["what"].split(",")[0] + what.removeprefix("the same")
            break
    prefix = next((short for begin, short in PREFIXES.items() if figure["section"].startswith(begin)), "")
    label = f"{prefix}{what}".replace("`", "")
    first, last = sorted((_x(1.0), _x(ratio)))
    yardstick = SHORT.get(figure["yardstick"], figure["yardstick"])
    words = f"{figure['ours']}; {yardstick} {figure['theirs']}"
    kind = "faster" if ratio >= 1 else "slower"
    size = f'width="{max(last - first, 1.5):.1f}" height="{ROW - 8}"'
    return [
        f'<text x="{LEFT - 10}" y="{y + 12}" text-anchor="end">{escape(label)}</text>',
        f'<rect class="{kind}" x="{first:.1f}" y="{y}" {size} rx="2"/>',
        f'<text class="value" x="{WIDTH - RIGHT + 12}" y="{y + 12}">{ratio:g}×  ({escape(words)})</text>',
    ]


def _x(ratio: float) -> float:
    low, high = (math.log(value) for value in SCALE)
    share = (math.log(ratio) - low) / (high - low)
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def main() -> None:
    """Write the tables and the plot."""
    for page in PAGES:
        page.write_text(with_table(page.read_text(encoding="utf-8")), encoding="utf-8")
    PLOT.write_text(plot(), encoding="utf-8")


if __name__ == "__main__":
    main()
