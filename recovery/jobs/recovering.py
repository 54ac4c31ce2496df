"""What Airflow's tasks of a recovery after a crash call: plan, and do what was planned.

    plan = plan_recovery("shop.store")          {"needed": true, "must_ask": false, "text": "...", "plan_id": "..."}
    recover("shop.store", now_ms=..., expected=plan["plan_id"])

An approval is for the plan that the person saw: `recover` plans again, and refuses when another plan came out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import broker
from broker.store.disk.files import Disk
from broker.store.disk.paths import Paths
from broker.store.disk.store_lock import is_held
from recovery.jobs.approvals import PlanChanged, code, plan_id, waiting_lines
from recovery.jobs.setup import LATEST_REJECTION, alone, keep_report, last_report

if TYPE_CHECKING:
    from broker.store.recover.load import RecoveryPlan

_TAKE_OVER = "take the store over: make what is derived from the log; its old broker must never run on it again"
_APPROVE = (
    "**Approve**: the steps above are done, check-back queries the transactions in doubt, and the store is verified."
)
_REJECT = (
    "**Reject**, or no answer in time: nothing is changed. The store stays as the crash left it, check-back does not "
    "serve it, and the run is red."
)
_FOREIGN = (
    "**Another program wrote this store, and this cannot be undone.** Processes of other users and of other containers "
    "cannot be seen from here: approve only when its broker is stopped for good."
)
_KEPT = (
    "What is cut from the log is kept in `checkback/torn`; everything else that changes is derived from the log. What "
    "cannot be undone: the ends that check-back writes afterwards."
)


def crashed(path: str, *, foreign: bool = False) -> dict[str, Any] | None:
    """The mark of a crash: a file `abort` while no process has the store open. None when there is none.

    A store that another program wrote counts only with `foreign`: its brokers take no lock that we could try, and the
    files that they map are seen for processes of this user in this container alone, so that a broker may well be
    running. Raises NotAStore.
    """
    from recovery.verify.open_by import writers

    disk, paths = Disk(), Paths(path)
    mark = disk.entry(paths.abort)
    if mark is None or is_held(paths.lock) or writers(path):
        return None
    if not foreign and disk.entry(paths.store_json) is None:
        return None
    again = disk.entry(paths.abort)  # a process that closed it meanwhile removed the mark first
    if again is None or again.inode != mark.inode:
        return None
    return {"abort": paths.abort, "since_ms": mark.changed_ns // 1_000_000}


def keep_rejection(path: str, *, now_ms: int, rejected_ms: int, by: str, run: str) -> None:
    """Keep that a person rejected the recovery of this crash, in answer to what a run asked: see `rejection`.

    `now_ms` is the run's own time, which names the report.
    """
    with alone(path, "recover"):
        if mark := crashed(path, foreign=True):
            facts = {"now_ms": now_ms, "rejected_ms": rejected_ms, "rejected_by": by, "run": run, **mark}
            keep_report(path, f"reject-{now_ms}.json", facts, latest=LATEST_REJECTION)


def rejection(path: str) -> dict[str, Any] | None:
    """The last rejection of the recovery of the crash that the store shows: `rejected_ms`, `rejected_by` and `run`.

    None when nobody rejected it, or another one, whose run a person may clear later.
    """
    found, mark = last_report(path, LATEST_REJECTION), crashed(path, foreign=True)
    if not (found and mark and {"rejected_ms", "rejected_by", "run"} <= set(found)):
        return None
    return found if found.get("since_ms") == mark["since_ms"] <= found["rejected_ms"] else None


def plan_recovery(path: str, *, name: str = "", take_over: bool = False) -> dict[str, Any]:
    """What a store, which people know by `name`, needs after a crash, from `recovery.repair.crash`; nothing is changed.

    `needed` says whether there is anything to do; `must_ask` that another program wrote the store, so that a person has
    to say that its broker is stopped: it is offered with `take_over` alone. `subject` and `text` are for the person who
    decides, and `plan_id` stands for the case and its steps. Raises CorruptStore when no crash explains what is there,
    StoreError when a take-over that is to be offered would be refused.
    """
    from broker.store.recover.load import refusal
    from broker.store.recover.survey import Owner
    from recovery.repair import crash

    made = crash.plan(crash.survey(path))
    must_ask = made.survey.facts.owner in (Owner.FOREIGN_SINCE, Owner.FOREIGN)
    error = refusal(made)
    if error is not None and not must_ask:
        raise error
    lasting = crashed(path, foreign=True) is not None or (made.is_needed and not must_ask)
    needed = lasting and not made.survey.facts.in_use
    found = {"must_ask": must_ask, "case": made.case.label, "plan_id": _id(made), "subject": _subject(name, must_ask)}
    if must_ask and not take_over:
        text = (
            "Another program wrote this store, so it is only verified. `take_over = true` in its settings offers more."
        )
        return {**found, "needed": False, "text": text}
    against = crash.objection(made.survey) if needed and must_ask else None
    if against is not None:
        raise against  # before anybody is asked
    text = _approval_text(path, made, must_ask=must_ask) if needed else "Nothing is to be done."
    return {**found, "needed": needed, "text": text}


def recover(
    path: str, *, now_ms: int, broker_is_stopped: bool = False, expected: str | None = None, by: str | None = None
) -> dict[str, Any]:
    """Bring a store in order after a crash, and close it. A second time there is nothing to do.

    `broker_is_stopped` is a person's word about a store that another program wrote. `expected` is the `plan_id` that
    was approved, and `by` who approved it, for the report. Raises PlanChanged when another plan came out meanwhile,
    CorruptStore, StoreLocked.
    """
    from recovery.repair import crash

    with alone(path, "recover"):
        made = crash.plan(crash.survey(path))
        if expected and not _is_as_shown(made, expected):
            raise PlanChanged(path)
        report = crash.apply(made, broker_is_stopped=broker_is_stopped).as_json()
        finish_killed(path)
        kept_facts = {"now_ms": now_ms, "approved_by": by, **report}
        kept = keep_report(path, f"recover-{now_ms}.json", kept_facts, latest="recover-latest.json")
    return {"case": report["case"], "applied": report["applied"], "kept": report["kept"], "report": kept}


def finish_killed(path: str) -> bool:
    """Finish what processes left that were killed, where none has the store open since; whether there was anything.

    The next process that opens the store would do it. Until then each page and alert calls it crashed.
    """
    if crashed(path) is None:
        return False
    with broker.open(path) as store:
        store.sync_now()
    return True


def _id(plan: RecoveryPlan) -> str:
    """What stands for a plan: its case and its steps, and where the log ended, which not each case has in its steps."""
    return f"{plan_id([plan.case.label, *plan.lines])}-{_log_end(plan)}"


def _log_end(plan: RecoveryPlan) -> int:
    """Of a log that another program wrote, and whose end was not read, it is when its files were last written to."""
    paths, disk = Paths(plan.survey.path), Disk()
    if plan.survey.layout is None and disk.entry(paths.commitlog) is not None:
        return max((one.changed_ns for one in disk.entries(paths.commitlog)), default=0)
    return plan.survey.tail.end


def _is_as_shown(plan: RecoveryPlan, expected: str) -> bool:
    """Whether a plan is the one that was shown, or what a recovery leaves to do that was killed."""
    if plan.is_needed:
        return _id(plan) == expected
    is_over = crashed(plan.survey.path, foreign=True) is None
    return is_over or expected.rpartition("-")[2] == str(_log_end(plan))


def _approval_text(path: str, plan: RecoveryPlan, *, must_ask: bool) -> str:
    from recovery.humanize import moment

    mark = crashed(path, foreign=True)
    since = f", open since {moment(mark['since_ms'])} UTC and not closed" if mark else ""
    steps = plan.lines or [_TAKE_OVER if must_ask else "open the store, finish what was begun, and close it"]
    lines = [
        *([_FOREIGN, ""] if must_ask else []),
        f"**Store**: {code(path)}{since}",
        "",
        f"**What was found**: {plan.case.sentence}.",
        "",
        "**What will be done**:",
        "",
        *(f"{number}. {step}" for number, step in enumerate(steps, 1)),
        "",
        _KEPT,
        "",
        *waiting_lines(path),
        "",
        _APPROVE,
        "",
        _REJECT,
    ]
    return "\n".join(lines)


def _subject(name: str, must_ask: bool) -> str:
    """The question in a line."""
    if must_ask:
        return f"Take {name} over, which another program wrote? It cannot be undone"
    return f"Recover {name} after a crash?"
