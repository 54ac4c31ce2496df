"""What Airflow's tasks of a rebuild call: compare, and exchange what was compared.

    found = compare_table("shop.store", now_ms=...)         {"needed": true, "text": "...", "plan_id": "..."}
    rebuild_table("shop.store", now_ms=..., expected=found["plan_id"], by="ada")

An approval is for the differences that the person saw: `rebuild_table` compares again, the local engine once more
under the append lock, and refuses when others came out. How many items of the index differ is not part of them: a
missing item moves all that are appended after it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from shlex import quote
from typing import TYPE_CHECKING, Any

from broker.errors import BrokerError, CorruptStore, StoreError
from broker.store.disk.paths import Paths
from broker.transaction.events import TransactionState
from recovery.humanize import count, moment
from recovery.jobs.approvals import SHOWN, PlanChanged, code, keys_of, plan_id, waiting_lines
from recovery.jobs.setup import alone, keep_report, last_report, spark_for, verified

if TYPE_CHECKING:
    from recovery.rebuild.diff import Difference
    from recovery.rebuild.report import RebuildReport

_DERIVED = ("slot-", "table-", "redo-", "queue-", "index-", "files-missing")  # findings that a rebuild repairs
_HOLES = ("segment-missing", "segment-overlap", "segment-size", "corrupt-region")  # of the CommitLog
_LINES = 50
_PARTS = {"statetable": "state table", "redolog": "redo log", "consumequeue": "queue", "index": "index"}
_STATES = {
    None: "nothing",
    int(TransactionState.PREPARED): "in doubt",
    int(TransactionState.COMMITTED): "committed",
    int(TransactionState.ROLLED_BACK): "rolled back",
}
_DONE = (
    "**What will be done**: the directories that differ are made again from the CommitLog and exchanged, while "
    "applications go on. The CommitLog is not changed. What is replaced is kept in `checkback/replaced`; "
    "`checkback rebuild STORE --undo` takes it back before anything else is written."
)
_FOR_GOOD = (
    "**What cannot be undone**: what follows from it. A message whose queue entry was missing is delivered; a "
    "transaction that becomes in doubt is queried by check-back, and ends."
)
_APPROVE = (
    "**Approve**: exactly these differences are exchanged. If others are found by then, nothing is done, and you are "
    "asked again."
)
_FOREIGN = (
    "Another program wrote this store, so it is only compared. To exchange what differs, stop its broker, and run "
    "`checkback rebuild {path} --apply --broker-is-stopped`. It differs in:"
)
_REJECT = (
    "**Reject**, or no answer in time: nothing is changed. Applications go on with the files as they are, and the "
    "verification stays red."
)


def compare_table(
    path: str,
    *,
    now_ms: int,
    engine: str = "local",
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Where the derived files differ from what the log says; nothing in the store is touched.

    The local engine makes them again beside the real ones; Spark compares where it reads. `needed` says whether there
    is anything to exchange, `text` is for the person who decides, and `plan_id` stands for the differences. Of a store
    that another program wrote nothing can be exchanged here, so that nothing is `needed`; `text` says what differs.
    Raises StoreError when something differs that a rebuild would refuse to exchange: a person would approve in vain.
    """
    with spark_for(engine, master, conf) as spark:
        report, lines, identity = _compared(path) if spark is None else _compared_on_spark(path, spark)
    is_ours = os.path.exists(Paths(path).store_json)
    needed, why = is_ours and bool(report["counts"]), report.get("refusal", "")
    text = "\n".join([_FOREIGN.format(path=quote(path)), *lines[:_LINES]]) if lines else why or "Nothing differs."
    if needed and why:
        differs = ", ".join(f"{total} {kind}" for kind, total in report["counts"].items())
        raise StoreError(
            f"{path}: {differs}, and none of it can be exchanged yet, so nobody was asked: {why}", path=path
        )
    if needed:
        text = _approval_text(path, lines)
    found = {"ok": report["ok"], "counts": report["counts"], "needed": needed, "text": text, "plan_id": identity}
    return {**found, **{name: report[name] for name in ("generation", "records", "seconds")}, "now_ms": now_ms}


def rebuild_table(
    path: str,
    *,
    now_ms: int,
    engine: str = "local",
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    expected: str | None = None,
    by: str | None = None,
) -> dict[str, Any]:
    """Make the derived files again and exchange them, while applications go on. A second time nothing is exchanged.

    `expected` is the `plan_id` that was approved, and `by` who approved it, for the report. Spark's executors write
    what is new into the store's directory. Raises PlanChanged when other differences came out meanwhile, StoreError
    for a store that another program may write to, and when two halves claim one slot in doubt.
    """
    with alone(path, "rebuild"):
        with spark_for(engine, master, conf) as spark:
            report = _rebuilt(path, expected) if spark is None else _rebuilt_on_spark(path, spark, expected)
        facts = {"now_ms": now_ms, "approved_by": by, "plan_id": expected, **report}
        kept = keep_report(path, f"rebuild-{now_ms}.json", facts, latest="rebuild-latest.json")
    found = {name: report[name] for name in ("applied", "counts", "records", "seconds")}
    return {**found, "approved_by": by, "report": kept}


# The local engine


def _compared(path: str) -> tuple[dict[str, Any], list[str], str]:
    """The report of a comparison, its differences line by line, and what stands for them."""
    from recovery.rebuild.rebuilder import rebuild

    with alone(path, "rebuild"):
        report = rebuild(path)
    return report.as_json(), _lines(path, report.differences), _id(report)


def _rebuilt(path: str, expected: str | None) -> dict[str, Any]:
    from recovery.rebuild.rebuilder import rebuild

    def accept(report: RebuildReport) -> None:
        if expected and report.differences and _id(report) != expected:
            raise PlanChanged(path)

    compared = rebuild(path)
    if compared.ok:
        return compared.as_json()
    accept(compared)
    return rebuild(path, apply=True, accept=accept).as_json()


def _id(report: RebuildReport) -> str:
    return plan_id(["local", *(_identity(one) for one in report.differences)])


def _identity(one: Difference) -> str:
    total = "" if one.part == "index" else one.count
    return f"{one.part} {one.kind} {os.path.basename(one.directory)} {one.first} {total} {one.slots}"


def _lines(path: str, differences: Sequence[Difference]) -> list[str]:
    """A line for each difference, and below it the transactions of the slots that differ."""
    lines = []
    for one in differences:
        where = os.path.relpath(one.directory, path)
        lines.append(f"- {_PARTS[one.part]} {code(where)}: {one.text}")
        for change in one.slots[:SHOWN]:
            states = f"there it is {_STATES.get(change.live)}, the CommitLog says {_STATES.get(change.made)}"
            lines.append(f"    - slot {change.slot}: {states}. {_transaction(path, change.commitlog_offset)}")
        if one.part == "statetable" and one.count > SHOWN:
            lines.append(f"    - and {one.count - SHOWN} more")
    return lines


def _transaction(path: str, commitlog_offset: int) -> str:
    """The half message at an offset in a line: topic, keys, group, since when."""
    from recovery.views.overview import story

    with contextlib.suppress(BrokerError, OSError):
        for step in story(path, commitlog_offset)[:1]:
            keys = keys_of(step.get("keys") or [])
            facts = f"{code(step.get('topic'))}, {keys}, group {code(step.get('producer_group'))}"
            return f"Transaction {commitlog_offset}: {facts}, prepared {moment(step['stored_ms'])} UTC"
    return f"Transaction {commitlog_offset}"


# Spark


def _compared_on_spark(path: str, spark: Any) -> tuple[dict[str, Any], list[str], str]:
    """The same, from the findings of a verification that a rebuild repairs."""
    from broker.store.disk.files import Disk
    from broker.store.read.inventory import refusal
    from recovery.rebuild.misfits import misfits_of_store
    from recovery.scan.store_files import StoreFiles

    report = verified(path, spark)
    _refuse_damages(path, report)
    counts, lines, identity = _findings(path, report)
    misfits = misfits_of_store(StoreFiles.open(path), Disk())
    why = str(refusal(path, misfits)) if misfits else ""
    return {**report, "counts": counts, "ok": not counts, "refusal": why}, lines, identity


def _refuse_damages(path: str, report: Mapping[str, Any]) -> None:
    """As the rebuild itself does: a person would approve in vain. Raises CorruptStore."""
    for one in report["findings"]:
        where = one["file"]
        if one["kind"] in _HOLES and "commitlog" in (os.path.basename(where), os.path.basename(os.path.dirname(where))):
            text = (
                f"{where} at CommitLog offset {one['commitlog_offset']}: {one['text']}. What is derived from a damaged"
            )
            raise CorruptStore(f"{text} log is not better. Run: checkback salvage {quote(path)} OUT", path=where)


def _rebuilt_on_spark(path: str, spark: Any, expected: str | None) -> dict[str, Any]:
    """The comparison reads only, so that executors need no directory in common for a store in order."""
    from recovery.spark.rebuilding import rebuild

    report = verified(path, spark)
    counts, _, identity = _findings(path, report)
    if not counts:
        return {**report, "applied": False, "counts": {}}
    if expected and identity != expected:
        raise PlanChanged(path)
    return rebuild(spark, path, apply=True).as_json()


def _findings(path: str, report: Mapping[str, Any]) -> tuple[dict[str, int], list[str], str]:
    """The findings that a rebuild repairs: how many of each kind, line by line, and what stands for them."""
    counts = {kind: total for kind, total in report["counts"].items() if kind.startswith(_DERIVED)}
    wrong = [one for one in report["findings"] if one["kind"].startswith(_DERIVED)]
    lines: list[str] = []
    for one in wrong:
        about = one["kind"].startswith("slot-") and len(lines) < SHOWN
        transaction = f". {_transaction(path, one['commitlog_offset'])}" if about else ""
        lines.append(f"- {one['kind']}: {one['text']}{transaction}")
    facts = [f"{kind} {total}" for kind, total in counts.items() if not kind.startswith("index-")]
    texts = [f"{one['kind']} {one['commitlog_offset']}" for one in wrong]
    return counts, lines, plan_id(["spark", *facts, *texts])


# The text


def _approval_text(path: str, lines: Sequence[str]) -> str:
    last = last_report(path)
    clean = (
        f", the last verification was at {moment(last.get('done_ms') or last['now_ms'])} UTC"
        if last
        else ", it was never verified"
    )
    state = " without findings" if last and last.get("ok") else " with findings" if last else ""
    more = [f"- and {count(len(lines) - _LINES, 'line')} more"] if len(lines) > _LINES else []
    parts = [
        f"**Store**: {code(path)}{clean}{state}",
        "",
        "**What differs** from what the CommitLog says:",
        "",
        *lines[:_LINES],
        *more,
        "",
        _DONE,
        "",
        _FOR_GOOD,
        "",
        *waiting_lines(path),
        "",
        _APPROVE,
        "",
        _REJECT,
    ]
    return "\n".join(parts)
