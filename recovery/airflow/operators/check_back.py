"""Check-back, and the transactions that it parked for a person."""

from __future__ import annotations

import time
from collections.abc import Sequence
from shlex import quote
from typing import Any

from airflow.sdk import Context

from recovery.airflow.operators.store import StoreOperator, now_ms
from recovery.airflow.versions import AirflowFailException, is_paused

_RECOVERY_BEGINS_S, _LOOKS_S = 60.0, 3.0


class CheckBackOperator(StoreOperator):
    """One round of check-back: everything that is due is checked, in batches. Finding nothing writes nothing.

    With `fail_unanswered` it fails after a round in which somebody could not be asked, as `checkback check-back` does;
    without it that is a warning in the log. Where nothing watches for a crash of the store (`is_watched` is false) it
    fails while the store is as a crash left it: a recovery has to be started by a person. A second attempt fails there
    anywhere: the first was killed, perhaps, and left the store so. Recovery and check-back would take turns without an
    end, and each run would be green. `recovered_by` is the DAG that is to recover it: without a run of that, it fails.
    """

    is_inconclusive = False  # whether transactions wait, and the last round asked nobody: `WorksAgain`

    def __init__(
        self,
        *,
        fail_unanswered: bool = False,
        is_watched: bool = True,
        recovered_by: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.fail_unanswered, self.is_watched, self.recovered_by = fail_unanswered, is_watched, recovered_by

    def execute(self, context: Context) -> dict[str, Any]:
        """What the round did, in numbers. What became due while it waited for a worker is due, too."""
        from recovery.jobs import tasks

        when = max(now_ms(context), time.time_ns() // 1_000_000)
        found = tasks.check_back(**self.settings(), now_ms=when)
        if self.store:
            from recovery.airflow.operating.metrics import count_round

            count_round(self.store, found)
        if tasks.crashed(path := self.store_path()) and (why := self._not_in_hand(context, path)):
            raise AirflowFailException(f"{path} is as a crash left it, and {why}")
        self.is_inconclusive = bool(found["in_doubt"]) and not found.get("asked")
        if missed := tasks.unanswered(self.store_path(), found):
            if self.fail_unanswered:
                raise missed
            self.log.warning("%s", missed)
        return found

    def _not_in_hand(self, context: Context, path: str) -> str:
        """Why a person has to look at a store that crashed, and how; empty where it is being recovered."""
        attempt = getattr(context.get("ti"), "try_number", 1)
        if not self.is_watched:
            text = "nothing watches for that where a connection has the path of the store. Check-back does not serve it"
            step = f"Trigger {self.store}.recover_after_crash, or give the settings of {self.store} the path, too"
        elif attempt > 1:
            text = f"this is attempt {attempt} of the task: the one before was killed, perhaps, for its memory or by a"
            text += " resolver. Check-back does not serve it"
            step = f"If it happens after each recovery, `checkback check-back {quote(path)}` shows what ends it"
        elif self.recovered_by and (why := self._unrecovered(context, path)):
            text = f"{why}. Check-back does not serve it"
            step = "See whether that DAG is paused or missing, whether the triggerer runs, and how its last run ended"
        else:
            return ""
        return f"{text}. {step}"

    def _unrecovered(self, context: Context, path: str) -> str:
        """Why no recovery is under way; empty where one is, was rejected, or is done: it begins seconds after a crash.

        In a DAG that is paused no run begins, and none goes on behind the tasks that are running.
        """
        from recovery.jobs.recovering import crashed, rejection

        deadline = time.monotonic() + _RECOVERY_BEGINS_S
        while crashed(path) and not rejection(path):
            has_runs = context["ti"].get_dr_count(self.recovered_by, states=["queued", "running"]) > 0
            if has_runs and not is_paused(context["ti"], str(self.recovered_by)):
                return ""
            if time.monotonic() > deadline:
                return f"{self.recovered_by} is paused" if has_runs else f"no run of {self.recovered_by} is under way"
            time.sleep(_LOOKS_S)
        return ""


class ParkedOperator(StoreOperator):
    """The parked transactions, or the one that the run's form names; one page's worth."""

    template_fields: Sequence[str] = (*StoreOperator.template_fields, "only")

    def __init__(self, *, only: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.only = only

    def execute(self, context: Context) -> list[dict[str, Any]]:
        """One entry for each, with what a person needs to decide. Raises AirflowFailException for another `only`."""
        from recovery.jobs import tasks

        try:
            only = int(self.only) if self.only not in (None, "", "None") else None
        except ValueError:  # JSON's 1e30 is an integer to the form
            text = "it is the CommitLog offset of a half message, in digits; nothing was asked"
            raise AirflowFailException(f"commitlog_offset cannot be {self.only!r:.40}: {text}") from None
        now = time.time_ns() // 1_000_000  # for how long it has been in doubt when the question is put
        found = tasks.parked(self.store_path(), name=self.store, now_ms=now, only=only)
        if only is not None and not found:
            text = f"no transaction is parked whose half message is at CommitLog offset {only}: nothing was asked"
            raise AirflowFailException(
                f"{self.store_path()}: {text}. The page and `checkback park-list` have the offsets"
            )
        return found
