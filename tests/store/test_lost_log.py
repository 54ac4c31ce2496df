"""A store whose log is not there is no new store: nothing that names a record is removed, whichever verb meets it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import broker
from broker.errors import CorruptStore, NotAStore, NotUnderstood
from broker.store.disk.files import Disk
from broker.store.writer import open_writer
from tests.cli.command import command
from tests.rebuild.derived_files import on_disk
from tests.store.filled import SMALL, fill, reopened

STORES = ("kinds/rocketmq-5.3.3-plain", "kinds/rocketmq-5.3.3-rocksdb", "rocketmq-3.1.5-clean")
VERBS = (
    "metrics STORE", "retain STORE", "park-list STORE", "check-back STORE", "resolve STORE --all-parked --commit",
    "serve STORE", "topic STORE new --create", "recover STORE", "recover STORE --apply",
    "recover STORE --apply --broker-is-stopped", "rebuild STORE", "rebuild STORE --apply --broker-is-stopped",
)  # fmt: skip


@pytest.fixture
def lost(golden_copy: Callable[[str], Path], tmp_path: Path) -> Callable[[str], Path]:
    """`lost(name)`: a store whose commitlog/ is an empty directory, as where its disk is not mounted."""
    (tmp_path / "kinds").mkdir()

    def without_log(name: str) -> Path:
        path = ours(tmp_path / name) if name == "ours" else golden_copy(name)
        for segment in (path / "commitlog").iterdir():
            segment.unlink()
        return path

    return without_log


def ours(path: Path) -> Path:
    store = open_writer(str(path), Disk(), SMALL, sync="os")
    fill(store, 0, 30)
    store.close()
    return path


def seen(path: Path) -> tuple[dict[str, str], list[Path]]:
    """Every file with its digest, and every name: no directory may be made either."""
    return on_disk(path), sorted(path.rglob("*"))


@pytest.mark.parametrize("words", VERBS)
def test_no_verb_takes_it_for_a_new_store(
    lost: Callable[[str], Path], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (lost("kinds/rocketmq-5.3.3-plain"), lost("ours")):
        before = seen(path)
        ran = command(capsys, *(word.replace("STORE", str(path)) for word in words.split()))
        assert ran.code == 4, (ran.out, ran.err)
        said = ran.out + ran.err
        assert f"{path}/commitlog" in said
        assert f"{path}/consumequeue/" in said
        assert seen(path) == before


@pytest.mark.parametrize("name", [*STORES, "ours"])
def test_open_refuses_it_and_changes_nothing(lost: Callable[[str], Path], name: str) -> None:
    path = lost(name)
    before = seen(path)
    for _ in range(2):
        with pytest.raises(CorruptStore, match=r"no segment.*Mount the disk.*checkback verify"):
            broker.open(path)
    assert seen(path) == before
    shutil.rmtree(path / "commitlog")
    with pytest.raises(NotAStore, match="worth nothing without their CommitLog"):
        broker.open(path)
    assert not (path / "commitlog").exists()
    (path / "commitlog" / "lost+found").mkdir(parents=True)  # an empty disk is mounted there
    with pytest.raises(NotAStore, match="is named as a segment is"):
        broker.open(path)
    with pytest.raises(CorruptStore, match="no segment"):
        open_writer(str(path), Disk())


def test_of_ours_the_watermark_alone_shows_it(lost: Callable[[str], Path], capsys: pytest.CaptureFixture[str]) -> None:
    """The queues and the index are gone, too: what was durable is known, and is not there."""
    path = lost("ours")
    for name in ("consumequeue", "index", "transaction"):
        shutil.rmtree(path / name)
    with pytest.raises(CorruptStore, match="was durable up to"):
        broker.open(path)
    assert command(capsys, "recover", path).code == 4


def test_a_new_directory_of_a_broker_is_opened(lost: Callable[[str], Path]) -> None:
    """Its derived files are there, made ahead, and name nothing."""
    path = lost("kinds/rocketmq-5.3.3-plain")
    for file in (*(path / "consumequeue").rglob("0*"), *(path / "index").iterdir()):
        if file.is_file():
            file.write_bytes(bytes(file.stat().st_size))
    (index,) = (path / "index").iterdir()
    with open(index, "r+b") as header:  # RocketMQ: IndexHeader.updateByteBuffer (5.3.3), of a file without an item
        header.write(bytes(36) + b"\0\0\0\1")
    with broker.open(path) as store:
        store.append(broker.Message("Plain", b"first"))


def test_nothing_is_made_in_a_new_directory_with_queues_in_a_rocksdb(lost: Callable[[str], Path]) -> None:
    path = lost("kinds/rocketmq-5.3.3-rocksdb")
    for file in (path / "index").iterdir():
        file.unlink()
    before = seen(path)
    with pytest.raises(NotUnderstood, match="RocksDB"):
        broker.open(path)
    assert seen(path) == before


def test_a_store_of_ours_without_a_message_is_opened(tmp_path: Path) -> None:
    """Fresh, closed, or killed after any of its first steps."""
    reopened(tmp_path)
    reopened(tmp_path)
    for name in ("control", "queues", "checkpoint", "durable"):
        (tmp_path / "checkback" / name).unlink(missing_ok=True)
        reopened(tmp_path)
    for name in ("index", "consumequeue"):
        (tmp_path / name).rmdir()
        reopened(tmp_path)
    with broker.open(tmp_path) as store:
        store.append(broker.Message("orders", b"first"))
    with broker.open(tmp_path, read_only=True) as reader:
        assert [record.topic for record in reader.records()] == ["orders"]
