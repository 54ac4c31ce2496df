"""Operators called directly: what they take from a connection, what they publish, and what is templated."""

from __future__ import annotations

import inspect
import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pytest
from airflow.sdk import DAG, BaseOperator

import broker
from recovery.airflow import approval, operators
from recovery.airflow.approval import AskOperator
from recovery.airflow.assets import verified
from recovery.airflow.hook import database_url, spark_connection
from recovery.airflow.operators import (
    CheckBackOperator,
    NoFindingsOperator,
    ParkedOperator,
    RetentionOperator,
    VerifyOperator,
)
from recovery.airflow.operators.approved import question
from recovery.airflow.sensors import MessageSensor
from recovery.airflow.settings import BadSettings, StoreSettings
from recovery.airflow.versions import AirflowFailException, AirflowSkipException
from recovery.airflow.workflows import check_back
from recovery.airflow.workflows.store_dags import StoreDags
from recovery.jobs.recovering import keep_rejection
from recovery.jobs.setup import LATEST_RETENTION, last_report
from recovery.jobs.tasks import Unanswered, crashed
from tests.airflow.bags import DagSerialization
from tests.airflow.dag_runs import context
from tests.jobs.shops import ANSWERS, SMALL, bind, bodies, killed_shop, park, shop, spoil_slot

pytestmark = pytest.mark.usefixtures("quiet")

OURS = [
    kind
    for module in (operators, approval)
    for _, kind in inspect.getmembers(module, inspect.isclass)
    if issubclass(kind, BaseOperator) and kind.__module__.startswith(module.__name__)
]


@pytest.mark.parametrize("kind", OURS, ids=lambda kind: kind.__name__)
def test_what_is_templated_is_an_argument(kind: type[BaseOperator]) -> None:
    """Airflow renders only what is kept under the argument's own name."""
    taken = {name for one in kind.__mro__ if "__init__" in vars(one) for name in inspect.signature(one).parameters}
    assert set(kind.template_fields) <= taken


def test_a_connection_says_which_store_and_who_is_asked(connection: Callable[..., str], tmp_path: Path) -> None:
    """What is given to the operator goes before it."""
    path = shop(tmp_path / "shop", orders=2)
    connection("shop", path=path, resolver="nobody:nothing")
    found = CheckBackOperator(task_id="ask", connection="shop", resolver=ANSWERS).execute(context())
    assert (found["committed"], found["rolled_back"]) == (1, 1)
    assert bodies(path) == [b"order 0"]
    json.dumps(found)


def test_who_is_named_here_is_asked_instead_of_the_connections_ledger(
    connection: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ledger went before a resolver wherever it came from: the resolver that a DAG named was never asked."""
    name = connection("shop", path=shop(tmp_path / "shop", orders=1), password="sqlite:////nowhere/shop.db")  # noqa: S106
    ask = CheckBackOperator(task_id="ask", connection=name, resolver=ANSWERS)
    assert ask.execute(context())["committed"] == 1
    monkeypatch.setenv("AIRFLOW_CONN_ANSWERS", "http://answers.example/shop")
    by_name = CheckBackOperator(task_id="ask", connection=name, resolver_connection="answers").settings()
    assert (by_name["ledger"], by_name["resolver"]) == (None, "http://answers.example/shop")
    with pytest.raises(BadSettings, match="CheckBackOperator 'ask': ledger and resolver exclude each other"):
        CheckBackOperator(task_id="ask", connection=name, ledger="sqlite:///shop.db", resolver=ANSWERS)


def test_a_round_in_which_nobody_answers_is_red(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was green, and its log was empty, while the application's database was down all night."""
    path, other = (str(shop(tmp_path / name, orders=2)) for name in ("shop", "other"))
    resolver = "http://127.0.0.1:1/"
    operator = CheckBackOperator(task_id="ask", path=path, resolver=resolver, fail_unanswered=True)
    with pytest.raises(Unanswered, match=r"shop: 2 not asked: .*127.0.0.1:1.*nothing is lost"):
        operator.execute(context())
    assert not operator.is_inconclusive
    told: list[str] = []
    operator = CheckBackOperator(task_id="ask", path=other, resolver=resolver)
    monkeypatch.setattr(operator.log, "warning", lambda text, *values: told.append(text % values))
    assert operator.execute(context())["down"] == 2
    assert "2 not asked" in told[-1]


def test_a_round_that_asked_nobody_proves_nothing(tmp_path: Path) -> None:
    """A trouble is not over because the next transaction is not due yet, or because another process is asking."""
    path = str(shop(tmp_path / "shop", orders=1))
    operator = CheckBackOperator(task_id="ask", path=path, resolver=ANSWERS, policy={"*": {"first_check_after": "1h"}})
    operator.execute({**context(), "dag_run": type("Run", (), {"run_after": datetime.now(UTC)})()})
    assert operator.is_inconclusive
    operator.policy = {}
    operator.execute(context())
    assert not operator.is_inconclusive


def test_a_crash_that_nothing_watches_for_is_red(connection: Callable[..., str], tmp_path: Path) -> None:
    """Check-back was green, "it crashed, and is recovered first", and nobody recovered it."""
    path = killed_shop(tmp_path / "shop")
    connection("billing", path=path, resolver=ANSWERS)
    settings = StoreSettings(name="billing", connection="billing")
    task = check_back.make(settings).get_task("check_back")
    with pytest.raises(AirflowFailException, match=r"as a crash left it.*Trigger billing.recover_after_crash"):
        task.execute(context())
    with broker.open(str(path)):
        assert check_back.make(settings).get_task("check_back").execute(context())["did"] == "a round"
    watched = check_back.make(StoreSettings(name="shop", path=str(path))).get_task("check_back")
    assert watched.is_watched


def test_a_check_back_that_is_killed_is_no_circle_of_green_runs(tmp_path: Path) -> None:
    """It left a crash, its second attempt was green, the recovery's went the same way, and nobody heard of it."""
    path = killed_shop(tmp_path / "shop")
    first, second = (
        {**context(), "ti": SimpleNamespace(try_number=number, get_dr_count=lambda *_, **__: 1)} for number in (1, 2)
    )
    made = StoreDags("shop", path=str(path), resolver=ANSWERS, only=["check_back", "recover_after_crash"])
    for dag in made.values():
        task = dag.get_task("check_back")
        assert task.execute(first)["did"] == "it crashed, and is recovered first"
        with pytest.raises(AirflowFailException, match="this is attempt 2 of the task: the one before was killed, per"):
            task.execute(second)
        (alert,) = task.on_failure_callback
        assert (alert.again_s, len(task.inlets)) == (21_600.0, 1), "one alert, and not one after each recovery"


def test_a_crash_that_nobody_recovers_is_red(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its recovery was paused, or no triggerer ran: check-back was green each hour, and transactions waited."""
    monkeypatch.setattr("recovery.airflow.operators.check_back._RECOVERY_BEGINS_S", 0.0)
    monkeypatch.setattr("recovery.airflow.operators.check_back._LOOKS_S", 0.0)
    path, asked = killed_shop(tmp_path / "shop"), list[str]()
    task = StoreDags("shop", path=str(path), resolver=ANSWERS, only=["check_back"])["check_back"].get_task("check_back")

    def run(recovering: int, is_paused: bool = False) -> Any:
        def count(dag_id: str, states: list[str]) -> int:
            asked.append(f"{dag_id} {' '.join(states)}")
            return recovering

        dag = SimpleNamespace(is_paused=is_paused)
        ti = SimpleNamespace(try_number=1, get_dr_count=count, get_dag=lambda _: dag)
        return task.execute({**context(), "ti": ti})

    assert run(1)["did"] == "it crashed, and is recovered first"
    assert asked == ["shop.recover_after_crash queued running"]
    with pytest.raises(AirflowFailException, match=r"no run of shop\.recover_after_crash .* is paused or missing"):
        run(0)
    with pytest.raises(AirflowFailException, match=r"shop\.recover_after_crash is paused\. Check-back does not serve"):
        run(1, is_paused=True)  # its run waits until it is unpaused
    keep_rejection(str(path), now_ms=0, rejected_ms=int(time.time() * 1000) + 1000, by="ada", run="r1")
    assert run(0)["did"] == "it crashed, and is recovered first", "a person knows"


def test_a_retention_that_left_ledger_rows_is_red_when_all_else_is_done(tmp_path: Path) -> None:
    """With one sentence, and not four times: another attempt in ten seconds would not help."""
    path = shop(tmp_path / "shop", orders=0)
    bind(path, f"sqlite:///{tmp_path / 'shop.db'}")
    nobody = "postgresql+psycopg://shop@127.0.0.1:1/shop"
    with pytest.raises(AirflowFailException, match=r"does not answer.*All else was done; the next run tries again$"):
        RetentionOperator(task_id="retain", path=str(path), ledger=nobody).execute(context())
    assert last_report(str(path), LATEST_RETENTION) is not None


def test_a_clock_of_the_scheduler_that_is_ahead_makes_no_message_old(tmp_path: Path) -> None:
    """The run was due in 2100: what was stored today was removed, and so were the ledger's rows of today."""
    path = tmp_path / "shop"
    with broker.open(str(path), layout=SMALL) as store, store.consumer("billing", "orders") as consumer:
        for _ in range(2 * SMALL.segment_bytes // 100_000):
            store.append(broker.Message("orders", bytes(100_000)))
        while message := consumer.receive(timeout_s=0):
            consumer.ack(message)
    found = RetentionOperator(task_id="retain", path=str(path)).execute(context())
    assert found["segments"] == 0
    assert found["now_ms"] <= time.time() * 1000


def test_a_verification_needs_no_ledger(tmp_path: Path) -> None:
    """One whose connection is missing, or whose secret is not for this worker, stopped recoveries and verifications."""
    path = str(shop(tmp_path / "shop", orders=1))
    found = VerifyOperator(task_id="verify", path=path, ledger_connection="nobody_made_it", engine="local")
    assert found.execute(context())["ok"]


def test_a_verification_is_published_with_its_summary(tmp_path: Path) -> None:
    """On the asset's event; the findings themselves are in the report."""
    path = shop(tmp_path / "shop", orders=2)
    spoil_slot(path, 1)
    asset, seen = verified("shop"), context()
    found = VerifyOperator(task_id="verify", path=str(path), engine="local", outlets=[asset]).execute(seen)
    event = seen["outlet_events"][asset]
    assert (event.extra["ok"], event.extra["counts"]) == (False, {"slot-wrong-state": 1})
    assert Path(event.extra["report"]).exists()
    pulled = type("Instance", (), {"xcom_pull": lambda self, task_ids: found})()
    with pytest.raises(AirflowFailException, match="1 slot-wrong-state") as red:
        NoFindingsOperator(task_id="no_findings").execute(context(ti=pulled))
    assert str(red.value).endswith(f"says: checkback verify {path}"), "who is called at night needs the next command"
    found["report"] = None  # the disk was full
    with pytest.raises(AirflowFailException, match="1 slot-wrong-state") as red:
        NoFindingsOperator(task_id="no_findings").execute(context(ti=pulled))
    assert "None" not in str(red.value)


def test_an_approval_may_not_be_needed() -> None:
    """Nothing to do skips what follows; go on asks nobody."""
    with pytest.raises(AirflowSkipException):
        AskOperator(task_id="ask", subject="?", question="nothing to do").execute(context())
    assert AskOperator(task_id="ask", subject="?", question="go on").execute(context()) is None
    assert (question(False, True), question(True, True), question(True, False)) == ("nothing to do", "ask", "go on")


SECRET = "s3cret/of@shop"  # noqa: S105 - what must be seen nowhere


def test_a_task_that_was_marked_as_done_is_no_answer(tmp_path: Path) -> None:
    """Who marked the approval did without those who may approve, and the report named nobody; the others were
    tracebacks about None."""
    path = killed_shop(tmp_path / "shop", orders=1)
    for kind in (operators.RecoverOperator, operators.RebuildOperator):
        for asks, answer, why in (
            ("ask", None, "nobody approved this: the task that asks was marked as done"),
            ("ask", {"chosen_options": ["Reject"]}, "nobody approved this"),
            ("", {"chosen_options": ["Approve"]}, "there is no plan: the task that makes it was marked as done"),
        ):
            with pytest.raises(AirflowFailException, match=why):
                kind(task_id="do", path=str(path), question=asks, answer=answer).execute(context())
    assert crashed(str(path))
    with pytest.raises(AirflowFailException, match="there is no plan"):
        AskOperator(task_id="approve", subject="?", question="").execute(context())
    with pytest.raises(AirflowFailException, match="nobody decided"):
        approval.ResolveOperator(task_id="resolve", path=str(path), parked={}, answer=None).execute(context())
    nothing = SimpleNamespace(xcom_pull=lambda **_: None)
    with pytest.raises(AirflowFailException, match="verify has no result: it was marked as done"):
        NoFindingsOperator(task_id="no_findings").execute(context(ti=nothing))


def test_sparks_master_comes_from_our_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one the local engine does it; Airflow's own spark_default, for a master that nobody has, counts only
    where a person chose Spark."""
    theirs = {"conn_type": "spark", "host": "yarn", "password": SECRET}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(theirs))
    assert spark_connection("auto") == (None, {})
    assert spark_connection("spark") == ("yarn", {})
    extra = '{"spark.executor.memory": "2g", "queue": "root.default"}'
    ours = {"conn_type": "spark", "host": "spark://master", "port": 7077, "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_CHECKBACK_SPARK", json.dumps(ours))
    assert spark_connection("auto") == ("spark://master:7077", {"spark.executor.memory": "2g"})
    monkeypatch.setenv("AIRFLOW_CONN_CHECKBACK_SPARK", json.dumps({**ours, "password": SECRET}))
    secret = {"spark.authenticate": "true", "spark.authenticate.secret": SECRET}
    assert spark_connection("auto") == ("spark://master:7077", {"spark.executor.memory": "2g", **secret})
    local = {"conn_type": "spark", "host": "local[*]", "password": SECRET}
    monkeypatch.setenv("AIRFLOW_CONN_CHECKBACK_SPARK", json.dumps(local))
    assert spark_connection("auto") == ("local[*]", {})


def test_passwords_come_from_connections_and_are_rendered_nowhere(
    connection: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the DAG that Airflow serializes nor a template holds the URL; the log masks the password."""
    database = {"conn_type": "postgres", "host": "db", "login": "shop", "password": SECRET, "schema": "shop"}
    monkeypatch.setenv("AIRFLOW_CONN_SHOP_DB", json.dumps(database))
    web = {"conn_type": "http", "host": "billing", "port": 8080, "login": "x", "password": SECRET}
    monkeypatch.setenv("AIRFLOW_CONN_BILLING", json.dumps({**web, "extra": '{"endpoint": "/check"}'}))
    masked: list[str] = []
    monkeypatch.setattr("recovery.airflow.hook.mask", masked.append)
    with DAG("shop") as dag:
        given = CheckBackOperator(
            task_id="ask",
            path="/nowhere",
            ledger_connection="shop_db",
            resolvers={"billing": {"http_connection": "billing"}},
            catalog=f"postgresql://u:{quote(SECRET, safe='')}@db/catalog",
        )
    found = given.settings()
    assert found["ledger"] == f"postgresql+psycopg://shop:{quote(SECRET, safe='')}@db/shop"
    assert found["resolvers"] == {"billing": {"http": f"http://x:{quote(SECRET, safe='')}@billing:8080/check"}}
    assert SECRET in masked
    kept = json.dumps(DagSerialization.to_dict(dag))
    assert SECRET not in kept
    assert quote(SECRET, safe="") not in kept
    assert not {"ledger", "resolver", "resolvers", "catalog"} & set(CheckBackOperator.template_fields)


def test_a_parked_transaction_that_is_none_is_red(tmp_path: Path) -> None:
    """A digit too few in the form: the run was green, and nobody was asked."""
    path = shop(tmp_path / "shop", orders=1)
    (offset,) = park(path)
    assert len(ParkedOperator(task_id="parked", path=str(path), only=str(offset)).execute(context())) == 1
    with pytest.raises(
        AirflowFailException, match=f"no transaction is parked .* CommitLog offset {offset + 1}: nothing"
    ):
        ParkedOperator(task_id="parked", path=str(path), only=str(offset + 1)).execute(context())
    assert ParkedOperator(task_id="parked", path=str(shop(tmp_path / "other", 1))).execute(context()) == []
    with pytest.raises(AirflowFailException, match=r"commitlog_offset cannot be '1e\+30': .* in digits"):
        ParkedOperator(task_id="parked", path=str(path), only="1e+30").execute(context())


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ('{"conn_type": "sqlite", "host": "/srv/shop.db"}', "sqlite:////srv/shop.db"),
        ("sqlite:////srv/shop.db", "sqlite:////srv/shop.db"),
        (
            '{"conn_type": "postgres", "host": "::1", "port": 5432, "schema": "shop"}',
            "postgresql+psycopg://[::1]:5432/shop",
        ),
        ("postgresql://db/shop?sslmode=verify-full", "postgresql+psycopg://db/shop?sslmode=verify-full"),
    ],
)
def test_a_ledgers_connection_is_read_as_by_airflow(given: str, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file of SQLite is the host, and TLS that was asked for is not left out."""
    monkeypatch.setenv("AIRFLOW_CONN_SHOP_DB", given)
    assert database_url("shop_db") == url


def test_a_message_between_two_attempts_is_not_lost(tmp_path: Path) -> None:
    """Each reschedule and each retry is another object: what the first noted is in the task's state."""
    path, state = shop(tmp_path / "shop", orders=0), Noted()

    def attempt() -> MessageSensor:
        sensor = MessageSensor(
            task_id="wait", path=str(path), topic="news", deferrable=False, mode="reschedule", poke_interval=1
        )
        sensor.begin(context(task_state_store=state))
        return sensor

    assert attempt().look() is None
    with broker.open(path) as store:
        store.append(broker.Message("news", b"1"))
    assert attempt().look() == {"topic": "news", "queues": {"0": [0, 1]}}


class Noted:
    """A task's state, as Airflow gives it."""

    def __init__(self) -> None:
        self.values: dict[str, object] = {}

    def get(self, key: str) -> object:
        return self.values.get(key)

    def set(self, key: str, value: object) -> None:
        self.values[key] = value
