"""The first decision wins, under any number of threads and processes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import broker
from broker.format.topics import PARK_TOPIC
from broker.store.disk.files import Disk
from broker.store.disk.paths import Paths
from broker.store.shared.control import Word
from broker.store.shared.directory_swap import begin_swap
from broker.store.write.pending_record import PendingRecord
from broker.transaction.durability import Waiting
from broker.transaction.statetable import StateTableService
from recovery.torture.second_reader import assert_one_truth, records_of
from recovery.verify.verifier import verify
from tests.house.tree import ROOT
from tests.transaction.opened import message, opened

COUNT = 500

pytestmark = pytest.mark.usefixtures("each_engine")


def race(path: Path, decisions: list[str], count: int) -> list[list[str]]:
    """Let processes decide about the same halves, all let go at one instant; what each was told, by half."""
    ready, said_ready = os.pipe()
    go, let_go = os.pipe()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    workers = []
    for decision in decisions:
        line = [sys.executable, "-m", "tests.transaction.race_worker", str(path), decision, str(count)]
        line += [str(said_ready), str(go)]
        workers.append(
            subprocess.Popen(line, stdout=subprocess.PIPE, text=True, pass_fds=(said_ready, go), env=environment)
        )
    for _ in workers:
        assert os.read(ready, 1) == b"."
    os.write(let_go, b"." * len(workers))
    told = [worker.communicate(timeout=120)[0].split() for worker in workers]
    for descriptor in (ready, said_ready, go, let_go):
        os.close(descriptor)
    assert [worker.returncode for worker in workers] == [0] * len(workers)
    return told


@pytest.mark.parametrize("decisions", [["commit", "rollback"], ["commit", "commit", "rollback"]])
def test_processes_race_for_the_same_halves(tmp_path: Path, decisions: list[str]) -> None:
    """Exactly one wins each; the others are told that it was decided, and how."""
    with opened(tmp_path, sync="os") as store:
        for number in range(COUNT):
            store.transactions.prepare(message(str(number)), "shop")
        told = race(tmp_path / "store", decisions, COUNT)
        winners = Counter[str]()
        for number in range(COUNT):
            answers = {index: answer[number] for index, answer in enumerate(told)}
            (winner,) = [decisions[index] for index, answer in answers.items() if answer == "won"]
            winners[winner] += 1
            for index, answer in answers.items():
                if answer != "won":
                    assert answer == ("again" if decisions[index] == winner else "lost")
        assert store.transactions.in_doubt_slots() == []
    report = verify(tmp_path / "store")
    assert report.ok, [str(finding) for finding in report.findings][:4]
    assert (report.transactions["committed"], report.transactions["rolled_back"]) == (
        winners["commit"],
        winners["rollback"],
    )
    path, told_once = tmp_path / "store", {"committed": winners["commit"], "rolled_back": winners["rollback"]}
    assert len(assert_one_truth(path)) == records_of(path, **told_once)


def test_without_the_compare_two_win(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The race is a real one: a service that looks before it takes the lock lets both decide."""
    with opened(tmp_path, sync="os") as store:
        half = store.transactions.prepare(message(), "shop")
        monkeypatch.setattr(type(store.transactions), "_slot_state", lambda self, half: 4)
        assert not store.transactions.commit(half).again
        assert not store.transactions.rollback(half).again
    assert not verify(tmp_path / "store").ok


def test_threads_share_a_store(tmp_path: Path) -> None:
    """Some prepare and end their own, some decide about what they find in doubt."""
    with opened(tmp_path, sync="os") as store:
        won: Counter[str] = Counter()
        lock, faults = threading.Lock(), []

        def decide(half: broker.Half, decision: str) -> None:
            try:
                ended = getattr(store.transactions, decision)(half)
            except broker.AlreadyEnded:
                return
            if not ended.again:
                with lock:
                    won[decision] += 1

        def own(decision: str) -> None:
            try:
                for number in range(100):
                    decide(store.transactions.prepare(message(str(number)), "shop"), decision)
            except BaseException as fault:  # noqa: BLE001
                faults.append(fault)

        def others() -> None:
            try:
                for _ in range(20):
                    for half in store.transactions.in_doubt(limit=10):
                        decide(half, "rollback")
            except BaseException as fault:  # noqa: BLE001
                faults.append(fault)

        threads = [threading.Thread(target=own, args=(decision,)) for decision in ("commit", "rollback", "commit")]
        threads += [threading.Thread(target=others) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert faults == []
        assert won.total() == 300
        assert store.transactions.in_doubt_slots() == []
    report = verify(tmp_path / "store")
    assert report.ok
    assert (report.transactions["committed"], report.transactions["rolled_back"]) == (won["commit"], won["rollback"])


def test_what_was_ended_meanwhile_is_not_parked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path) as store:
        service = store.transactions
        assert isinstance(service, StateTableService)
        half, made = service.prepare(message("late"), "shop"), service._park_record

        def ended(*given: Any, **options: Any) -> PendingRecord:
            service.commit(half)
            return made(*given, **options)

        monkeypatch.setattr(service, "_park_record", ended)
        assert not service.park(half, "nobody knows")
        assert (service.state(half), store.queue_end(PARK_TOPIC, 0)) == (broker.TransactionState.COMMITTED, 0)


def test_what_was_ended_meanwhile_is_not_in_doubt(tmp_path: Path) -> None:
    """Who goes through what is in doubt is slower than others that decide."""
    with opened(tmp_path) as store:
        halves = [store.transactions.prepare(message(str(number)), "shop") for number in range(4)]
        seen = []
        for half in store.transactions.in_doubt():
            seen.append(half)
            if half == halves[0]:
                store.transactions.commit(halves[1])
                store.transactions.rollback(halves[2])
        assert seen == [halves[0], halves[3]]


def test_what_is_in_doubt_is_read_from_no_table_that_is_being_exchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rebuild was killed between two renames: there is no table at that moment, and it looked as if it were empty."""
    with opened(tmp_path) as store:
        half = store.transactions.prepare(message(), "shop")
        service: Any = store.transactions
        table, paths, catch_up = service._dispatcher.table, Paths(store.path), service._catch_up

        def then_an_exchange_begins() -> None:
            catch_up()
            monkeypatch.setattr(service, "_catch_up", catch_up)
            built = os.path.join(paths.rebuild, "table")
            shutil.copytree(table.directory, built)
            store.writer.control[Word.GENERATION] += 1
            begin_swap(Disk(), paths, [(table.directory, built)])
            shutil.rmtree(table.directory)
            table.forget()

        monkeypatch.setattr(service, "_catch_up", then_an_exchange_begins)
        assert service.in_doubt_slots() == [half.slot]


def test_a_future_waits_for_no_thread_that_the_system_does_not_give(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As at exit, where Python starts none: the call itself waits for the disk. The next one has its thread."""

    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with opened(tmp_path) as store:
        store.transactions.prepare(message("0"), "shop")
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refused)
            first = store.transactions.prepare_async(message("1"), "shop")
            assert first.done()
        second = store.transactions.prepare_async(message("2"), "shop")
        assert [future.result(timeout=20).slot for future in (first, second)] == [1, 2]
        assert store.visible_end >= second.result().end


def test_a_future_is_done_whatever_the_disk_raises() -> None:
    """Nobody would end the wait of those who came then, nor of any later one."""

    def settle(end: int) -> None:
        if end < 3:
            raise ValueError(f"nothing settles {end}")

    waiting = Waiting(settle)
    failed = [waiting.future(end, "half") for end in (1, 2)]
    assert [str(future.exception(timeout=20))[:15] for future in failed] == ["nothing settles"] * 2
    assert waiting.future(3, "half").result(timeout=20) == "half"
    waiting.close()
    assert waiting.future(4, "late").result(timeout=20) == "late"  # its thread has ended: the call itself waits


def test_a_forked_child_goes_on_with_its_parents_store(tmp_path: Path) -> None:
    """It makes its own locks, and its own thread for what is forced later."""
    with opened(tmp_path) as store:
        half = store.transactions.prepare(message("parent"), "shop")
        store.transactions.commit(half)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                mine = store.transactions.prepare_async(message("child"), "shop").result(timeout=20)
                store.transactions.commit(mine)
                code = 0 if store.transactions.commit(half).again else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        store.transactions.rollback(store.transactions.prepare(message("after"), "shop"))
    report = verify(tmp_path / "store")
    assert report.ok
    assert (report.transactions["committed"], report.transactions["rolled_back"]) == (2, 1)
