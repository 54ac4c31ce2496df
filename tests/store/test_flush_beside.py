"""A flush that goes on beside the thread that needs it: what it covers, whom its error reaches, when none begins."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, event, insert, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import broker
from broker import compiled
from broker.errors import StoreError, SyncFailed
from broker.ledger import Ledger
from broker.live import open_live
from broker.producer import Producer
from broker.store.disk.files import Disk
from broker.store.disk.maps import Flusher, Map
from broker.store.shared.control import Word
from broker.store.write import sync
from broker.store.writer import StoreWriter, open_writer
from broker.testing.crash_disk import CrashDisk
from tests.store.filled import SMALL, assert_right, half

# From 3.12 on Python warns of a fork while other threads run, which is just what is tried here.
pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
LOG = "store/commitlog/00000000000000000000"


# The thread of the C module


@pytest.fixture
def flusher() -> Flusher:
    made = Disk().flusher()
    if made is None:
        pytest.skip("there is no C module, or it flushes nothing beside Python here")
    return made


@pytest.fixture
def page(tmp_path: Path) -> Map:
    path = str(tmp_path / "page")
    Disk().allocate(path, 4096)
    return Disk().open_map(path, 4096)


def test_a_map_is_flushed_beside(flusher: Flusher, page: Map) -> None:
    for number in range(200):
        page.view[0] = number
        assert flusher.begin(page, 0, 1)
        flusher.wait()
    flusher.wait()  # once more: the same


def test_the_error_of_a_flush_reaches_who_waits(flusher: Flusher, page: Map) -> None:
    """A pipe cannot be flushed. Who was interrupted asks again, and is told again."""
    reading, writing = os.pipe()
    number = page.file.descriptor if page.file else -1
    kept = os.dup(number)
    os.dup2(writing, number)
    assert flusher.begin(page, 0, 1)
    for _ in range(2):
        with pytest.raises(SyncFailed, match="page: the disk failed to keep what was written"):
            flusher.wait()
    os.dup2(kept, number)
    assert flusher.begin(page, 0, 1)
    flusher.wait()
    for descriptor in (reading, writing, kept):
        os.close(descriptor)


def test_a_closed_map_is_not_flushed(flusher: Flusher, page: Map) -> None:
    page.close()
    assert not flusher.begin(page, 0, 1)


def test_nothing_begins_in_a_forked_child(flusher: Flusher, page: Map) -> None:
    assert flusher.begin(page, 0, 1)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            assert not flusher.begin(page, 0, 1)
            with pytest.raises(ValueError, match="no flush was begun in this process"):
                flusher.wait()
            del flusher
            gc.collect()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    flusher.wait()


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="this system does not list threads")
def test_its_thread_begins_with_the_first_flush_and_ends_with_it(page: Map) -> None:
    def threads() -> int:
        return len(os.listdir("/proc/self/task"))

    before, flusher = threads(), Disk().flusher()
    if flusher is None:
        pytest.skip("there is no C module, or it flushes nothing beside Python here")
    assert threads() == before
    assert flusher.begin(page, 0, 1)
    assert threads() == before + 1
    del flusher  # while it may be at work
    assert threads() == before


@pytest.mark.skipif(compiled.fast is None, reason="there is no C module")
def test_the_module_refuses_what_is_no_flusher() -> None:
    assert compiled.fast is not None
    for wrong in (None, 1, object()):
        with pytest.raises((TypeError, ValueError)):
            compiled.fast.flush_wait(wrong)
        with pytest.raises((TypeError, ValueError)):
            compiled.fast.flush_begin(wrong, 0)
    made = compiled.fast.flusher()
    with pytest.raises(ValueError, match="no flush was begun"):
        compiled.fast.flush_wait(made)
    for descriptor in (-1, 1 << 31, 1 << 40):
        assert compiled.fast.flush_begin(made, descriptor) is False
    with pytest.raises((TypeError, OverflowError)):
        compiled.fast.flush_begin(made, "1")


# What a flush covers


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CrashDisk]:
    monkeypatch.setattr(sync, "_SLOW_S", 60.0)  # this disk compares whole files at each step
    made = CrashDisk(tmp_path / "disk")
    yield made
    made.close()


@pytest.fixture
def store(disk: CrashDisk) -> StoreWriter:
    """One half message is durable: the first of a segment is flushed with its name."""
    made = open_writer(str(disk.root / "store"), disk, SMALL, sync="group")
    made.append_one(half(0))
    return made


def put(store: StoreWriter, number: int) -> int:
    """Append a half message, and wait for nothing; where it ends."""
    placed = store.append_one(half(number), wait=False)
    return placed.commitlog_offset + placed.size


def forced(disk: CrashDisk) -> list[str]:
    return [step for step in disk.trace if step.startswith(f"force {LOG}")]


def test_it_covers_what_was_there_when_it_began(store: StoreWriter, disk: CrashDisk) -> None:
    start, end = store.control[Word.DURABLE], put(store, 1)
    disk.trace.clear()
    assert store.begin_flush(end)
    later = put(store, 2)
    assert store.control[Word.DURABLE] == start
    store.settle(end)
    assert (forced(disk), store.control[Word.DURABLE]) == ([f"force {LOG} {start}-{end}"], end)
    store.settle(later)
    assert forced(disk)[1:] == [f"force {LOG} {end}-{later}"]
    assert store.begin_flush(end)  # it is durable
    assert len(forced(disk)) == 2


def test_what_another_process_flushed_meanwhile_stays_durable(store: StoreWriter) -> None:
    """It flushed more than the flush covers that was begun here: the mark goes back for nobody who was told."""
    assert store.begin_flush(put(store, 1))
    later, last = put(store, 2), put(store, 3)
    store.control[Word.DURABLE] = later
    with store.syncer.lock:
        store.syncer._force()
    assert store.control[Word.DURABLE] == later
    store.settle(last)
    assert store.control[Word.DURABLE] == last


def test_whoever_leads_next_waits_for_it_first(store: StoreWriter, disk: CrashDisk) -> None:
    """Its error is told once: to a flush of somebody else it would look as if nothing had failed."""
    end = put(store, 1)
    assert store.begin_flush(end)
    later, caught = put(store, 2), list[BaseException]()
    disk.fail_next_sync("store/commitlog/*")

    def other() -> None:
        try:
            store.settle(later)
        except SyncFailed as error:
            caught.append(error)

    thread = threading.Thread(target=other)
    thread.start()
    thread.join(20)
    assert len(caught) == 1
    with pytest.raises(SyncFailed, match="an fsync failed before"):
        store.settle(end)
    with pytest.raises(StoreError):
        put(store, 3)
    assert not store.begin_flush(later)


def test_the_power_fails_before_somebody_waited(store: StoreWriter, disk: CrashDisk) -> None:
    end = put(store, 1)
    assert store.begin_flush(end)
    image = disk.survivors(0)
    open_writer(str(image / "store"), Disk(), sync="os").close()
    assert_right(image / "store", 0, 0, 1)


def test_the_power_fails_after_somebody_waited(store: StoreWriter, disk: CrashDisk) -> None:
    end = put(store, 1)
    assert store.begin_flush(end)
    put(store, 2)
    store.settle(end)
    image = disk.survivors(0)
    open_writer(str(image / "store"), Disk(), sync="os").close()
    assert_right(image / "store", 0, 0, 2)


# When none begins


def test_others_who_append_are_served_by_one_flush(store: StoreWriter) -> None:
    end = put(store, 1)
    later = put(store, 2)
    assert not store.begin_flush(end)
    assert store.begin_flush(later)
    assert not store.begin_flush(end)  # it waits for the one that is under way


def test_none_begins_where_flushes_are_slow(store: StoreWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync, "_SLOW_S", -1.0)
    store.settle(put(store, 1))
    assert not store.begin_flush(put(store, 2))
    monkeypatch.setattr(sync, "_SLOW_S", 60.0)
    store.settle(put(store, 3))
    assert store.begin_flush(put(store, 4))


def test_none_begins_for_the_first_record_of_a_segment(tmp_path: Path) -> None:
    """The name of the segment has to be flushed, too."""
    disk = CrashDisk(tmp_path / "disk")
    store = open_writer(str(disk.root / "store"), disk, SMALL, sync="group")
    assert not store.begin_flush(put(store, 0))
    disk.close()


def test_a_closed_store_begins_none(store: StoreWriter) -> None:
    end = put(store, 1)
    store.close()
    assert not store.begin_flush(end)


def test_a_store_that_is_closed_meanwhile_promises_nothing(store: StoreWriter) -> None:
    """Nobody waited for the flush that was begun, so nobody knows whether it failed."""
    end = put(store, 1)
    assert store.begin_flush(end)
    store.syncer._flusher = None  # as close() does, in another thread
    with pytest.raises(StoreError, match="belongs to a store that was closed"):
        store.settle(end)
    assert store.control[Word.DURABLE] < end


# In a session


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    made = create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    Base.metadata.create_all(made)
    Ledger(made).create_all()
    yield made
    made.dispose()


def watched(disk: CrashDisk, engine: Engine, patch: pytest.MonkeyPatch) -> list[str]:
    """What happens, in order: statements, the COMMIT, and flushes of the log."""
    steps: list[str] = []

    def saying(name: str, call: Callable[..., object]) -> Callable[..., object]:
        def said(*arguments: object) -> object:
            steps.append(name)
            return call(*arguments)

        return said

    kind = type(disk.flusher())
    patch.setattr(kind, "begin", saying("begin", kind.begin))
    patch.setattr(disk, "force_range", saying("force", disk.force_range))
    patch.setattr(engine.dialect, "do_commit", saying("COMMIT", engine.dialect.do_commit))
    event.listen(engine, "before_cursor_execute", lambda *given: steps.append(" ".join(given[2].split()[:3])))
    return steps


@pytest.fixture
def producer(disk: CrashDisk, engine: Engine) -> Iterator[Producer]:
    """With a message before: the first of a segment is flushed with its name."""
    with open_live(disk.root / "store", disk=disk, sync="group", layout=SMALL) as store:
        made = store.producer("shop", topics=["orders"], ledger=Ledger(engine))
        with Session(engine) as session, session.begin():
            made.send(broker.Message("orders", b"first"), session)
        yield made


def test_a_session_flushes_beside_the_log_and_commits_after_it(
    disk: CrashDisk, engine: Engine, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = watched(disk, engine, monkeypatch)
    with Session(engine) as session, session.begin():
        session.add(Order())
        producer.send(broker.Message("orders", b"second"), session)
    assert steps[:5] == ["begin", "INSERT INTO orders", "force", f"INSERT INTO {Ledger(engine).rows.name}", "COMMIT"]


def test_a_log_that_cannot_be_flushed_saves_nothing(
    disk: CrashDisk, engine: Engine, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = watched(disk, engine, monkeypatch)
    with Session(engine) as session:
        session.add(Order())
        producer.send(broker.Message("orders", b"second"), session)
        disk.fail_next_sync("store/commitlog/*")
        with pytest.raises(SyncFailed, match=LOG):
            session.commit()
    assert steps[:3] == ["begin", "INSERT INTO orders", "force"]
    assert "COMMIT" not in steps
    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM orders")).scalar() == 0


@pytest.mark.parametrize("target", ["session", "connection"])
def test_the_disk_begins_at_the_send_where_nobody_begins_a_flush(
    engine: Engine, producer: Producer, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    """A connection has no place for `begin`: from its third message on, bytes start for the disk at the send."""
    started: list[bool] = []
    monkeypatch.setattr(sync.Syncer, "start_write", lambda *_: started.append(True))
    for _ in range(5):
        opened = Session(engine) if target == "session" else engine.connect()
        with opened as joined:
            joined.execute(insert(Order))
            producer.send(broker.Message("orders", b"later"), joined)
            joined.commit()
    assert len(started) == (0 if target == "session" else 3)
