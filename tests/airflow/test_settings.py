"""The list of stores: what it means, and one sentence for whatever is wrong with it."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from recovery import hanging
from recovery.airflow.settings import (
    BadSettings,
    StoreSettings,
    broken_stores,
    in_one_directory,
    read_stores,
    stores,
)


def test_a_toml_file_names_the_stores(tmp_path: Path) -> None:
    """In their order, with what the file says and the defaults for the rest."""
    file = tmp_path / "stores.toml"
    file.write_text(
        '[stores.shop]\npath = "/srv/shop.store"\nask = true\ncheck_back_every_s = 5\nverify_schedule = "never"\n'
        '[stores.shop.policy."*"]\ninterval = "10s"\n[stores.billing]\nconnection = "billing"\n'
    )
    shop, billing = read_stores(str(file)).stores
    assert (shop.name, shop.path, shop.ask, shop.check_back_every_s) == ("shop", "/srv/shop.store", True, 5)
    assert shop.verify_schedule is None
    assert shop.policy == {"*": {"interval": "10s"}}
    assert billing == StoreSettings(name="billing", connection="billing")
    assert shop.target()["store"] == "shop"


def test_limits_of_retention_are_sizes() -> None:
    """Text with a unit, or bytes; by default there is none."""
    (shop,) = read_stores('{"stores": {"shop": {"path": "/srv/a", "max_bytes": "20GiB", "free_bytes": 1000}}}').stores
    assert (shop.retention()["max_bytes"], shop.retention()["free_bytes"]) == ("20GiB", 1000)
    assert StoreSettings(name="other", path="/srv/b").retention()["max_bytes"] is None


def test_a_disk_that_hangs_keeps_nobody_from_checking_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where its symbolic links lead is not waited for; the same path twice is seen all the same."""
    answers, resolved = threading.Event(), os.path.realpath

    def slow(path: str, **options: Any) -> str:
        _ = not path.startswith("/srv/hangs") or answers.wait(60)
        return resolved(path, **options)

    monkeypatch.setattr(os.path, "realpath", slow)
    monkeypatch.setattr(hanging, "WITHIN_S", 0.3)
    paths = {"shop": "/srv/shop", "far": "/srv/hangs", "till": "/srv/shop", "further": "/srv/hangs"}
    began = time.monotonic()
    try:
        pairs = in_one_directory([StoreSettings(name=name, path=path) for name, path in paths.items()])
    finally:
        answers.set()
    assert (pairs, time.monotonic() - began < 30) == ([("till", "shop"), ("further", "far")], True)


def test_the_setting_itself_may_be_json(monkeypatch: pytest.MonkeyPatch) -> None:
    """Through Airflow's configuration, where it is an environment variable."""
    monkeypatch.setenv("AIRFLOW__CHECKBACK__STORES", json.dumps({"stores": {"shop": {"path": "/srv/shop.store"}}}))
    assert [store.path for store in stores()] == ["/srv/shop.store"]
    monkeypatch.delenv("AIRFLOW__CHECKBACK__STORES")
    assert stores() == []


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("/nowhere/stores.toml", "No such file"),
        ('{"stores": ', "cannot be read"),
        ('{"stores": []}', "a table for each store"),
        (
            '{"stores": {"shop": {"path": "/srv/a"}, "shop": {"path": "/srv/b"}}}',
            "cannot be read: 'shop' is there twice",
        ),
    ],
)
def test_a_file_that_cannot_be_read_is_said(text: str, why: str) -> None:
    """With the place, and what would be right."""
    with pytest.raises(BadSettings, match=why):
        read_stores(text)


@pytest.mark.parametrize(
    ("name", "table", "why"),
    [
        ("a", {"path": "/srv/a", "disk_share": 0.5}, "give max_bytes of the store"),
        ("a", {"path": "/srv/a", "max_bytes": "much"}, "max_bytes cannot be 'much'"),
        ("a b", {"path": "/x"}, "cannot name a store"),
        ("a", 1, "a table of settings"),
        ("a", {}, "needs a path, or a connection"),
        ("a", {"path": "/x", "pth": "/y"}, "no setting 'pth'; there are path"),
        ("a", {"path": 7}, "path cannot be 7"),
        ("a", {"path": "/x", "check_back_every_s": 0}, "check_back_every_s cannot be 0"),
        ("a", {"path": "/x", "ask": 1}, "ask cannot be 1"),
        ("a", {"path": "/x", "ask": "true"}, "ask cannot be 'true'"),
        ("a", {"path": "/x", "approvers": "alice"}, "approvers cannot be 'alice'"),
        ("a", {"path": "/x", "approvers": ["alice", ""]}, "approvers has a name that is empty"),
        ("a", {"path": "/x", "approvers": ["alice "]}, "or has spaces around it: nobody could answer"),
        ("a", {"path": "/x", "engine": "hadoop"}, "engine is one of auto, local, spark"),
        ("a" * 91, {"path": "/x"}, "a store's name has at most 90 characters"),
        ("a", {"path": "shop.store"}, "path cannot be 'shop.store': give the whole path"),
        ("a", {"path": "~/shop.store"}, "give the whole path"),
        ("a", {"path": "/x", "pool": ""}, "pool is empty"),
        ("a", {"path": "/x", "backstop_s": 1e308}, "backstop_s cannot be 1e+308: it is a number of seconds"),
        ("a", {"path": "/x", "check_back_every_s": 1e-7}, "check_back_every_s cannot be 1e-07"),
        ("a", {"path": "/x", "verify_schedule": "daily"}, "verify_schedule cannot be 'daily': it is a cron expression"),
        ("a", {"path": "/x", "verify_schedule": "@dayly"}, "verify_schedule cannot be '@dayly'"),
        ("a", {"path": "/x", "rebuild_schedule": "99 99 * * *"}, "rebuild_schedule cannot be '99 99 * * *'"),
        ("a", {"path": "/x", "rebuild_schedule": "0 0 30 2 *"}, "rebuild_schedule cannot be '0 0 30 2 *'"),
        ("a", {"path": "/x", "keep": "72"}, "keep cannot be '72': a duration is a number and one of"),
        ("a", {"path": "/x", "gone_after": "soon"}, "gone_after cannot be 'soon': a duration"),
        ("a", {"path": "/x", "policy": {"*": {"intervall": "30s"}}}, "the policy of topic * has no 'intervall'"),
        ("a", {"path": "/x", "resolvers": {"shop": {"ledgr": "x"}}}, "resolvers.shop names one of ledger, http, call"),
        ("a", {"path": "/x", "resolvers": {"shop": "x"}}, "resolvers.shop names one of"),
        ("a", {"path": "/x", "ledger": "shop"}, "ledger is not a SQLAlchemy URL"),
        ("a", {"path": "/x", "ledger": "postgres://db/shop"}, "ledger cannot be in a database of the kind 'postgres'"),
        ("a", {"path": "/x", "ledger": "sqlite+aiosqlite:///x"}, "ledger names the driver aiosqlite, which needs an"),
        ("a", {"path": "/x", "resolvers": {"*": {"ledger": ["sqlite:///x", "ftp://x"]}}}, "of the kind 'ftp'"),
        ("a", {"path": "/x", "ledger_connection": "db", "resolver": "m:f"}, "ledger_connection and resolver exclude"),
        ("a", {"path": "/x", "max_bytes": "9" * 400}, "max_bytes cannot be '999"),
        ("a", {"path": "/x", "free_bytes": 1 << 64}, "free_bytes has a number that is too large"),
        ("a", {"path": "/x", "policy": {"*": {"most_checks": 10**30}}}, "policy has a number that is too large"),
        ("a", {"path": "/srv/\ud800"}, "path has a character in it that cannot be seen"),
        ("a", {"path": "/srv/\0"}, "path has a character in it that cannot be seen"),
        ("a", {"path": "/x", "queue": "q" * 251}, "queue has 251 characters: a name of it has at most 120"),
        ("a", {"path": "/x", "resolver": "ftp://billing/check"}, "resolver is an http(s) URL with a host, package.mod"),
        ("a", {"path": "/x", "resolver": "http://[::1"}, "resolver is an http(s) URL with a host"),
        ("a", {"path": "/x", "resolvers": {"*": {"http": "http://billing:99999"}}}, "http is an http(s) URL with a h"),
        (
            "a",
            {"path": "/x", "resolvers": {"shop": {"http": "billing/check"}}},
            "shop: http is an http(s) URL",
        ),
        ("a", {"path": "/x", "copy": True, "keep": "1h"}, "a copy, to which nothing writes: leave out keep"),
    ],
)
def test_a_mistake_in_one_table_is_that_stores_alone(name: str, table: object, why: str) -> None:
    """The other is looked after."""
    found = read_stores(json.dumps({"stores": {name: table, "good": {"path": "/srv/good"}}}))
    assert [store.name for store in found.stores] == ["good"]
    (broken,) = found.broken
    assert broken.name == name.replace(" ", "_")[:90]
    assert why in broken.why


def test_values_that_make_sense_are_taken() -> None:
    """Each kind of schedule, of limit and of answer."""
    tables: dict[str, dict[str, Any]] = {
        "a": {"verify_schedule": "0 3 * * MON", "rebuild_schedule": "@monthly", "retention_schedule": "never"},
        "b": {"gone_after": "never", "keep": "500ms", "check_back_every_s": 0.5, "backstop_s": 86_400},
        "c": {"resolvers": {"*": {"ledger_connection": "db"}, "billing": {"http_connection": "b"}}},
        "d": {"ledger": "sqlite://", "catalog": "postgresql+psycopg:///x", "policy": {"*": {"most_checks": 3}}},
        "e": {"connection": "shop", "resolver": "entry-point"},
    }
    found = read_stores(json.dumps({"stores": {name: {"path": "/srv/x", **one} for name, one in tables.items()}}))
    assert (len(found.stores), found.broken) == (5, [])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("connection", "checkback://:geheim@db/shop"),
        ("ledger_connection", "postgresql://shop:geheim@db/shop"),
        ("resolver_connection", "https://shop:geheim@shop/check"),
        ("alerts", "https://hooks.example/geheim"),
        ("resolvers", {"shop": {"ledger_connection": "postgresql://shop:geheim@db/shop"}}),
        ("resolvers", {"shop": {"http_connection": "https://shop:geheim@shop/check"}}),
        ("pool", ["https://shop:geheim@x"]),
    ],
)
def test_a_url_in_place_of_the_name_of_a_connection_is_refused(key: str, value: Any) -> None:
    """Airflow would keep it, with its password, where each user can read it: as a rendered field, as a deadline."""
    (broken,) = read_stores(json.dumps({"stores": {"a": {"path": "/x", key: value}}})).broken
    assert "names an Airflow connection, and a URL is given" in broken.why or "pool cannot be that" in broken.why
    assert "geheim" not in repr(broken)


@pytest.mark.parametrize("key", ["ledger", "catalog", "resolver", "resolvers"])
def test_no_sentence_shows_a_password(key: str) -> None:
    """The sentence is on the page, in the log of a DAG, and in the alert."""
    urls = ["postgresql://shop:geheim@db/shop"]
    (broken,) = read_stores(json.dumps({"stores": {"a": {"path": "/x", key: urls}}})).broken
    assert f"{key} cannot be that: give a" in broken.why
    assert "geheim" not in broken.why


def test_tables_whose_names_no_dag_can_have_get_different_ones() -> None:
    """Two failing DAGs of one name would be one."""
    names = ("a b", "a.b", "a_b")
    found = read_stores(json.dumps({"stores": {name: {"path": "/x"} for name in names}}))
    assert [store.name for store in found.stores] == ["a_b"]
    assert [broken.name for broken in found.broken] == ["a_b_2", "a_b_3"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "`stores` holds a table for each store, as in"),
        ("# to be written", "`stores` holds a table"),
        ('[store.shop]\npath = "/srv/shop.store"\n', "nothing else is known here, such as store"),
        ('[stores.shop]\npath = "/srv/a"\n[store.b]\npath = "/srv/b"\n', "such as store"),
    ],
)
def test_a_file_that_names_no_stores_is_no_list_of_none(
    text: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An editor that was killed leaves it empty, and a letter is soon forgotten: no store loses its DAGs by that."""
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    file = tmp_path / "stores.toml"
    monkeypatch.setenv("AIRFLOW__CHECKBACK__STORES", str(file))
    file.write_text('[stores.shop]\npath = "/srv/shop.store"\n')
    assert [store.name for store in stores()] == ["shop"]
    file.write_text(text)
    assert [store.name for store in stores()] == ["shop"]
    assert why in broken_stores()[0].why
    file.write_text("[stores]\n")
    assert (stores(), broken_stores()) == ([], [])


def test_while_the_file_cannot_be_read_its_last_version_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stray bracket stops no store; the copy is for its owner's eyes alone."""
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    file = tmp_path / "stores.toml"
    monkeypatch.setenv("AIRFLOW__CHECKBACK__STORES", str(file))
    assert [broken.name for broken in broken_stores()] == ["settings"]
    file.write_text('[stores.shop]\npath = "/srv/shop.store"\nalerts = "oncall"\n')
    assert [store.name for store in stores()] == ["shop"]
    file.write_text('[stores.shop\npath = "/srv/other.store"\n')
    assert [store.path for store in stores()] == ["/srv/shop.store"]
    (broken,) = broken_stores()
    assert (broken.name, broken.alerts) == ("settings", "oncall")
    assert "Until it is corrected, the 1 stores of its last good version are served" in broken.why
    assert (tmp_path / "checkback-stores.last-good").stat().st_mode & 0o777 == 0o600
    file.write_text('[stores.other]\npath = "/srv/other.store"\n')
    assert ([store.name for store in stores()], broken_stores()) == (["other"], [])


def test_where_no_copy_of_the_file_can_be_put_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a full disk each parse of a DAG file, and each look at the page, would leave an empty file."""
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    file = tmp_path / "stores.toml"
    monkeypatch.setenv("AIRFLOW__CHECKBACK__STORES", str(file))
    file.write_text('[stores.shop]\npath = "/srv/shop.store"\n')
    (tmp_path / "checkback-stores.last-good" / "in-the-way").mkdir(parents=True)
    for _ in range(2):
        assert [store.name for store in stores()] == ["shop"]
    assert [one.name for one in tmp_path.glob("checkback-*")] == ["checkback-stores.last-good"]


def test_the_file_may_have_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes that are not UTF-8, as of an old mount: the copy notes which file it is of."""
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    file = tmp_path / os.fsdecode(b"l\xe4den.toml")
    monkeypatch.setenv("AIRFLOW__CHECKBACK__STORES", str(file))
    file.write_text('[stores.shop]\npath = "/srv/shop.store"\n')
    assert [store.name for store in stores()] == ["shop"]
    file.write_text("[stores.shop")
    assert [store.name for store in stores()] == ["shop"]
