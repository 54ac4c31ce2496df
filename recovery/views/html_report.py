"""A report of a store as one HTML page, good enough to hand on: no script, no font, no picture from elsewhere.

As in:

    page = html_report(survey("shop.store", now_ms))
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from html import escape

from recovery.findings import KINDS, Cause
from recovery.views.figures import AGES_MS, CHECKS_MAX, STATES, Figures
from recovery.views.svg import bars, columns, size_text

_BUCKETS = 120
_TOPICS = 12
_FINDINGS = 60

STYLE = """
:root { color-scheme: light dark; --ink: #1c2330; --soft: #667085; --line: #e3e7ee; --paper: #fff; --card: #f7f8fb;
  --s0: #2f6fde; --s1: #98a2b3; --s2: #e8a317; --s3: #b3361f; --good: #1a7f4b; --bad: #b3361f; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ef; --soft: #98a2b3; --line: #303746; --paper: #14181f;
  --card: #1b212b; --s0: #6c9cf0; --s1: #667085; --s2: #e8b64c; --s3: #e06c53; --good: #4cc38a; --bad: #e06c53; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 800px; margin: 0 auto; padding: 32px 20px 64px; }
h1 { font-size: 24px; margin: 0; overflow-wrap: anywhere; } h2 { font-size: 17px; margin: 36px 0 4px; }
p { margin: 4px 0 10px; } .soft, figcaption { color: var(--soft); }
.verdict { font-weight: 600; padding: 10px 14px; border-left: 4px solid; background: var(--card); margin: 16px 0; }
.good { border-color: var(--good); } .bad { border-color: var(--bad); }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(130px, 1fr)); gap: 10px; }
.card { background: var(--card); padding: 10px 12px; border-radius: 6px; }
.card b { display: block; font-size: 21px; } .card span { color: var(--soft); font-size: 13px; }
figure { margin: 8px 0 0; } svg { width: 100%; height: auto; display: block; }
.grid { stroke: var(--line); } .tick, .value { fill: var(--soft); font-size: 12px; }
.label { fill: var(--ink); font-size: 13px; } .value { font-variant-numeric: tabular-nums; }
.s0 { fill: var(--s0); } .s1 { fill: var(--s1); } .s2 { fill: var(--s2); } .s3 { fill: var(--s3); }
.key { margin-right: 14px; white-space: nowrap; } .key i { display: inline-block; width: 11px; height: 11px;
  margin-right: 5px; border-radius: 2px; }
.i0 { background: var(--s0); } .i1 { background: var(--s1); }
.i2 { background: var(--s2); } .i3 { background: var(--s3); }
.wide { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-size: 13px; }
td, th { text-align: left; padding: 5px 8px; border-bottom: 1px solid var(--line); vertical-align: top; }
td:nth-child(2) code { white-space: nowrap; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
code { font-size: 12px; overflow-wrap: anywhere; }
footer { margin-top: 40px; color: var(--soft); font-size: 13px; }
"""


def html_report(figures: Figures) -> str:
    """The page as text."""
    body = "".join(
        [
            _head(figures),
            _traffic(figures),
            _transactions(figures),
            _doubt(figures),
            _checks(figures),
            _topics(figures),
            _findings(figures),
            _not_judged(figures),
            _foot(figures),
        ]
    )
    title = f"Store report: {escape(figures.report.path)}"
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>'
    page = f"<head>{head}<style>{STYLE}</style></head><body><main>{body}</main></body>"
    return f'<!doctype html>\n<html lang="en">{page}</html>\n'


def _head(figures: Figures) -> str:
    report = figures.report
    found = len(report.findings)
    outcome = "No finding: every file of this store says what its CommitLog says."
    if found:
        kinds = ", ".join(f"{count} {kind}" for kind, count in report.findings.counts.most_common(4))
        outcome = (
            f"{found} finding{'s' if found != 1 else ''}: {kinds}{' …' if len(report.findings.counts) > 4 else ''}"
        )
    cards = [
        (f"{report.records:,}", "records"),
        (size_text(report.bytes), "in the log"),
        (f"{report.transactions['total']:,}", "transactions"),
        (f"{report.transactions['in_doubt']:,}", "in doubt"),
        (f"{report.transactions['parked']:,}", "parked"),
    ]
    shown = "".join(f'<div class="card"><b>{value}</b><span>{name}</span></div>' for value, name in cards)
    live = " A broker was writing meanwhile." if report.live else ""
    return (
        f"<h1>{escape(report.path)}</h1><p class='soft'>Generation {report.generation}, CommitLog offsets "
        f"{report.begin_offset:,} to {report.end_offset:,}.{live}</p>"
        f"<div class='verdict {'bad' if found else 'good'}'>{escape(outcome)}</div><div class='cards'>{shown}</div>"
    )


def _traffic(figures: Figures) -> str:
    start_ms, width_ms, rows = figures.traffic.series(_BUCKETS)
    if not len(rows):
        return ""
    rate = [[row[1] / (width_ms / 1000)] for row in rows.tolist()]
    drawn = columns(start_ms, width_ms, rate, ["bytes a second"], "B", "Throughput over time")
    return _section("Throughput", f"Bytes stored a second, each column {_span(width_ms)}. Times are UTC.", drawn)


def _transactions(figures: Figures) -> str:
    start_ms, width_ms, rows = figures.transactions.series(_BUCKETS)
    if not len(rows):
        return ""
    names = list(STATES.values())
    drawn = columns(start_ms, width_ms, rows.tolist(), names, "", "Transactions over time by state")
    keys = "".join(f'<span class="key"><i class="i{number}"></i>{name}</span>' for number, name in enumerate(names))
    text = f"By the time of their half message, each column {_span(width_ms)}.<br>{keys}"
    return _section("Transactions", text, drawn)


def _doubt(figures: Figures) -> str:
    if not figures.report.transactions["in_doubt"]:
        return _section("In doubt", "None: every transaction was committed, rolled back or parked.", "")
    values = [(name, figures.ages[name], f"{figures.ages[name]:,}") for name, _ in AGES_MS]
    text = "Transactions that nobody committed or rolled back, by the time since their half message was stored."
    return _section("In doubt, by age", text, bars(values, "Age of the transactions in doubt", "s2"))


def _checks(figures: Figures) -> str:
    asked = {number: count for number, count in figures.checks.items() if number}
    if not asked:
        return ""
    values = [
        (f"{number}{' or more' if number == CHECKS_MAX else ''} ×", count, f"{count:,}")
        for number, count in sorted(asked.items())
    ]
    text = "How often the broker asked a producer what became of a transaction; those that it never asked for left out."
    return _section("Check-backs", text, bars(values, "Check-backs", "s0"))


def _topics(figures: Figures) -> str:
    values: list[tuple[str, float, str]] = [
        (name, size, f"{size_text(size)} in {figures.topic_records[name]:,}")
        for name, size in figures.topics.most_common(_TOPICS)
    ]
    rest = len(figures.topics) - len(values)
    text = f"The {_TOPICS} largest; {rest} more are left out." if rest > 0 else "Bytes and records in the log."
    return _section("Size by topic", text, bars(values, "Size by topic", "s0")) if values else ""


def _findings(figures: Figures) -> str:
    findings = figures.report.findings
    if not len(findings):
        return ""
    counted = [
        f"<td class='number'>{count:,}</td><td><code>{kind}</code></td><td>{escape(KINDS[kind])}</td>"
        for kind, count in findings.counts.most_common()
    ]
    causes = [
        f"<td class='number'>{cause.commitlog_offset}</td><td><code>{cause.kind}</code></td>"
        f"<td>{escape(cause.text)}<br><span class='soft'>{escape(_explained(cause))}</span></td>"
        for cause in figures.report.causes
    ]
    listed = [
        f"<td class='number'>{finding.commitlog_offset}</td><td><code>{finding.kind}</code></td>"
        f"<td>{escape(finding.text)}<br><code class='soft'>{escape(finding.file)}</code></td>"
        for finding, _ in zip(findings.unexplained, range(_FINDINGS), strict=False)
    ]
    text = f"The first {_FINDINGS} of {len(findings)}, by CommitLog offset. All: checkback verify --json."
    if len(findings) <= _FINDINGS:
        text = "By CommitLog offset."
    roots = _section("Causes", "Each with what it explains.", "") + table(("offset", "kind", "what"), causes)
    return (
        (roots if causes else "")
        + _section("Findings", "By kind.", table(("count", "kind", "meaning"), counted))
        + f"<p class='soft'>{text}</p>"
        + table(("offset", "kind", "what"), listed)
    )


def _explained(cause: Cause) -> str:
    explained = ", ".join(f"{count:,} {kind}" for kind, count in cause.consequences.most_common())
    return f"explains {explained}" if explained else ""


def _not_judged(figures: Figures) -> str:
    entries = figures.report.not_judged
    rows = [
        f"<td><code>{escape(one.path)}</code></td><td>{escape(one.what)}</td><td>{escape(one.why)}</td>"
        for one in entries
    ]
    text = "What was not compared with the log. These are not findings."
    return _section("Not judged", text, "") + table(("where", "what", "why"), rows) if entries else ""


def _foot(figures: Figures) -> str:
    report = figures.report
    moment = dt.datetime.fromtimestamp(figures.now_ms / 1000, dt.UTC).strftime("%Y-%m-%d %H:%M UTC")
    text = f"Made by checkback on {moment} in {report.seconds:.1f} s. Digest of all transactions:"
    return f"<footer>{text} <code>{report.digest}</code></footer>"


def _section(title: str, text: str, drawn: str) -> str:
    figure = f"<figure>{drawn}</figure>" if drawn else ""
    return f"<h2>{title}</h2><p class='soft'>{text}</p>{figure}"


def table(names: Sequence[str], rows: Iterable[str]) -> str:
    """An HTML table; the rows are cells, already escaped."""
    head = "".join(f"<th>{name}</th>" for name in names)
    return f"<div class='wide'><table><tr>{head}</tr>{''.join(f'<tr>{row}</tr>' for row in rows)}</table></div>"


def _span(width_ms: int) -> str:
    for unit_ms, name in ((86_400_000, "day"), (3_600_000, "hour"), (60_000, "minute"), (1000, "second")):
        if width_ms >= unit_ms:
            count = width_ms // unit_ms
            return f"{count} {name}{'s' if count != 1 else ''}"
    return f"{width_ms} ms"
