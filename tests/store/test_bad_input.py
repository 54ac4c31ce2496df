"""What users point us at by mistake, and what accidents leave: one sentence each, with the path and the next step."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

import broker
from broker.format.commitlog import encode, make_record
from broker.format.consumequeue import Unit
from broker.format.java import Host
from broker.store.disk.files import Disk
from broker.store.disk.os_errors import refused
from broker.store.read.detect import check_is_store
from recovery.repair.copying import copy_store
from tests.store.build import SEGMENT_SIZE, Log, units_of, write_index, write_queue
from tests.store.permissions import as_nobody


def sentence(path: str | Path, error: type[broker.BrokerError] = broker.NotAStore) -> str:
    with pytest.raises(error) as caught:
        broker.open(path, read_only=True)
    text = str(caught.value)
    assert type(caught.value) is error
    assert "\n" not in text
    return text.replace(f"{path}", "PATH")


CORRECT = "Correct the path, or mount the volume"


def test_no_directory(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b"
    assert sentence(path) == f"PATH: there is no such directory. The path exists as far as {tmp_path}. {CORRECT}"


def test_a_uri() -> None:
    """The path was said to exist as far as the current directory, and a volume was to be mounted."""
    sentence = "^s3://archive/a is a URI, .* Give the path where that file system is mounted$"
    with pytest.raises(broker.NotAStore, match=sentence):
        check_is_store("s3://archive/a", Disk())
    for read_only in (True, False):  # a program was refused the directory s3: in its current one
        with pytest.raises(broker.NotAStore, match=sentence):
            broker.open("s3://archive/a", read_only=read_only)


def test_a_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    assert sentence(path) == "PATH is a file, and a store is a directory that holds commitlog/. Give that directory"
    assert sentence(path / "in it") == f"PATH: there is no such directory. {path} is a file. {CORRECT}"


def test_an_empty_directory(tmp_path: Path) -> None:
    said = sentence(tmp_path)
    assert said.startswith("PATH is not a store, for it holds no commitlog/: it is empty. ")
    assert said.endswith("Give the directory that a broker calls storePathRootDir")


def test_a_directory_of_junk(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt", "c.txt", "d.txt", "e.txt"):
        (tmp_path / name).touch()
    assert "it holds a.txt, b.txt, c.txt and 2 more. Give the directory" in sentence(tmp_path)


def test_the_directory_above_and_the_directory_below(tmp_path: Path) -> None:
    store = Log().write(tmp_path / "data" / "shop.store")
    assert sentence(tmp_path / "data").endswith("there is one in it. Give PATH/shop.store")
    assert sentence(store / "commitlog").endswith(
        f"it holds segments itself. Give the store that it is a part of, perhaps {store}"
    )


def test_no_commitlog(tmp_path: Path) -> None:
    (tmp_path / "consumequeue").mkdir()
    (tmp_path / "config").mkdir()
    assert "it has config, consumequeue, which are worth nothing without their CommitLog. Put" in sentence(tmp_path)


def test_a_commitlog_that_its_broker_has_elsewhere(tmp_path: Path) -> None:
    """As storePathCommitLog of a broker says: linked as the sentence says, it is read."""
    store = Log().write(tmp_path / "shop.store")
    (store / "consumequeue").mkdir()
    (store / "commitlog").rename(tmp_path / "log")
    assert sentence(store).endswith("(storePathCommitLog): ln -s DIRECTORY PATH/commitlog")
    (store / "commitlog").symlink_to(tmp_path / "log")
    with broker.open(store, read_only=True):
        pass


def test_a_commitlog_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "commitlog").touch()
    assert "commitlog in it is a file, not a directory of segments" in sentence(tmp_path)
    (tmp_path / "commitlog").unlink()
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "commitlog" / "notes.txt").touch()
    assert "(notes.txt) is named as a segment is, by 20 digits" in sentence(tmp_path)
    (tmp_path / "commitlog" / f"{0:020}.gz").touch()
    assert sentence(tmp_path).endswith("are read by `transactions` and by `verify --spark` alone")


def test_an_empty_commitlog_is_a_store(tmp_path: Path) -> None:
    """As a broker leaves it that never got a message."""
    (tmp_path / "commitlog").mkdir()
    with broker.open(tmp_path, read_only=True) as store:
        assert (list(store.records()), store.topics(), store.queues("orders"), store.end_offset) == ([], [], [], 0)
        assert store.by_key("orders", "key") == []
        assert store.message("orders", 0, 0) is None
        assert store.queue_range("orders", 0) == (0, 0)
        assert store.offset_at_time("orders", 0, 0) == 0
        assert list(store.records_between(0, 1)) == []
        assert (store.checkpoint(), store.has_abort, store.topic_configs().topics) == (None, False, {})


def test_no_permission() -> None:
    with tempfile.TemporaryDirectory() as directory:  # pytest's own directories let nobody else in
        Path(directory).chmod(0o755)
        log = Log()
        log.append(1)
        path = log.write(Path(directory, "store"))
        segment = path / "commitlog" / f"{0:020}"
        owner = f"belongs to user {os.geteuid()}, group {os.getegid()}"
        segment.chmod(0)
        with as_nobody(), broker.open(path, read_only=True) as store, pytest.raises(broker.StoreError) as caught:
            list(store.records())
        expected = f"{segment} may not be read by this user (Permission denied). {segment} {owner}, mode ----------"
        assert str(caught.value) == f"{expected}: run as one who may read it"
        (path / "commitlog").chmod(0)
        with as_nobody():
            assert sentence(path, broker.StoreError).startswith("PATH/commitlog may not be read by this user")
        (path / "commitlog").chmod(0o700)
        path.chmod(0)
        with as_nobody():
            assert sentence(path, broker.StoreError).startswith("PATH may not be read by this user")
        path.chmod(0o700)


def test_a_directory_in_a_store_of_ours_that_is_closed_to_the_application() -> None:
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        path = Path(directory, "store")
        with broker.open(path, layout=broker.StoreLayout.small()) as store:
            store.create_topic("t")
            store.append(broker.Message("t", b"x"))
        (path / "backup").mkdir(mode=0)
        with as_nobody(), broker.open(path, read_only=True) as store:
            assert [one.body for one in store.records()] == [b"x"]


def test_a_new_volume_is_an_empty_directory() -> None:
    """`mkfs` leaves `lost+found` in it, into which only root may look: a sentence sent users there."""
    with tempfile.TemporaryDirectory() as directory:
        volume = Path(directory)
        (volume / "lost+found").mkdir(mode=0)
        volume.chmod(0o755)
        expected = sentence(volume)
        with as_nobody():
            assert sentence(volume) == expected
        with broker.open(volume, layout=broker.StoreLayout.small()) as store:
            store.create_topic("t")
            store.append(broker.Message("t", b"x"))
        with broker.open(volume) as store:
            assert [one.body for one in store.records()] == [b"x"]
        with as_nobody():
            assert Disk().used_bytes(str(volume)) > 1 << 16, "as retention and metrics ask"
        with tempfile.TemporaryDirectory() as beside:
            copy_store(str(volume), f"{beside}/copy")
            assert not Path(beside, "copy", "lost+found").exists()


def test_who_may_not_write_is_told_to_be_one_who_may(tmp_path: Path) -> None:
    error = refused(PermissionError(errno.EACCES, "Permission denied"), str(tmp_path))
    assert str(error).endswith("run as one who may write it")


def test_what_another_program_wrote_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(broker.StoreError, match=r"was written by another program.*Until then open it with read_only"):
        broker.open(Log().write(tmp_path))


def cut(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.truncate(size)


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def overlap(directory: Path) -> None:
    (directory / f"{SEGMENT_SIZE:020}").rename(directory / f"{SEGMENT_SIZE - 1000:020}")


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "one missing": (
        lambda directory: (directory / f"{SEGMENT_SIZE:020}").unlink(),
        "DIR: segment 00000000000000004096 is missing, 4096 bytes in the middle. Run: checkback verify STORE",
    ),
    "two missing": (
        lambda directory: [(directory / f"{n * SEGMENT_SIZE:020}").unlink() for n in (1, 2)],
        "DIR: segments 00000000000000004096 to 00000000000000008192 are missing, 8192 bytes in the middle. Run: ",
    ),
    "cut in the middle": (
        lambda directory: cut(directory / f"{SEGMENT_SIZE:020}", 0),
        "DIR/00000000000000004096: the segment has 0 bytes, the others have 4096. Run: checkback verify STORE",
    ),
    "zeros in the middle": (
        lambda directory: (directory / f"{SEGMENT_SIZE:020}").write_bytes(bytes(SEGMENT_SIZE)),
        "DIR/00000000000000004096 at CommitLog offset 4096: no record begins here: the magic is 0x00000000. Run: ",
    ),
    "a bit in a body": (
        lambda directory: flip(directory / f"{0:020}", 90),
        "DIR/00000000000000000000 at CommitLog offset 0: the body's CRC is ",
    ),
    "a bit in a magic of the last segment": (
        lambda directory: flip(max(directory.iterdir()), 5),
        "no record begins here: the magic is 0xDA",
    ),
    "another store's segment": (
        lambda directory: (directory / f"{0:020}").write_bytes((directory / f"{SEGMENT_SIZE:020}").read_bytes()),
        "DIR/00000000000000000000 at CommitLog offset 0: the record says that it begins at CommitLog offset 4096",
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_commitlog(tmp_path: Path, name: str) -> None:
    """It opens, what is whole is read, and the damage raises when a reader comes to it."""
    damage, expected = DAMAGES[name]
    log = Log()
    log.append(120)
    path = log.write(tmp_path / "store")
    damage(path / "commitlog")
    with broker.open(path, read_only=True) as store:
        found = []
        with pytest.raises(broker.CorruptStore) as caught:
            found.extend(store.records())
        text = str(caught.value).replace(f"{path}/commitlog", "DIR").replace(str(path), "STORE")
        assert expected in text
        assert text.endswith("Run: checkback verify STORE")
        assert store.end_offset >= 0


def test_an_overlapping_segment_is_named(tmp_path: Path) -> None:
    log = Log()
    log.append(120)
    path = log.write(tmp_path)
    overlap(path / "commitlog")
    with broker.open(path, read_only=True) as store:
        assert "segment-overlap" in [damage.kind for damage in store.damages]
        with pytest.raises(broker.CorruptStore, match="Run: checkback verify"):
            list(store.records())


def test_a_last_segment_that_was_cut(tmp_path: Path) -> None:
    """What is whole is read; then it says so, instead of ending as if nothing were missing."""
    log = Log()
    log.append(120)
    path = log.write(tmp_path)
    last = max((path / "commitlog").iterdir())
    cut(last, 1000)
    found = []
    with (
        broker.open(path, read_only=True) as store,
        pytest.raises(broker.CorruptStore, match="the segment has 1000 bytes"),
    ):
        found.extend(store.records())
    assert found == [r for r in log.records if r.commitlog_offset + r.total_size <= int(last.name) + 1000]


def test_other_files_in_the_directory_are_passed_over(tmp_path: Path) -> None:
    """RocketMQ ignores directories, and refuses the rest; an editor's backup is no reason not to read."""
    log = Log()
    log.append(50)
    path = log.write(tmp_path)
    (path / "commitlog" / "00000000000000000000~").touch()
    (path / "commitlog" / "4096").touch()
    (path / "commitlog" / f"{SEGMENT_SIZE * 9:020}").mkdir()
    with broker.open(path, read_only=True) as store:
        assert list(store.records()) == log.records


def test_two_stores_mixed(tmp_path: Path) -> None:
    """The ConsumeQueue of one with the CommitLog of another: never a message of another topic."""
    ours, theirs = Log(), Log()
    ours.append(5, topic="apples")
    theirs.append(5, topic="orders")
    path = ours.write(tmp_path)
    write_queue(path, units_of(theirs.records), topic="orders")
    with broker.open(path, read_only=True) as store:
        with pytest.raises(broker.CorruptStore) as caught:
            store.message("orders", 0, 0)
        assert str(caught.value) == (
            f"{path}/consumequeue/orders/0: the unit of queue offset 0 names a record of topic apples, at 0. "
            f"The ConsumeQueue is not that of this CommitLog. Run: checkback verify {path}"
        )


@pytest.mark.parametrize("unit", [Unit(100_000, 100, 0), Unit(77, 100, 0), Unit(0, 0x7FFFFFFE, 0)])
def test_a_unit_that_names_no_record(tmp_path: Path, unit: Unit) -> None:
    log = Log()
    log.append(5)
    path = log.write(tmp_path)
    write_queue(path, [unit])
    with broker.open(path, read_only=True) as store:
        if unit.commitlog_offset == 0:  # only its size is wrong, and the record knows better
            assert store.message("orders", 0, 0) is not None
            return
        with pytest.raises(broker.CorruptStore, match=r"the unit of queue offset 0 names .* Run: checkback verify"):
            store.message("orders", 0, 0)


def test_a_topic_is_never_a_path(tmp_path: Path) -> None:
    log = Log()
    log.append(1)
    path = log.write(tmp_path)
    write_queue(path, units_of(log.records))
    with broker.open(path, read_only=True) as store:
        for topic in ("../consumequeue/orders", "..", "", ".", "a\0b"):
            assert store.queues(topic) == []
            assert store.message(topic, 0, 0) is None
        assert store.message("orders", -1, 0) is None
        assert store.message("orders", 0, -1) is None


def test_a_queue_file_of_a_wrong_size(tmp_path: Path) -> None:
    log = Log()
    log.append(3)
    path = log.write(tmp_path)
    write_queue(path, units_of(log.records))
    cut(path / "consumequeue/orders/0" / f"{0:020}", 159)
    said = r"have 159 bytes, no multiple of 20\. .* Run: checkback verify"
    with broker.open(path, read_only=True) as store, pytest.raises(broker.CorruptStore, match=said):
        store.queue_range("orders", 0)


def test_broken_small_files(tmp_path: Path) -> None:
    path = Log().write(tmp_path)
    (path / "config").mkdir()
    (path / "config/topics.json").write_text("{")
    (path / "checkpoint").write_bytes(b"short")
    with broker.open(path, read_only=True) as store:
        with pytest.raises(broker.CorruptRecord, match=r"topics\.json at 0: not JSON: .*topics\.json\.bak beside it"):
            store.topic_configs()
        with pytest.raises(
            broker.CorruptRecord, match=r"checkpoint at 0: a checkpoint has 4096 bytes, this one 5\. Run:"
        ):
            store.checkpoint()
        (path / "config/topics.json").unlink()
        (path / "config/topics.json.bak").write_text('{"topicConfigTable":{"t":{"topicName":"t"}}}')
        assert list(store.topic_configs().topics) == ["t"]


def test_an_index_that_is_none(tmp_path: Path) -> None:
    log = Log()
    log.append(5)
    path = log.write(tmp_path)
    index = write_index(path, log.records, slots=10, items=20)
    index.write_bytes(index.read_bytes()[:40] + b"\x01" * 440)
    said = r"not an index that RocketMQ wrote: .* Run: checkback verify"
    with broker.open(path, read_only=True) as store, pytest.raises(broker.CorruptStore, match=said):
        store.by_key("orders", "key-1")


def test_a_log_whose_topic_is_a_path(tmp_path: Path) -> None:
    """Opening a store writes the queues that its log asks for, and none of them outside of the store."""
    path, host = tmp_path / "store", Host(bytes(4), 1)
    with broker.open(path) as store:
        store.producer("shop", topics=["orders"]).send(broker.Message("orders", b"lamp"))
        end = store.end_offset
    topic = f"{tmp_path}/elsewhere"
    times = {"born_timestamp_ms": 1, "store_timestamp_ms": 1}
    record = make_record(topic, b"lamp", born_host=host, store_host=host, commitlog_offset=end, **times)
    with (path / "commitlog" / f"{0:020}").open("r+b") as log:
        log.seek(end)
        log.write(encode(record, record_crc=True))
    for name in ("control", "checkpoint"):
        (path / "checkback" / name).unlink()
    with pytest.raises(broker.CorruptStore, match=r"can have no directory for the topic .* checkback verify"):
        broker.open(path)
    assert os.listdir(tmp_path) == ["store"]
