"""A process is killed at each step of an append: what it leaves is no finding, by either engine, until it is healed.

And what a watermark makes visible: an end of the log that was published and is not there.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import broker
from broker.format.commitlog import encode_blank
from broker.live import LiveStore
from broker.store.disk.files import Disk
from broker.store.disk.store_lock import StoreLock
from broker.store.maintain.retention import Retention
from broker.store.read.layout import StoreLayout
from broker.store.recover.watermark import has_moved, read_watermark
from broker.store.shared.control import Word
from broker.store.write import appender, dispatch, fast_append, indexwriter, mapped
from broker.store.writer import open_writer
from recovery.pipeline.in_memory import InMemoryExecutor
from recovery.pipeline.stages import inspect_log
from recovery.pipeline.store_location import StoreLocation
from recovery.rebuild import rebuilder
from recovery.rebuild.rebuilder import rebuild
from recovery.scan import scan
from recovery.transactions.in_doubt import Pending
from recovery.verify.conclusion import Conclusion
from recovery.verify.verifier import verify
from tests.compiled_module import use
from tests.spark.inline import comparable, verify_inline
from tests.store.filled import SMALL, fill, half

STEPS: list[tuple[Any, str]] = [
    (appender, "place"), (fast_append, "place"), (fast_append, "_pack_unit"), (fast_append, "_pack_slot"),
    (mapped, "_pack_unit"),
    (dispatch, "_pack_slot"), (indexwriter, "_pack_long"), (indexwriter, "_pack_item"), (indexwriter, "_pack_int"),
    (indexwriter, "_pack_counts"), (indexwriter, "file_size"),
]  # fmt: skip


def _in_a_process(work: Callable[[], None]) -> None:
    """Run it in a child, which must end by SIGKILL."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL


def _kill_at(module: Any, name: str, *, call: int, before: bool) -> None:
    """Have the how-manieth call of a function end this process, before or after it did its work."""
    real, calls = getattr(module, name), [0]

    def step(*args: Any) -> Any:
        calls[0] += 1
        if before and calls[0] == call:
            os.kill(os.getpid(), signal.SIGKILL)
        result = real(*args)
        if calls[0] == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(module, name, step)


def _assert_no_finding(path: Path) -> None:
    report = verify(path)
    assert [str(finding) for finding in report.findings] == []
    assert sum(map(len, scan(path, columns=["kind"]))) == report.records
    inspected = inspect_log(InMemoryExecutor(), StoreLocation(os.fspath(path)).log())
    assert (inspected.records, inspected.damages) == (report.records, [])
    pending = Pending(path, 0)
    assert len(list(pending)) == report.transactions["in_doubt"]
    assert pending.damages == []
    assert [str(one) for one in rebuild(path).differences] == []
    assert comparable(verify_inline(os.fspath(path), 1 << 14)) == comparable(report)


@pytest.mark.sample("1-False")
@pytest.mark.parametrize(("call", "before"), [(1, False), (1, True), (2, False)])
@pytest.mark.parametrize(("module", "name"), STEPS)
def test_killed_at_any_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Any, name: str, call: int, before: bool
) -> None:
    use(monkeypatch, None)  # what the C module stores at each step: tests/store/test_compiled_steps.py
    path = tmp_path / "store"
    open_writer(str(path), Disk(), SMALL, sync="os").close()

    def work() -> None:
        store = open_writer(str(path), Disk(), sync="os")
        fill(store, 0, 60)
        _kill_at(module, name, call=call, before=before)
        store.append([half(1000), half(1001), half(1002)])  # the general way, of several
        for number in range(2000, 2600):
            store.append_one(half(number))

    _in_a_process(work)
    _assert_no_finding(path)
    copy = tmp_path / "copy"
    shutil.copytree(path, copy)
    _assert_no_finding(copy)
    with broker.open(path) as store:
        _assert_no_finding(path)
        store.append(broker.Message("Other", b"x", keys=["k"]))
        assert [one.body for one in store.by_key("Other", "k")] == [b"x"]
    _assert_no_finding(path)


def _killed_in_place(path: Path) -> None:
    open_writer(str(path), Disk(), SMALL, sync="os").close()

    def work() -> None:
        store = open_writer(str(path), Disk(), sync="os")
        fill(store, 0, 900)
        for module in (appender, fast_append):
            _kill_at(module, "place", call=1, before=False)
        store.append_one(half(1000))

    _in_a_process(work)


def test_killed_while_it_makes_the_first_file_of_a_queue(tmp_path: Path) -> None:
    """The queue has no number yet, so nothing of it is in use."""
    path = tmp_path / "store"
    open_writer(str(path), Disk(), SMALL, sync="os").close()

    def work() -> None:
        store = open_writer(str(path), Disk(), sync="os")
        fill(store, 0, 60)
        queue = path / "consumequeue/SCHEDULE_TOPIC_XXXX/15"
        queue.mkdir(parents=True)
        (queue / ("0" * 20)).touch()
        os.kill(os.getpid(), signal.SIGKILL)

    _in_a_process(work)
    _assert_no_finding(path)
    with broker.open(path):
        _assert_no_finding(path)


@pytest.mark.parametrize("harm", ["zeros", "blank", "last segment", "cut"])
def test_what_was_published_and_is_not_there_is_found(tmp_path: Path, harm: str) -> None:
    """Zeros at the end of a log say nothing by themselves. Nothing is rebuilt from such a log either."""
    _killed_in_place(tmp_path)
    mark = read_watermark(os.fspath(tmp_path), Disk())
    assert mark is not None
    assert not mark.is_at_rest
    last = max((tmp_path / "commitlog").iterdir(), key=lambda file: (int(file.name) < mark.dispatched, file.name))
    with last.open("r+b") as file:
        room = mark.dispatched - int(last.name)
        if harm == "zeros":
            file.seek(room - 400)
            file.write(bytes(400))
        elif harm == "blank":
            file.seek(room - 400)
            file.write(encode_blank(400) + bytes(392))
        elif harm == "cut":
            file.truncate(room - 400)
    if harm == "last segment":
        last.unlink()
    report = verify(tmp_path)
    assert {"corrupt-region", "segment-missing"} & report.findings.counts.keys(), dict(report.findings.counts)
    assert "torn-tail" not in report.findings.counts
    assert comparable(verify_inline(os.fspath(tmp_path), 1 << 14))["counts"] == report.as_json()["counts"]
    with pytest.raises(broker.CorruptStore, match=r"salvage|verify"):
        rebuild(tmp_path)


def test_another_program_that_went_on_with_the_store_is_judged(tmp_path: Path) -> None:
    """A record behind what the page says, with nobody at work: then the page tells nothing."""
    store = open_writer(str(tmp_path), Disk(), SMALL, sync="os")
    fill(store, 0, 30)
    store.close()
    assert read_watermark(os.fspath(tmp_path), Disk()) is not None
    store = open_writer(str(tmp_path), Disk(), sync="os")
    tail = store.control[Word.TAIL]
    fill(store, 30, 3)
    store.close()
    with (tmp_path / "checkback" / "control").open("r+b") as file:
        for word in (Word.TAIL, Word.INTENT, Word.DISPATCHED):
            file.seek(8 * word)
            file.write(tail.to_bytes(8, "little"))
    assert read_watermark(os.fspath(tmp_path), Disk()) is None
    assert verify(tmp_path).ok


def test_a_copy_that_a_broker_goes_on_with_is_read_to_its_end(tmp_path: Path) -> None:
    """Its page is that of the store which was copied: what the broker appended was in no scan, and not in doubt."""
    path, copy = tmp_path / "store", tmp_path / "copy"
    store = open_writer(str(path), Disk(), SMALL, sync="os")
    fill(store, 0, 5)
    store.close()
    page = (path / "checkback" / "control").read_bytes()
    store = open_writer(str(path), Disk(), sync="os")
    fill(store, 5, 20)
    store.close()
    count = sum(batch.num_rows for batch in scan(path))
    shutil.copytree(path, copy)
    (copy / "checkback" / "control").write_bytes(page)
    (copy / "abort").touch()
    assert read_watermark(str(copy), Disk()) is not None  # it may have been copied while the store ran
    lock = StoreLock(str(copy / "lock"), Disk())  # as a broker that runs holds it
    assert lock.try_exclusive()
    try:
        assert sum(batch.num_rows for batch in scan(copy)) == count
    finally:
        lock.release()


def test_an_index_of_another_size_is_read_right_while_it_is_written(tmp_path: Path) -> None:
    """The numbers of its slots and items stand in store.json; from the contents of a growing file they come wrong."""
    with broker.open(tmp_path, sync="os", layout=StoreLayout(1 << 20, 60_000, 24_000, 20_000, 1000, 4000)) as store:
        store.append(broker.Message("T", b"1", keys=["a"]))
        layout, path = store.writer.layout, max((tmp_path / "index").iterdir())
        with path.open("r+b") as file:  # two items that a killed process wrote and did not count
            file.seek(40 + 4 * layout.index_slots + 20 * 3)
            file.write(b"\x01" * 40)
        assert [one.body for one in store.by_key("T", "a")] == [b"1"]
        assert verify(tmp_path).ok


def _expire(store: LiveStore) -> None:
    assert store.retain(Retention(keep_s=0, even_unread=True), now_ms=1 << 50).segments


def _exchange(store: LiveStore) -> None:
    assert rebuild(store.path, apply=True).applied


def _go_on(store: LiveStore) -> None:
    _send(store, 300)


def _send(store: LiveStore, count: int) -> None:
    for number in range(count):
        message = broker.Message("orders", b"x", keys=[str(number)])
        half = store.transactions.prepare(message, "shop", queue_id=number % 4)
        (store.transactions.commit if number % 3 else store.transactions.rollback)(half)


@pytest.mark.parametrize("meanwhile", [_expire, _exchange, _go_on])
@pytest.mark.parametrize("judge", [verify, rebuild])
def test_what_moves_between_the_log_and_the_comparison(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    judge: Callable[[Path], Any],
    meanwhile: Callable[[LiveStore], None],
) -> None:
    """Retention takes the oldest files, a rebuild exchanges all that is derived, transactions end: all is well."""
    module, name = (Conclusion, "_finish") if judge is verify else (rebuilder, "differences")
    real, left = getattr(module, name), [meanwhile]
    with broker.open(tmp_path / "store", layout=StoreLayout(8192, 400, 240, 200, 16, 24), sync="os") as store:
        _send(store, 100)
        halves = [store.transactions.prepare(broker.Message("orders", b"y"), "shop") for _ in range(5)]

        def step(*args: Any) -> Any:
            if left:
                left.pop()(store)
                if meanwhile is not _expire:
                    for half in halves:
                        store.transactions.commit(half)
            return real(*args)

        if meanwhile is _expire:
            for half in halves:
                store.transactions.rollback(half)
            _send(store, 100)
        monkeypatch.setattr(module, name, step)
        report = judge(tmp_path / "store")
    assert not left
    found = report.findings if judge is verify else report.differences
    assert [str(one) for one in found] == []


def test_a_store_at_rest_that_was_opened_and_left_as_it_was_is_judged_again(tmp_path: Path) -> None:
    """A process began to append and was killed, another one healed the store: the page says what it said before."""
    path = os.fspath(tmp_path / "store")
    store = open_writer(path, Disk(), SMALL, sync="os")
    fill(store, 0, 3)
    store.close()
    mark = read_watermark(path, Disk())
    assert mark is not None
    assert mark.is_at_rest
    assert not has_moved(mark, path, Disk())
    open_writer(path, Disk(), sync="os").close()
    assert not (tmp_path / "store" / "abort").exists()  # closed well: nothing was changed

    def work() -> None:
        store = open_writer(path, Disk(), sync="os")
        _kill_at(appender, "place", call=1, before=False)
        store.append([half(1)])

    _in_a_process(work)
    assert has_moved(mark, path, Disk())
    mark = read_watermark(path, Disk(), while_written=True)
    assert mark is not None
    resting = replace(mark, is_at_rest=True)

    def heal() -> None:
        store = open_writer(path, Disk(), sync="os")
        with store.append_lock:
            store.appender.heal()
        os.kill(os.getpid(), signal.SIGKILL)

    _in_a_process(heal)
    assert has_moved(resting, path, Disk())
