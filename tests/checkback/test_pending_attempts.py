"""`checkback pending` counts what check-back asked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

import broker
from broker.store.disk.paths import Paths
from recovery.checkback.catalog import Attempt, Catalog, attempts_of, checks_of
from recovery.repair.copying import copy_store
from tests.store.permissions import as_nobody

LAYOUT = broker.StoreLayout(1 << 20, 6000, 2400, 2000, 100, 400)


def listed(store: Path) -> list[dict[str, object]]:
    command = [sys.executable, "-m", "recovery.cli", "pending", str(store), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


def test_attempts_are_counted_and_the_catalog_is_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "shop.store"
    with broker.open(path, layout=LAYOUT) as store:
        half = store.transactions.prepare(broker.Message("orders", b"x"), "shop")
    assert [one["checks"] for one in listed(path)] == [0]
    store_id = json.loads((path / "checkback" / "store.json").read_text())["id"]
    catalog = Catalog.open(str(path), store_id)
    catalog.remember([Attempt(half.commitlog_offset, half.message_id, "orders", "shop", 1, 3, 2, 4, "unknown", "")])
    catalog.close()
    file = path / "checkback" / "catalog.db"
    before = file.read_bytes()
    assert [one["checks"] for one in listed(path)] == [3]
    assert file.read_bytes() == before


def remember(path: str, checks: int) -> None:
    """Make a store with a catalog, which remembers one attempt, at a path."""
    with broker.open(path, layout=LAYOUT) as store:
        catalog = Catalog.open(path, store.store_id)
    catalog.remember([Attempt(100, "id", "orders", "shop", 1, checks, 2, 4, "unknown", "")])
    catalog.close()


@pytest.mark.parametrize("name", ["a b", "a#b", "a?mode=memory", "a%41b", "a\nb", os.fsdecode(b"a\xffb")])
def test_the_catalog_lies_in_its_store_whatever_that_is_called(tmp_path: Path, name: str) -> None:
    """In a URL some characters of a path have meanings of their own: then it was another file, or none."""
    path, out = str(tmp_path / name), str(tmp_path / f"{name}.copy")
    remember(path, 3)
    assert sorted(os.listdir(tmp_path)) == [name]
    assert [one.checks for one in attempts_of(path).values()] == [3]
    copy_store(path, out)
    assert [one.checks for one in attempts_of(out).values()] == [3]


def test_the_catalog_is_read_where_nothing_may_be_written() -> None:
    """SQLite makes a file beside a database in WAL mode, to read it; here it cannot."""
    with tempfile.TemporaryDirectory() as directory:  # pytest's own directories let nobody else in
        os.chmod(directory, 0o777)  # noqa: S103
        path, out = f"{directory}/shop.store", f"{directory}/copy"
        remember(path, 3)
        subprocess.run(["chmod", "-R", "a-w,a+rX", path], check=True)
        with as_nobody():
            assert [one.checks for one in attempts_of(path).values()] == [3]
            copy_store(path, out)
            assert [one.checks for one in attempts_of(out).values()] == [3]
        subprocess.run(["chmod", "-R", "u+w", path], check=True)


def test_a_catalog_that_cannot_be_read_is_a_sentence_of_copy(tmp_path: Path) -> None:
    path = str(tmp_path / "shop.store")
    remember(path, 3)
    Path(path, "checkback", "catalog.db").write_bytes(b"damaged " * 1000)
    with pytest.raises(broker.StoreError, match=r"catalog\.db cannot be read .*not a database.*Move it away"):
        copy_store(path, str(tmp_path / "copy"))
    assert os.listdir(tmp_path) == ["shop.store"]


def test_the_attempts_of_some_are_read_alone(tmp_path: Path) -> None:
    """Of a million in doubt a look that lists a hundred read all, with what each was answered."""
    path = str(tmp_path / "shop.store")
    with broker.open(path, layout=LAYOUT) as store:
        catalog = Catalog.open(path, store.store_id)
    made = [Attempt(number, "id", "orders", "shop", 1, number, 2, 4, "unknown", "") for number in range(1200)]
    catalog.remember(made)
    catalog.close()
    assert list(attempts_of(path, range(100, 1150)).values()) == made[100:1150]
    assert (attempts_of(path, [5000]), attempts_of(path, [])) == ({}, {})
    assert checks_of(path) == {number: number for number in range(1200)}


def test_readers_of_a_store_make_no_catalog(tmp_path: Path, golden: Callable[[str], Path]) -> None:
    """`pending` on a store of RocketMQ, or on one that check-back never saw."""
    assert attempts_of(str(golden("rocketmq-3.1.5-clean"))) == {}
    path = tmp_path / "store"
    broker.open(path, layout=LAYOUT).close()
    assert attempts_of(str(path)) == {}
    assert not Path(Paths(str(path)).catalog).exists()
