"""Stores that are not taken over as they are, by what only their broker, or a salvage, makes of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from broker.errors import NotUnderstood, StoreError
from broker.format.topics import HALF_TOPIC
from recovery.rebuild.rebuilder import rebuild
from recovery.repair import crash
from recovery.repair.salvage import salvage
from recovery.verify.verifier import verify
from tests.cli.command import command
from tests.repair.taking import seen, taken

pytestmark = pytest.mark.usefixtures("is_still")
FIRST = f"{0:020}"


@pytest.fixture
def is_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody watches for three seconds whether a store of these tests changes."""
    monkeypatch.setattr(crash, "check_still", lambda *_arguments, **_options: None)


@pytest.fixture
def store(golden_copy: Callable[[str], Path], tmp_path: Path) -> Callable[[str], Path]:
    (tmp_path / "kinds").mkdir()
    return golden_copy


def test_a_store_whose_broker_keeps_half_messages_by_a_rocksdb_stays_its_brokers(
    store: Callable[[str], Path], tmp_path: Path
) -> None:
    """Also after a salvage, which leaves the RocksDB out: no engine of ours settles those half messages."""
    salvage(store("kinds/rocketmq-5.5.0-rocksdb-halves"), tmp_path / "out")
    with pytest.raises(StoreError, match=r"has half messages in RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC, where only RocketMQ"):
        taken(tmp_path / "out")


@pytest.mark.parametrize(
    ("name", "reason"),
    [("rocketmq-3.2.6-clean", "half messages there that nobody can ever settle"),
     ("rocketmq-3.2.6-upgraded", "half messages of several generations")],
)  # fmt: skip
def test_the_plan_names_the_generations_that_are_only_read(
    store: Callable[[str], Path], capsys: pytest.CaptureFixture[str], name: str, reason: str
) -> None:
    """It advised --apply, which refused."""
    path = store(f"kinds/{name}")
    ran = command(capsys, "recover", path)
    assert (ran.code, f"--apply would refuse: {path} can only be read" in ran.out, reason in ran.out) == (1, True, True)


def test_a_damaged_queue_of_half_messages_is_no_reason_against_a_take_over(
    store: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """The plan said that --apply would refuse, which made the queue again."""
    path = store("kinds/rocketmq-4.9.7-clean")
    (queue,) = (path / "consumequeue" / HALF_TOPIC / "0").iterdir()
    queue.write_bytes(queue.read_bytes()[:-7])
    ran = command(capsys, "recover", path)
    assert (ran.code, "--apply would refuse" in ran.out) == (1, False)
    assert command(capsys, "recover", path, "--apply", "--broker-is-stopped").code == 0
    assert verify(path).ok


def test_positions_in_a_rocksdb_become_json_first(
    store: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a store of 5.5.0 with configManagerVersion=v2 a group got 90 messages again that it had acknowledged."""
    path, other = store("kinds/rocketmq-5.5.0-default"), store("kinds/rocketmq-5.5.0-rocksdb")
    for directory in (one for one in (other / "config").iterdir() if one.is_dir()):
        directory.rename(path / "config" / directory.name)
    before = seen(path)
    ran = command(capsys, "recover", path)
    assert (ran.code, "is a RocksDB that holds" in ran.out, "would refuse" in ran.out) == (1, True, True)
    with pytest.raises(StoreError, match=r"without its position each group would get every message again.*salvage"):
        taken(path)
    assert seen(path) == before
    salvage(path, tmp_path / "out")
    assert taken(tmp_path / "out").applied


def test_nobody_is_told_to_move_a_part_of_the_log_out(
    store: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a second directory of storePathCommitLog the sentence said so."""
    path = store("kinds/rocketmq-5.5.0-segments")
    (path / "second").mkdir()
    last = max((path / "commitlog").iterdir())
    last.rename(path / "second" / last.name)
    ran = command(capsys, "recover", path)
    assert "second is a directory of segments beside commitlog/: a part of the log is in it" in ran.out
    ran = command(capsys, "recover", path, "--apply", "--broker-is-stopped")
    assert (ran.code, "a part of the log is in it" in ran.err, "move it out" in ran.out + ran.err) == (2, True, False)


def test_compacted_topics_of_a_log_that_its_broker_cleaned_stay_with_it(store: Callable[[str], Path]) -> None:
    """A broker of 5.3.3 delivered 24 messages of one, and no consumer got any of them after a take-over."""
    path = store("kinds/rocketmq-5.5.0-segments")
    (path / "commitlog" / FIRST).unlink()
    compacted = path / "compaction" / "compactionLog" / "Table" / "0"
    compacted.mkdir(parents=True)
    (compacted / FIRST).write_bytes(b"1")
    with pytest.raises(StoreError, match=r"compaction holds compacted topics, and the log begins at 32768: messages"):
        taken(path)
    salvage(path, path.with_name("out"))
    assert taken(path.with_name("out")).applied


@pytest.mark.parametrize("entry", ["tiered_index_file", "212d6b50_DefaultCluster", "tieredstore"])
def test_tiered_storage_is_named(store: Callable[[str], Path], tmp_path: Path, entry: str) -> None:
    """As brokers of 5.3.3 and 5.5.0 make it whose tieredStoreFilePath is their storePathRootDir."""
    path = store("kinds/rocketmq-5.3.3-plain")
    (path / entry / "broker-a").mkdir(parents=True)
    assert [(one.path, one.what) for one in verify(path).not_judged] == [(str(path / entry), "tiered storage")]
    with pytest.raises(NotUnderstood, match=f"{entry} is tiered storage: the broker opens it together with"):
        rebuild(path, apply=True, broker_is_stopped=True, still_s=0)
    assert salvage(path, tmp_path / "out").left_behind == [f"{entry} was NOT copied: tiered storage"]


def test_a_copy_named_after_its_day_is_no_tiered_storage(store: Callable[[str], Path]) -> None:
    """Its name begins with eight digits, as that of a cluster's directory does: it is to be moved out of the store."""
    path = store("kinds/rocketmq-5.3.3-plain")
    (path / "20261127_backup").mkdir()
    with pytest.raises(NotUnderstood, match=r"20261127_backup is nothing that checkback knows: .* move it out of the"):
        rebuild(path, apply=True, broker_is_stopped=True, still_s=0)
