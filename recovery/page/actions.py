"""What a person does on the page that runs alone: decide a transaction, send dead letters again. A reason is required.

A decision leaves its reason and its author in the end record; the resending of dead letters in a report of the store.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import broker
from recovery.humanize import who
from recovery.jobs import tasks
from recovery.jobs.setup import keep_report
from recovery.page.facts import now_ms
from recovery.page.sessions import PageRefusal
from recovery.views.dead_letters import resend

DECISIONS = ("commit", "rollback", "ask-again")
_TEXT_MAX = 1_000


def decide(path: str, asked: Mapping[str, Any], commitlog_offset: int, body: Mapping[str, Any]) -> dict[str, Any]:
    """What became of a decision: committed, rolled back, unparked, unchanged, refused, and why.

    Raises PageRefusal for a body that is not a decision, BrokerError when the store or its ledger refuses it.
    """
    decision, why = body.get("decision"), _why(body, "the record that ends it")
    if decision not in DECISIONS:
        raise PageRefusal(HTTPStatus.BAD_REQUEST, f"decision is one of {', '.join(DECISIONS)}")
    return tasks.resolve(
        path, commitlog_offset=commitlog_offset, decision=str(decision), now_ms=now_ms(), why=why, by=_by(body), **asked
    )


def resend_dead_letters(path: str, group: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Send dead letters of a group again: those with the ids of the body, or all. How many were sent.

    Raises PageRefusal for a body without a reason, BrokerError when an id is not a dead letter of the group.
    """
    why, ids = _why(body, "the reports of the store"), body.get("ids") or []
    if not (isinstance(ids, list) and all(isinstance(one, str) for one in ids)):
        raise PageRefusal(HTTPStatus.BAD_REQUEST, "ids is a list of message ids")
    with broker.open(path, create=False) as store:
        sent = resend(store, group, ids)
    when, facts = now_ms(), {"group": group, "ids": [one.message_id for one in sent], "why": why, "by": _by(body)}
    report = keep_report(path, f"resend-{when}.json", {"now_ms": when, **facts}, latest="resend-latest.json")
    return {"resent": len(sent), "report": report}


def _why(body: Mapping[str, Any], place: str) -> str:
    value = body.get("why")
    if not (isinstance(value, str) and value.strip()):
        raise PageRefusal(HTTPStatus.BAD_REQUEST, f"say why: it is kept in {place}")
    return value.strip()[:_TEXT_MAX]


def _by(body: Mapping[str, Any]) -> str:
    """Who decided: the name that was given, and the user of this process, of whose token it is."""
    name = body.get("by")
    given = name.strip()[:100] if isinstance(name, str) else ""
    return f"page:{given} ({who()})" if given else f"page:{who()}"
