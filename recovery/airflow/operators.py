"""Operators: each does one kind of work on one store, by a function of `recovery.jobs.tasks`.

    VerifyOperator(task_id="verify", path="/srv/shop.store")
    CheckBackOperator(task_id="check_back", connection="shop")      # path, ledger, policy from the connection

The result is JSON, small enough for XCom. `now` is the time at which the run was due, so a retry asks the same.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from airflow.sdk import Asset, BaseOperator, Context

from recovery.airflow.hook import CheckbackHook, spark_connection, with_secrets
from recovery.airflow.operating.links import ReportLink, SparkUiLink, StorePageLink
from recovery.airflow.versions import AirflowFailException, AirflowSkipException

SECRETS = ("ledger", "resolver", "resolvers", "catalog")  # URLs: never rendered, so never in Airflow's database
SETTINGS = ("path", "policy", "ledger_connection", "resolver_connection", *SECRETS)
PUBLISHED = ("ok", "counts", "records", "bytes", "transactions", "digest", "report")  # of a verification


class StoreOperator(BaseOperator):
    """What the operators share: which store, and who answers for its transactions.

    What is given here goes before what the connection says. URLs that hold a password belong into connections:
    `ledger_connection` names one of a database, `resolver_connection` one of type http. `engine` is local, spark, or
    auto: Spark where the connection `checkback_spark` names a master and Spark starts, else the local engine. Opening a
    store to write recovers it after a crash: with `recovery_is_asked` a person approves that first.
    """

    template_fields: Sequence[str] = (
        "path", "connection", "policy", "ledger_connection", "resolver_connection", "engine",
    )  # fmt: skip
    template_fields_renderers = {"policy": "json"}
    operator_extra_links: tuple[Any, ...] = (StorePageLink(),)
    ui_color = "#e8f1fb"
    published: Mapping[str, Any] = {}

    def __init__(
        self,
        *,
        path: str = "",
        connection: str | None = None,
        store: str = "",
        ledger: str | None = None,
        ledger_connection: str | None = None,
        resolver: str | None = None,
        resolver_connection: str | None = None,
        catalog: str | None = None,
        resolvers: Mapping[str, Any] | None = None,
        policy: Mapping[str, Any] | None = None,
        engine: str = "auto",
        recovery_is_asked: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.recovery_is_asked = recovery_is_asked
        self.path, self.connection, self.store = path, connection, store
        self.ledger, self.resolver, self.resolvers = ledger, resolver, resolvers
        self.ledger_connection, self.resolver_connection = ledger_connection, resolver_connection
        self.catalog, self.policy, self.engine = catalog, policy, engine

    def settings(self) -> dict[str, Any]:
        """path, ledger, resolver(s), catalog and policy: from the connections, and over them what was given."""
        given = {name: getattr(self, name) or None for name in SETTINGS}
        found = dict(given)
        if self.connection or not self.path:
            found = CheckbackHook(self.connection or CheckbackHook.default_conn_name).settings
        return with_secrets({**found, **{name: value for name, value in given.items() if value is not None}})

    def store_path(self) -> str:
        """The store's directory. Only the connection that names it is read: a ledger's may be missing."""
        return self.path or CheckbackHook(self.connection or CheckbackHook.default_conn_name).path

    def leave_crashed(self, error: type[Exception] = AirflowFailException) -> None:
        """Raises `error` for a store that crashed, where a person approves its recovery before anything else."""
        from recovery.jobs.recovering import crashed

        if self.recovery_is_asked and crashed(path := self.store_path()):
            text = "is as a crash left it, and its recovery needs an approval: nothing was done"
            raise error(f"{path} {text}. Approve it in recover_after_crash, then start this DAG again")

    def engine_settings(self) -> dict[str, Any]:
        """The engine, and the Spark master and settings of the connection, if there is one."""
        master, conf = spark_connection(self.engine)
        return {"engine": self.engine, "master": master, "conf": conf}

    def publish(self, context: Context, found: Mapping[str, Any]) -> None:
        """Put what was found on the event of each asset that this task announces."""
        self.published = found
        for outlet in self.outlets:
            if isinstance(outlet, Asset):
                context["outlet_events"][outlet].extra.update(found)

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """What OpenLineage's provider asks for; see `recovery.airflow.operating.lineage`."""
        from recovery.airflow.operating.lineage import lineage

        return lineage(self.store_path(), self.outlets, self.published)


def now_ms(context: Context) -> int:
    """When the run was due, in milliseconds."""
    due = context["dag_run"].run_after
    return int(due.timestamp() * 1000)


class CheckBackOperator(StoreOperator):
    """One round of check-back: everything that is due is checked, in batches. Finding nothing writes nothing.

    With `fail_unanswered` it fails after a round in which somebody could not be asked, as `checkback check-back` does;
    without it that is a warning in the log.
    """

    is_inconclusive = False  # whether transactions wait, and the last round asked nobody: `WorksAgain`

    def __init__(self, *, fail_unanswered: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.fail_unanswered = fail_unanswered

    def execute(self, context: Context) -> dict[str, Any]:
        """What the round did, in numbers. What became due while it waited for a worker is due, too."""
        from recovery.jobs import tasks

        when = max(now_ms(context), time.time_ns() // 1_000_000)
        found = tasks.check_back(**self.settings(), now_ms=when)
        if self.store:
            from recovery.airflow.operating.metrics import count_round

            count_round(self.store, found)
        self.is_inconclusive = bool(found["in_doubt"]) and not found.get("asked")
        if missed := tasks.unanswered(self.store_path(), found):
            if self.fail_unanswered:
                raise missed
            self.log.warning("%s", missed)
        return found


class PlanRecoveryOperator(StoreOperator):
    """What a crash left, and what would be done about it. Changes nothing."""

    template_fields: Sequence[str] = (*StoreOperator.template_fields, "ask")

    def __init__(self, *, ask: bool | str = False, take_over: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.ask, self.take_over = ask, take_over

    def execute(self, context: Context) -> dict[str, Any]:
        """The plan; `question` says whether a person is asked: ask, go on, or nothing to do."""
        from recovery.jobs.recovering import plan_recovery

        path = self.store_path()
        plan = plan_recovery(path, name=self.store or path, take_over=self.take_over)
        return {**plan, "question": question(plan["needed"], is_true(self.ask) or plan["must_ask"])}


class RecoverOperator(StoreOperator):
    """Do what the plan says. A second time there is nothing left to do.

    `broker_is_stopped` is a person's word: true only behind an approval, for a store that another program wrote.
    `expected` is the `plan_id` of the plan that was approved: another plan is not carried out. `answer` is the result
    of the approval, which says who gave it.
    """

    template_fields: Sequence[str] = (*StoreOperator.template_fields, "broker_is_stopped", "expected", "answer")

    def __init__(
        self, *, broker_is_stopped: bool | str = False, expected: str | None = None, answer: Any = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.broker_is_stopped, self.expected, self.answer = broker_is_stopped, expected, answer

    def execute(self, context: Context) -> dict[str, Any]:
        """What was done."""
        from recovery.jobs.approvals import PlanChanged
        from recovery.jobs.recovering import recover

        try:
            found = recover(
                self.store_path(),
                now_ms=now_ms(context),
                broker_is_stopped=is_true(self.broker_is_stopped),
                expected=self.expected,
                by=who_answered(self.answer),
            )
        except PlanChanged as error:
            raise plan_changed(context, error) from None
        self.publish(context, found)
        return found


class InOrderOperator(StoreOperator):
    """Fails while the store is as a crash left it: a recovery that was rejected, or not answered, is red."""

    def execute(self, context: Context) -> None:
        """Raises AirflowFailException."""
        from recovery.jobs.recovering import crashed

        if crashed(self.store_path()):
            text = "is as the crash left it: the recovery was rejected, not answered in time, or failed"
            raise AirflowFailException(
                f"{self.store_path()} {text}. Check-back does not serve it; trigger this DAG again"
            )


class CompareTableOperator(StoreOperator):
    """Rebuild the state table beside the real one and say where they differ. The real one is not touched."""

    template_fields: Sequence[str] = (*StoreOperator.template_fields, "ask")

    def __init__(self, *, ask: bool | str = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.ask = ask

    def execute(self, context: Context) -> dict[str, Any]:
        """The differences; `question` as for PlanRecoveryOperator."""
        from recovery.jobs import tasks

        self.leave_crashed()
        found = tasks.compare_table(self.store_path(), now_ms=now_ms(context), **self.engine_settings())
        if not (found["ok"] or found["needed"]):
            self.log.warning("%s: %s", self.store_path(), found["text"])
        return {**found, "question": question(found["needed"], is_true(self.ask))}


class RebuildOperator(StoreOperator):
    """Rebuild the state table and swap it in, while applications go on.

    `expected` is the `plan_id` of the comparison that was approved: other differences are not exchanged. `answer` is
    the result of the approval, which says who gave it.
    """

    template_fields: Sequence[str] = (*StoreOperator.template_fields, "expected", "answer")

    def __init__(self, *, expected: str | None = None, answer: Any = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.expected, self.answer = expected, answer

    def execute(self, context: Context) -> dict[str, Any]:
        """What was swapped."""
        from recovery.jobs.approvals import PlanChanged
        from recovery.jobs.rebuilding import rebuild_table

        self.leave_crashed()
        asked = {"expected": self.expected, "by": who_answered(self.answer), **self.engine_settings()}
        try:
            found = rebuild_table(self.store_path(), now_ms=now_ms(context), **asked)
        except PlanChanged as error:
            raise plan_changed(context, error) from None
        self.publish(context, found)
        return found


class VerifyOperator(StoreOperator):
    """Compare the log with everything derived from it, keep the report, publish the summary."""

    operator_extra_links = (StorePageLink(), ReportLink(), SparkUiLink())
    spark_ui: str | None = None

    def execute(self, context: Context) -> dict[str, Any]:
        """The report without its long lists."""
        from recovery.jobs import tasks

        found = tasks.verify(self.store_path(), now_ms=now_ms(context), **self.engine_settings())
        self.spark_ui = found["spark_ui"]
        self.publish(context, {name: found[name] for name in PUBLISHED})
        if self.store:
            from recovery.airflow.operating.metrics import send_gauges

            send_gauges(self.store, {"findings": sum(found["counts"].values())})
        return found


class NoFindingsOperator(BaseOperator):
    """Fails when a verification found something, so that the run is red and the alert goes out.

    A task of its own: one that fails announces no asset, and what was found is wanted most just then.
    """

    template_fields: Sequence[str] = ("verify_task_id",)
    ui_color = "#fde8e8"

    def __init__(self, *, verify_task_id: str = "verify", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.verify_task_id = verify_task_id

    def execute(self, context: Context) -> None:
        """Raises AirflowFailException with the findings, the kinds first."""
        report = context["ti"].xcom_pull(task_ids=self.verify_task_id)
        if report["ok"]:
            return
        kinds = ", ".join(f"{count} {kind}" for kind, count in report["counts"].items())
        first = report["findings"][0]["text"] if report["findings"] else ""
        kept = f". The whole report: {report['report']}" if report["report"] else ""
        step = f"What each means, and what to do, says: checkback verify {report['path']}"
        raise AirflowFailException(f"{kinds}; the first: {first}{kept}. {step}")


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


_PINS_LOGGED = 20


class RetentionOperator(StoreOperator):
    """Remove segments, ledger rows and catalog entries that are old enough and that nobody needs any more."""

    template_fields: Sequence[str] = (
        *StoreOperator.template_fields, "keep", "max_bytes", "free_bytes", "gone_after", "even_unread",
    )  # fmt: skip

    def __init__(
        self,
        *,
        keep: str = "72h",
        max_bytes: str | int | None = None,
        free_bytes: str | int | None = None,
        gone_after: str | None = None,
        even_unread: bool | str = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.keep, self.max_bytes, self.free_bytes = keep, max_bytes, free_bytes
        self.gone_after, self.even_unread = gone_after, even_unread

    def execute(self, context: Context) -> dict[str, Any]:
        """What was removed, what was unread of it, and what pins what could not be."""
        from recovery.jobs import tasks

        self.leave_crashed(AirflowSkipException)
        limits: dict[str, Any] = {
            "max_bytes": self.max_bytes,
            "free_bytes": self.free_bytes,
            "gone_after": self.gone_after,
        }
        found = tasks.retain(
            **self.settings(), now_ms=now_ms(context), keep=self.keep, even_unread=is_true(self.even_unread), **limits
        )
        for pin in found["pins"][:_PINS_LOGGED]:
            self.log.warning("segments that are due stay: %s", pin["text"])
        return found


def who_answered(answer: Any) -> str | None:
    """Who gave the answer that an approval returned; None when nobody was asked."""
    if not isinstance(answer, Mapping):
        return None
    who = answer.get("responded_by_user") or {}
    return str(who.get("name") or who.get("id") or "") or None


PLAN_CHANGED = "plan_changed"


def plan_changed(context: Context, error: Exception) -> AirflowFailException:
    """The error of a task whose plan is not the one that was shown; `AskAgainOperator` finds the note that it makes."""
    context["ti"].xcom_push(key=PLAN_CHANGED, value=True)
    return AirflowFailException(f"{error}. The DAG is started again for the plan as it is now")


def question(needed: bool, ask: bool) -> str:
    """What stands before an apply: nothing to do, ask a person, or go on."""
    if not needed:
        return "nothing to do"
    return "ask" if ask else "go on"


def is_true(value: bool | str) -> bool:
    """A template gives text."""
    return str(value).strip().lower() in ("true", "1", "yes")
