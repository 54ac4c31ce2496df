"""What Airflow is told about us: it accepts it, finds every class in it, and it costs next to nothing."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import airflow
import jsonschema
import pytest
from airflow.providers_manager import ProvidersManager
from airflow.sdk import Asset
from airflow.sdk.module_loading import import_string
from airflow.sdk.providers_manager_runtime import ProvidersManagerTaskRuntime
from sqlalchemy import create_engine

import broker
from recovery.airflow.hook import CheckbackHook, database_url
from recovery.airflow.provider import get_provider_info
from recovery.airflow.settings import BadSettings
from recovery.airflow.versions import AirflowNotFoundException
from tests.jobs.shops import shop

PLUGIN_S = 0.2

# What loading the plugin and the provider's description costs an `airflow` command, on top of Airflow itself.
PROBE = """
import sys, time
import airflow.plugins_manager, airflow.sdk
before, began = set(sys.modules), time.process_time()
import recovery.airflow.plugin, recovery.airflow.provider
recovery.airflow.provider.get_provider_info()
recovery.airflow.plugin.CheckbackPlugin()
spent = time.process_time() - began
new = set(sys.modules) - before
print(spent, *[name for name in ("fastapi", "numpy", "pyarrow", "pyspark", "recovery.jobs.tasks") if name in new])
"""


def test_the_description_fits_airflows_schema() -> None:
    """The one that Airflow itself checks it against."""
    schema = json.loads((Path(airflow.__file__).parent / "provider_info.schema.json").read_text())
    jsonschema.validate(get_provider_info(), schema)


def test_airflow_knows_the_provider() -> None:
    """By the entry point of the installed distribution: connection type, form, queue, notifier, asset scheme."""
    manager = ProvidersManager()
    assert "checkback" in manager.providers
    runtime = ProvidersManagerTaskRuntime()
    hook = runtime.hooks["checkback"]
    assert hook is not None
    assert hook.hook_class_name == "recovery.airflow.hook.CheckbackHook"
    fields = {name for name in manager.connection_form_widgets if name.startswith("extra__checkback__")}
    assert fields == {f"extra__checkback__{name}" for name in ("path", "catalog", "resolver", "resolvers", "policy")}
    assert "recovery.airflow.queues.CheckbackMessageQueueProvider" in manager.queue_class_names
    assert any("recovery.airflow.alerts.StoreAlert" in str(info) for info in manager.notification)
    assert "checkback" in runtime.asset_uri_handlers


def test_every_class_that_it_names_is_there() -> None:
    """A wrong name would only be a line in a log."""
    info = get_provider_info()
    for room in ("operators", "sensors", "hooks", "triggers", "bundles"):
        for one in info[room]:
            for module in one["python-modules"]:
                __import__(module)
    plugins = [one["plugin-class"] for one in info["plugins"]]
    named = (*info["notifications"], *info["queues"], *info["extra-links"], *plugins, info["asset-uris"][0]["handler"])
    for name in named:
        assert callable(import_string(name))


def test_an_asset_names_a_store_and_a_thing() -> None:
    """What does not is refused while the DAG file is parsed."""
    assert Asset("checkback://shop/verified").uri == "checkback://shop/verified"
    for wrong in ("checkback://shop", "checkback:///verified"):
        with pytest.raises(ValueError, match="names a store and a thing"):
            Asset(wrong)


def test_the_queue_provider_finds_its_trigger() -> None:
    """As MessageQueueTrigger asks it, by scheme and by the older URI."""
    queue = import_string("recovery.airflow.queues.CheckbackMessageQueueProvider")()
    assert queue.scheme_matches("checkback")
    assert not queue.scheme_matches("kafka")
    uri = "checkback:///srv/shop.store?topic=orders"
    assert queue.queue_matches(uri)
    made = queue.trigger_class()(**queue.trigger_kwargs(uri))
    assert (made.path, made.topic) == ("/srv/shop.store", "orders")
    assert queue.trigger_kwargs(uri, topic="paid") == {"path": "/srv/shop.store"}


def test_a_connection_is_a_store(connection: Callable[..., str], tmp_path: Path) -> None:
    """With its ledger, whose URL is a secret, and its policy as JSON."""
    path = shop(tmp_path / "shop", orders=3)
    policy = '{"*": {"interval": "10s"}}'
    url = f"sqlite:///{tmp_path}/shop.db"
    hook = CheckbackHook(connection("shop", password=url, path=path, policy=policy))
    assert hook.path == str(path)
    assert hook.settings["ledger"] == url
    assert hook.settings["policy"] == {"*": {"interval": "10s"}}
    with hook.get_conn() as store:
        assert isinstance(store, broker.Store)
    assert "there is no database at" in hook.test_connection()[1]
    (tmp_path / "shop.db").touch()
    assert "has no table checkback_ledger" in hook.test_connection()[1]
    broker.Ledger(create_engine(url)).create_all()
    works, said = hook.test_connection()
    assert works, said
    assert "3 transactions in doubt" in said


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"password": "notaurl-SECRETX"}, "is not a SQLAlchemy URL"),
        ({"password": "postgresql+psycopg://shop:SECRETX@127.0.0.1:1/shop"}, "cannot be reached"),
        ({"password": "postgresql+psycopg://shop:SECRETX@db:xx/shop"}, "is not a SQLAlchemy URL"),
        ({"resolver": "os:system"}, "is not a function of an application"),
        ({"resolver": "nobody:nothing"}, "cannot be loaded"),
        ({"resolver": "http://x:SECRETX@127.0.0.1:1/check"}, "cannot be reached"),
        ({"resolver": "json:dumps", "catalog": "notaurl-SECRETX"}, "the catalog is not a SQLAlchemy URL"),
        ({"resolver": "json:dumps", "policy": "[1]"}, "policy is a table"),
        ({"resolvers": "[1]"}, "resolvers is a table"),
        ({"resolvers": '{"shop": {"ledger_connection": "nobody_made_it"}}'}, "nobody_made_it"),
    ],
)
def test_the_button_tests_everything(
    wrong: dict[str, str], why: str, connection: Callable[..., str], tmp_path: Path
) -> None:
    """And repeats no secret."""
    path = shop(tmp_path / "shop", orders=1)
    works, said = CheckbackHook(connection("shop", path=path, **wrong)).test_connection()
    assert not works
    assert why in said
    assert "SECRETX" not in said


@pytest.mark.parametrize("extra", [["/srv/shop.store"], "[1]"])
def test_an_extra_that_is_no_object_is_a_sentence(extra: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one such connection the page showed no store at all: AttributeError."""
    monkeypatch.setenv("AIRFLOW_CONN_LISTED", json.dumps({"conn_type": "postgres", "extra": extra}))
    for read in (lambda: CheckbackHook("listed").path, lambda: database_url("listed")):
        with pytest.raises(BadSettings, match="the extra of connection listed has names and values"):
            read()


def test_what_is_wrong_with_a_connection_is_said(connection: Callable[..., str], tmp_path: Path) -> None:
    """No path, no store, a policy that is no JSON, a resolver that is not there."""
    with pytest.raises(BadSettings, match="names no store"):
        _ = CheckbackHook(connection("empty")).path
    works, said = CheckbackHook(connection("gone", path=tmp_path / "gone")).test_connection()
    assert not works
    assert "no such directory" in said
    with pytest.raises(BadSettings, match="is not JSON"):
        _ = CheckbackHook(connection("wrong", path=tmp_path, policy="{")).settings
    with pytest.raises(BadSettings, match="policy of connection deep: its values are nested too deeply"):
        _ = CheckbackHook(connection("deep", path=tmp_path, policy="[" * 100_000)).settings
    with pytest.raises(AirflowNotFoundException):
        _ = CheckbackHook("nobody_made_this").path
    for name, value, why in (
        ("path", "shop.store", "has the path 'shop.store': give the whole path, from / on"),
        ("path", 7, "path of connection other is a text, not 7"),
        ("resolver", 7, "resolver of connection other is a text, not 7"),
    ):
        hook = CheckbackHook(connection("other", **{"path": tmp_path, name: value}))
        works, said = hook.test_connection()
        assert (works, why in said) == (False, True), said


def test_the_plugin_costs_next_to_nothing() -> None:
    """Each `airflow` command loads it. CPU seconds; the better of two."""
    runs = [subprocess.run([sys.executable, "-c", PROBE], check=True, capture_output=True, text=True) for _ in range(2)]
    spent, *heavy = runs[0].stdout.split()
    assert not heavy
    assert min(float(run.stdout.split()[0]) for run in runs) < PLUGIN_S, spent


def test_airflow_finds_plugin_and_bundle() -> None:
    """`airflow version` starts with them installed, without a word of complaint; the bundle leads to the DAG files."""
    from recovery.airflow.bundle import CheckbackDagBundle

    (plugin,) = entry_points(group="airflow.plugins", name="checkback")
    assert plugin.load().name == "checkback"
    ran = subprocess.run([sys.executable, "-m", "airflow", "version"], capture_output=True, text=True, check=True)
    assert "checkback" not in ran.stdout + ran.stderr
    bundle = CheckbackDagBundle(name="checkback")
    bundle.initialize()
    assert (bundle.path / "check_back.py").exists()
    assert bundle.get_current_version() is None


@pytest.fixture
def capture() -> Iterator[dict[str, Any]]:
    """A server on the loopback that keeps what is posted to it."""
    found: dict[str, Any] = {}

    class Taking(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            found["authorization"] = self.headers["Authorization"]
            found["body"] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Taking) as server:
        found["port"] = server.server_port
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield found
        server.shutdown()
        thread.join(10)


def test_an_alert_says_what_is_wrong(monkeypatch: pytest.MonkeyPatch, capture: dict[str, Any]) -> None:
    """In the log, and as one JSON object to where the connection leads."""
    from recovery.airflow.alerts import StoreAlert

    class Instance:
        dag_id, task_id, run_id = "shop.verify_store", "no_findings", "r1"

    host = f"127.0.0.1:{capture['port']}"
    value = {"conn_type": "http", "host": f"http://{host}", "login": "a", "password": "b"}
    monkeypatch.setenv("AIRFLOW_CONN_ONCALL", json.dumps(value))
    StoreAlert(store="shop", connection="oncall").notify(
        {"task_instance": Instance(), "exception": ValueError("1 slot-wrong-state")}  # type: ignore[typeddict-item]
    )
    assert capture["body"]["store"] == "shop"
    assert "slot-wrong-state" in capture["body"]["text"]
    assert capture["authorization"].startswith("Basic ")
