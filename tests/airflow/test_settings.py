"""The list of stores: what it means, and one sentence for whatever is wrong with it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from recovery.airflow.settings import BadSettings, StoreSettings, read_stores, stores


def test_a_toml_file_names_the_stores(tmp_path: Path) -> None:
    """In their order, with what the file says and the defaults for the rest."""
    file = tmp_path / "stores.toml"
    file.write_text(
        '[stores.shop]\npath = "/srv/shop.store"\nask = true\ncheck_back_every_s = 5\nverify_schedule = "never"\n'
        '[stores.shop.policy."*"]\ninterval = "10s"\n[stores.billing]\nconnection = "billing"\n'
    )
    shop, billing = read_stores(str(file))
    assert (shop.name, shop.path, shop.ask, shop.check_back_every_s) == ("shop", "/srv/shop.store", True, 5)
    assert shop.verify_schedule is None
    assert shop.policy == {"*": {"interval": "10s"}}
    assert billing == StoreSettings(name="billing", connection="billing")
    assert shop.target()["store"] == "shop"


def test_limits_of_retention_are_sizes() -> None:
    """Text with a unit, or bytes; by default there is none."""
    (shop,) = read_stores('{"stores": {"shop": {"path": "/srv/a", "max_bytes": "20GiB", "free_bytes": 1000}}}')
    assert (shop.retention()["max_bytes"], shop.retention()["free_bytes"]) == ("20GiB", 1000)
    assert StoreSettings(name="other", path="/srv/b").retention()["max_bytes"] is None


def test_the_setting_itself_may_be_json(monkeypatch: pytest.MonkeyPatch) -> None:
    """Through Airflow's configuration, where it is an environment variable."""
    monkeypatch.setenv("AIRFLOW__CHECKBACK__STORES", json.dumps({"stores": {"shop": {"path": "/srv/shop.store"}}}))
    assert [store.path for store in stores()] == ["/srv/shop.store"]
    monkeypatch.delenv("AIRFLOW__CHECKBACK__STORES")
    assert stores() == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("/nowhere/stores.toml", "No such file"),
        ('{"stores": ', "cannot be read"),
        ('{"stores": {"shop": {"path": "/srv/a", "disk_share": 0.5}}}', "give max_bytes of the store"),
        ('{"stores": {"shop": {"path": "/srv/a", "max_bytes": "much"}}}', "max_bytes cannot be 'much'"),
        ('{"stores": []}', "a table for each store"),
        ('{"stores": {"a b": {"path": "/x"}}}', "cannot name a store"),
        ('{"stores": {"a": 1}}', "a table of settings"),
        ('{"stores": {"a": {}}}', "needs a path, or a connection"),
        ('{"stores": {"a": {"path": "/x", "pth": "/y"}}}', "no setting 'pth'; there are path"),
        ('{"stores": {"a": {"path": 7}}}', "path cannot be 7"),
        ('{"stores": {"a": {"path": "/x", "check_back_every_s": 0}}}', "check_back_every_s cannot be 0"),
        ('{"stores": {"a": {"path": "/x", "ask": 1}}}', "ask cannot be 1"),
        ('{"stores": {"a": {"path": "/x", "engine": "hadoop"}}}', "engine is one of auto, local, spark"),
    ],
)
def test_what_is_wrong_is_said(text: str, said: str) -> None:
    """With the place, and what would be right."""
    with pytest.raises(BadSettings, match=said):
        read_stores(text)
