"""Figures as inline SVG: columns over time and bars by name. Pure: numbers in, text out; colours are the page's."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from html import escape

WIDTH, HEIGHT = 720, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 8, 10, 26
_BAR, _LABEL = 24, 230
_STEPS = (1, 2, 5, 10)


def columns(
    start_ms: int, width_ms: int, rows: Sequence[Sequence[float]], names: Sequence[str], unit: str, title: str
) -> str:
    """Stacked columns, one for each bucket of time; series i has the class `s{i}`, and each column says what it is."""
    totals = [sum(row) for row in rows]
    top = nice(max(totals, default=0))
    inner_width, inner_height = WIDTH - _LEFT - _RIGHT, HEIGHT - _TOP - _BOTTOM
    each = inner_width / max(len(rows), 1)
    parts = [_frame(title, HEIGHT)]
    for step in range(5):
        value = top * step / 4
        y = _TOP + inner_height * (1 - step / 4)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{short(value)}</text>')
    for number, row in enumerate(rows):
        bottom, x = float(_TOP + inner_height), _LEFT + number * each
        label = ", ".join(f"{name} {short(value)}{unit}" for name, value in zip(names, row, strict=True) if value)
        parts.append(f"<g><title>{_clock(start_ms + number * width_ms)}: {escape(label or 'nothing')}</title>")
        for series, value in enumerate(row):
            height = inner_height * value / top if top else 0
            if height > 0:
                bottom -= height
                box = f'x="{x:.2f}" y="{bottom:.2f}" width="{max(each - (each > 3), 0.6):.2f}" height="{height:.2f}"'
                parts.append(f'<rect class="s{series}" {box}/>')
        parts.append("</g>")
    for share, anchor in ((0.0, "start"), (0.5, "middle"), (1.0, "end")):
        moment = start_ms + int(share * len(rows) * width_ms)
        place = f'x="{_LEFT + inner_width * share:.1f}" y="{HEIGHT - 6}" text-anchor="{anchor}"'
        parts.append(f'<text class="tick" {place}>{_clock(moment)}</text>')
    return "".join([*parts, "</svg>"])


def bars(values: Sequence[tuple[str, float, str]], title: str, css: str = "s0") -> str:
    """Horizontal bars: name, value, and the words behind the bar."""
    most = max((value for _, value, _ in values), default=0)
    room = WIDTH - _LABEL - 150
    parts = [_frame(title, _BAR * max(len(values), 1) + 8)]
    for number, (name, value, words) in enumerate(values):
        y = number * _BAR + 4
        width = room * value / most if most else 0
        shown = name if len(name) <= 34 else f"{name[:33]}…"
        parts.append(f"<g><title>{escape(name)}: {escape(words)}</title>")
        label = f'x="{_LABEL - 8}" y="{y + 15}" text-anchor="end"'
        parts.append(f'<text class="label" {label}>{escape(shown)}</text>')
        size = f'width="{max(width, 1 if value else 0):.1f}" height="{_BAR - 7}"'
        parts.append(f'<rect class="{css}" x="{_LABEL}" y="{y}" {size} rx="2"/>')
        parts.append(f'<text class="value" x="{_LABEL + width + 7:.1f}" y="{y + 15}">{escape(words)}</text></g>')
    return "".join([*parts, "</svg>"])


def _frame(title: str, height: int) -> str:
    box = f'viewBox="0 0 {WIDTH} {height}" role="img"'
    return f'<svg {box} aria-label="{escape(title, quote=True)}"><title>{escape(title)}</title>'


def nice(value: float) -> float:
    """The next round number at or above a value: the top of an axis."""
    if value <= 0:
        return 1
    power = 10.0 ** (len(str(int(value))) - 1) if value >= 1 else 0.1
    return next(step * power for step in _STEPS if step * power >= value)


def short(value: float) -> str:
    """A number as people read it: 1.2k, 35M."""
    for limit, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.3g}{letter}"
    return f"{value:.3g}"


def size_text(count: int) -> str:
    """A number of bytes as people read it: 1.2 kB, 284 B."""
    text = short(count)
    return f"{text[:-1]} {text[-1]}B" if text[-1].isalpha() else f"{text} B"


def _clock(moment_ms: int) -> str:
    try:
        moment = dt.datetime.fromtimestamp(moment_ms / 1000, dt.UTC)
    except (OverflowError, ValueError, OSError):
        return f"{moment_ms} ms"
    return moment.strftime("%Y-%m-%d %H:%M:%S")
