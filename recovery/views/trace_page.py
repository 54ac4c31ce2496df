"""One transaction as an HTML page that needs nothing from elsewhere: good enough to attach to a ticket."""

from __future__ import annotations

from html import escape
from typing import Any

from recovery.humanize import moment
from recovery.views.html_report import STYLE, table
from recovery.views.lookup import details_of


def trace_page(found: dict[str, Any]) -> str:
    """The page of what `recovery.views.lookup.trace` found."""
    rows = [
        f"<td class='number'>{step.get('commitlog_offset', '')}</td><td>{escape(moment(step['stored_ms']))}</td>"
        f"<td>{escape(str(step['what']))}</td><td>{escape(details_of(step))}</td>"
        for step in found["steps"]
    ]
    steps = table(("offset", "time (UTC)", "what", "details"), rows) if rows else f"<p>{escape(found['text'])}</p>"
    name = f"Transaction {escape(found['id'])}"
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{name}</title>'
    body = f"<h1>{name}</h1><p class='soft'>{escape(found['path'])}</p>{steps}"
    page = f"<head>{head}<style>{STYLE}</style></head><body><main>{body}</main></body>"
    return f'<!doctype html>\n<html lang="en">{page}</html>\n'
