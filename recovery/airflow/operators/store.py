"""What the operators of a store share: which store, who answers for its transactions, and when the run was due."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow.sdk import Asset, BaseOperator, Context

from recovery.airflow.arguments import check, plain
from recovery.airflow.hook import CheckbackHook, spark_connection, with_secrets
from recovery.airflow.operating.links import StorePageLink
from recovery.airflow.settings import BadSettings
from recovery.airflow.versions import AirflowFailException

SECRETS = ("ledger", "resolver", "resolvers", "catalog")  # URLs: never rendered, so never in Airflow's database
_CHECKED = ("path", "connection", "ledger_connection", "resolver_connection", "policy", "engine")
_ANSWERS = ("ledger", "ledger_connection", "resolver", "resolver_connection")  # one of them, for all groups
SETTINGS = ("path", "policy", "ledger_connection", "resolver_connection", *SECRETS)


class StoreOperator(BaseOperator):
    """What the operators share: which store, and who answers for its transactions.

    What is given here goes before what the connection says: a resolver before its ledger, too. URLs that hold a
    password belong into connections: `ledger_connection` names one of a database, `resolver_connection` one of type
    http. `engine` is local, spark, or auto: Spark where the connection `checkback_spark` names a master and Spark
    starts, else the local engine. Opening a store to write recovers it after a crash: with `recovery_is_asked` a person
    approves that first.
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
        self.path, self.connection, self.store = plain(path), connection, store
        self.ledger, self.resolver, self.resolvers = ledger, resolver, resolvers
        self.ledger_connection, self.resolver_connection = ledger_connection, resolver_connection
        self.catalog, self.policy, self.engine = catalog, policy, engine
        check(self, *_CHECKED)
        if len(both := [one for one in _ANSWERS if getattr(self, one)]) > 1:
            text = f"{' and '.join(both)} exclude each other: give one of them, or `resolvers` by group"
            raise BadSettings(f"{type(self).__name__} {self.task_id!r}: {text}")

    def pre_execute(self, context: Context) -> None:
        """What was rendered is checked before anything is done. Raises AirflowFailException."""
        try:
            check(self, is_rendered=True)
        except BadSettings as error:
            raise AirflowFailException(str(error)) from None

    def settings(self) -> dict[str, Any]:
        """path, ledger, resolver(s), catalog and policy: from the connections, and over them what was given."""
        given = {name: getattr(self, name) or None for name in SETTINGS}
        found = dict(given)
        if self.connection or not self.path:
            found = CheckbackHook(self.connection or CheckbackHook.default_conn_name).settings
            if any(given[one] for one in _ANSWERS):
                found = {**found, **dict.fromkeys(_ANSWERS)}
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
