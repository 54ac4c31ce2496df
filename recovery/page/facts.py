"""What the page shows, as JSON: the same for both hosts. Everything is read; no store is opened for writing.

Keys and properties of messages are shown, never their bodies.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from importlib.resources import files
from typing import Any

import broker
from broker.consuming.group.served_clients import served_clients
from broker.errors import BrokerError
from broker.format.topics import HALF_TOPIC, OP_TOPIC
from broker.store.disk.files import Disk
from broker.store.disk.paths import Paths
from broker.store.maintain.retention_registry import read_history
from recovery.following.standing import copy_standing
from recovery.hanging import within_time
from recovery.jobs.recovering import crashed
from recovery.jobs.setup import LATEST_RETENTION, last_report
from recovery.views.consumer_lag import GroupPosition, positions
from recovery.views.dead_letters import dead_letters, groups
from recovery.views.overview import overview, story

LISTED = 200
CLIENTS_LISTED = 20
FINDINGS_LISTED = 20
UNREADABLE = (BrokerError, OSError)
_OF_BROKERS = (HALF_TOPIC, OP_TOPIC)  # their consumer is the broker: what is unread there is in doubt, or ended
_OF_A_REPORT = {"ok", "counts", "findings", "records", "bytes", "seconds", "transactions", "engine", "digest", "now_ms"}
_PAGE = files("recovery.page") / "page.html"  # in a zip, too


def page(host: Mapping[str, Any], nonce: str = "") -> str:
    """The one file of HTML; its script asks for the rest. `host` says where it is shown: {"kind": "airflow"}."""
    text = _PAGE.read_text(encoding="utf-8")
    return text.replace("__NONCE__", nonce).replace("__HOST__", json.dumps(host).replace("<", "\\u003c"))


def line_of(name: str, path: str) -> dict[str, Any]:
    """One store in a line of the list; `error` is a sentence when it cannot be read."""
    line: dict[str, Any] = {"name": name, "path": path, "error": None}
    try:
        return {**line, **within_time(path, lambda: _line(path))}
    except UNREADABLE as error:
        return {**line, "error": str(error)}


def _line(path: str) -> dict[str, Any]:
    seen, report = overview(path, now_ms(), limit=LISTED, parked_limit=0), _verified(path)
    lag = sum(one["lag"] for one in _consumers(path))
    facts = {"counts": seen.counts, "oldest_s": seen.oldest_s, "crashed": bool(crashed(path)), "lag": lag}
    return {**facts, "foreign": _is_foreign(path), "copy": _copy(path), "report": report and _short(report)}


def store_of(name: str, path: str) -> dict[str, Any]:
    """One store: waiting transactions, consumers, dead letters, the last verification, retention.

    Raises BrokerError, OSError when it cannot be read.
    """
    return {"name": name, "path": path, **within_time(path, lambda: _store(path))}


def _store(path: str) -> dict[str, Any]:
    seen = overview(path, now_ms(), limit=LISTED, parked_limit=LISTED).as_json()
    report = _verified(path)
    with broker.open(path, read_only=True) as store:
        dead = groups(store)
    facts = {
        "consumers": _consumers(path)[:LISTED],
        "dead_letters": dead,
        "crashed": bool(crashed(path)),
        "foreign": _is_foreign(path),
        "copy": _copy(path),
    }
    facts["clients"] = _clients(path)
    return {**seen, **facts, "report": report and _short(report), "retention": _retained(path)}


def transaction_of(name: str, path: str, commitlog_offset: int) -> dict[str, Any] | None:
    """All that the store says about one transaction, in order; None where no half message begins there."""
    steps = within_time(path, lambda: story(path, commitlog_offset))
    return {"name": name, "commitlog_offset": commitlog_offset, "steps": steps} if steps else None


def report_of(path: str) -> dict[str, Any] | None:
    """The whole report of the last verification; None where there was none."""
    return within_time(path, lambda: last_report(path))


def dead_letters_of(name: str, path: str, group: str) -> dict[str, Any]:
    """The dead letters of a consumer group, the newest `LISTED` of them."""
    return {"name": name, "group": group, **within_time(path, lambda: _dead_letters(path, group))}


def _dead_letters(path: str, group: str) -> dict[str, Any]:
    with broker.open(path, read_only=True) as store:
        newest = [one.as_json() for one in dead_letters(store, group, newest=LISTED)][::-1]
        omitted = max(0, groups(store).get(group, 0) - LISTED)
    return {"letters": newest, "omitted": omitted, "foreign": _is_foreign(path)}


def now_ms() -> int:
    """The time of this look."""
    return time.time_ns() // 1_000_000


def _is_foreign(path: str) -> bool:
    """Whether another program wrote the store: its broker alone decides, sends again and removes."""
    return Disk().entry(Paths(path).store_json) is None


def _copy(path: str) -> dict[str, Any] | None:
    """Whose copy the store is; None when it is one of its own."""
    found = copy_standing(path)
    return None if found is None else found.as_json()


def _consumers(path: str) -> list[dict[str, Any]]:
    """Each group and topic: its queues, and how many messages it has yet to acknowledge; the longest lag first."""
    with broker.open(path, read_only=True) as store:
        found = list(_by_topic(one for one in positions(store) if one.topic not in _OF_BROKERS))
    return sorted(found, key=lambda one: -one["lag"])


def _clients(path: str) -> list[dict[str, Any]]:
    """Each group with consumers at a server of the store: how many, and the ids of the first ones."""
    found = sorted(served_clients(path).items())[:LISTED]
    return [{"group": group, "count": len(ids), "ids": ids[:CLIENTS_LISTED]} for group, ids in found]


def _by_topic(queues: Iterable[GroupPosition]) -> Iterable[dict[str, Any]]:
    together: dict[tuple[str, str], dict[str, Any]] = {}
    for one in queues:
        key = one.group, one.topic
        line = together.setdefault(key, {"group": one.group, "topic": one.topic, "queues": 0, "lag": 0})
        line["queues"] += 1
        line["lag"] += one.lag
    return together.values()


def _retained(path: str) -> dict[str, Any]:
    """What retention did last, who has yet to read what, what pins segments that are due; and what went unread ever.

    A job keeps a report. What an application or the command line removed is in the store's history alone: `removed_ms`.
    """
    last, history = last_report(path, LATEST_RETENTION) or {}, read_history(Disk(), Paths(path))
    shown = {name: last.get(name, [])[:LISTED] for name in ("pins", "unread")}
    removed = {name: last.get(name) for name in ("now_ms", "done_ms")}
    removed |= {"segments": len(last.get("segments", [])), "bytes": last.get("bytes", 0)}
    ever = {"removed_unread": history.get("unread", {}), "removed_bytes": history.get("bytes", 0)}
    return {**removed, **shown, **ever, "removed_ms": history.get("last_ms")}


def _verified(path: str) -> dict[str, Any] | None:
    """The report of the last verification; none of another kind, as of another version: it took all stores away."""
    found = last_report(path)
    return found if found is not None and found.keys() >= _OF_A_REPORT else None


def _short(report: dict[str, Any]) -> dict[str, Any]:
    return {**report, "findings": report["findings"][:FINDINGS_LISTED]}
