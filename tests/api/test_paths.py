"""Where a store is: paths that are relative, lead through links, or are none."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import broker


def send(store: Any, body: bytes) -> None:
    store.producer("web").send(broker.Message("orders", body))


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Two directories with a store of the same name; the process is in the first."""
    one, other = tmp_path / "one", tmp_path / "other"
    for directory in (other, one):
        directory.mkdir()
        monkeypatch.chdir(directory)
        with broker.open("shop.store", layout=broker.StoreLayout.small()) as store:
            send(store, b"first")
    return one, other


def bodies(path: Path) -> list[bytes]:
    with broker.open(path, read_only=True) as store:
        return [record.body for record in store.records()]


def test_a_process_may_change_its_directory(two: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """As a daemon does, or a test. What was open is used, and nothing of the store of the same name elsewhere."""
    one, other = two
    with broker.open("shop.store", retention=broker.Retention(keep_s=3600)) as store:
        assert store.path == str(one / "shop.store")
        producer = store.producer("web")
        monkeypatch.chdir(other)
        for body in (b"second", b"third"):
            producer.send(broker.Message("orders", body))
        store.producer("web").send(broker.Message("a-new-topic", b"fourth"))
        half = store.transactions.prepare(broker.Message("orders", b"fifth"), "web")
        store.transactions.commit(half)
        store.pause_group("later")
        assert not store.retain().segments
        with store.consumer("boxes", ["orders", "a-new-topic"]) as consumer:
            got = set()
            for _ in range(5):
                message = consumer.receive(5)
                assert message is not None
                got.add(message.body)
                consumer.ack(message)
        assert got == {b"first", b"second", b"third", b"fourth", b"fifth"}
    assert bodies(other / "shop.store") == [b"first"]
    assert not (other / "shop.store" / "consumequeue" / "a-new-topic").exists()
    assert not (other / "shop.store" / "checkback" / "consumers").exists()


def test_a_reader_may_change_its_directory(two: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = two
    with broker.open(other / "shop.store") as store:
        send(store, b"not ours")
    with broker.open(Path("shop.store"), read_only=True) as store:
        monkeypatch.chdir(other)
        assert (store.path, [record.body for record in store.records()]) == (str(one / "shop.store"), [b"first"])


def test_a_served_store_may_change_its_directory(two: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = two
    with broker.open("shop.store") as store:
        monkeypatch.chdir(other)
        with broker.serve(store, "127.0.0.1:0") as server, broker.connect(f"rocketmq://{server.address}") as cluster:
            send(cluster, b"by the network")
    assert bodies(one / "shop.store") == [b"first", b"by the network"]
    assert bodies(other / "shop.store") == [b"first"]


def test_links_stay_in_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever points a link elsewhere opens another store; `..` behind a link goes where the system goes."""
    (tmp_path / "disk" / "big").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "disk" / "big")
    monkeypatch.chdir(tmp_path)
    with broker.open("link/shop.store/") as store:
        assert store.path == str(tmp_path / "link" / "shop.store")
    with broker.open("link/../beside.store") as store:
        send(store, b"x")
        assert store.path == str(tmp_path / "disk" / "beside.store")
    assert bodies(tmp_path / "disk" / "beside.store") == [b"x"]
    with broker.open("disk/../plain.store") as store:
        assert store.path == str(tmp_path / "plain.store")


@pytest.mark.parametrize("path", ["a\0b", "a\ud800", "", b"shop.store", None, "rocketmq://127.0.0.1:9876"])
@pytest.mark.parametrize("read_only", [False, True])
def test_what_names_no_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: Any, read_only: bool) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(broker.BrokerError, match=r"path of a store|names a cluster"):
        broker.open(path, read_only=read_only)
    assert not list(tmp_path.iterdir())


def test_a_relative_path_without_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(broker.BrokerError, match="the directory of this process is gone"):
        broker.open("shop.store")


@pytest.mark.parametrize("options", [{}, {"create": False}, {"read_only": True}])
def test_a_link_that_leads_nowhere(tmp_path: Path, options: dict[str, Any]) -> None:
    (tmp_path / "shop.store").symlink_to(tmp_path / "not-mounted" / "store")
    with pytest.raises(broker.NotAStore, match=r"is a symbolic link that leads nowhere: there is no .*not-mounted"):
        broker.open(tmp_path / "shop.store", **options)
    assert os.listdir(tmp_path) == ["shop.store"]
