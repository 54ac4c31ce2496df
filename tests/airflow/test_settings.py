"""The list of stores: what it means, and one sentence for whatever is wrong with it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from recovery.airflow.settings import BadSettings, StoreSettings, broken_stores, read_stores, stores


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
        ("a", {"path": "/x", "engine": "hadoop"}, "engine is one of auto, local, spark"),
    ],
)
def test_a_mistake_in_one_table_is_that_stores_alone(name: str, table: object, why: str) -> None:
    """The other is looked after."""
    found = read_stores(json.dumps({"stores": {name: table, "good": {"path": "/srv/good"}}}))
    assert [store.name for store in found.stores] == ["good"]
    (broken,) = found.broken
    assert broken.name == name.replace(" ", "_")
    assert why in broken.why


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
