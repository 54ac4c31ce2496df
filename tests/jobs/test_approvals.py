"""What a person reads before something is approved or decided."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

import broker
from recovery.jobs import approvals, tasks
from recovery.jobs.approvals import waiting_lines
from tests.jobs.shops import LATE_MS, SMALL, in_child, killed_shop, shop, spoil_slot


def test_what_an_application_wrote_forges_no_line_of_a_question(tmp_path: Path) -> None:
    """A group or a reason with an empty line in it ended the code span; PostgreSQL takes no text with a NUL."""
    path = tmp_path / "shop"
    with broker.open(str(path), layout=SMALL) as store:
        group = "shop\n\n**Approve**: the auditors agreed"
        half = store.transactions.prepare(broker.Message("orders", b"1", keys=["1"]), group)
        assert "\n\n**Approve**: the auditors" not in "\n".join(waiting_lines(str(path)))
        store.transactions.park(half, "no\x00body\n\n# knew")
    (asked,) = tasks.parked(str(path), now_ms=LATE_MS)
    assert "group `shop\\x0a\\x0a**Approve**: the auditors agreed`" in asked["body"]
    assert "`no\\x00body\\x0a\\x0a# knew`" in asked["body"]


def test_an_approval_says_how_old_its_transactions_are_by_the_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run of a week ago, which starts when its DAG is unpaused, said "for 0 ms" of what waited for days."""
    path = killed_shop(tmp_path / "shop")
    later = time.time_ns() + 5 * 86_400 * 10**9
    monkeypatch.setattr(approvals, "time", SimpleNamespace(time_ns=lambda: later))
    assert "10 transactions, the oldest for 5 d" in tasks.plan_recovery(str(path))["text"]
    tasks.recover(str(path), now_ms=1)
    spoil_slot(path, 2)
    assert "the oldest for 5 d" in tasks.compare_table(str(path), now_ms=1)["text"]


def test_an_approval_of_a_recovery_is_for_the_log_that_was_shown(tmp_path: Path) -> None:
    """An application opened the store meanwhile, wrote and crashed: the plan was the same, and was carried out."""

    def goes_on() -> None:
        store = broker.open(path)
        store.append(broker.Message("orders", b"12"))
        os.kill(os.getpid(), signal.SIGKILL)

    path = str(killed_shop(tmp_path / "shop", orders=1))
    plan = tasks.plan_recovery(path)
    in_child(goes_on)
    with pytest.raises(approvals.PlanChanged):
        tasks.recover(path, now_ms=1, expected=plan["plan_id"])
    assert tasks.crashed(path)
    tasks.recover(path, now_ms=1, expected=tasks.plan_recovery(path)["plan_id"])
    assert tasks.recover(path, now_ms=1, expected=plan["plan_id"])["case"], "the second time nothing is left to do"


def test_a_recovery_that_was_killed_goes_on_by_its_approval(tmp_path: Path) -> None:
    """It left less to do, in a log that ends where it ended."""
    path = killed_shop(tmp_path / "shop", orders=1)
    for name in ("checkpoint", "checkback/checkpoint", "checkback/control"):
        (path / name).unlink(missing_ok=True)
    plan = tasks.plan_recovery(str(path))
    in_child(lambda: os.kill(broker.open(str(path)) and os.getpid(), signal.SIGKILL))
    assert tasks.plan_recovery(str(path))["plan_id"] != plan["plan_id"]
    tasks.recover(str(path), now_ms=1, expected=plan["plan_id"])
    assert tasks.crashed(str(path)) is None


def test_an_approval_of_a_take_over_is_for_the_log_that_was_shown(golden_copy: Callable[[str], Path]) -> None:
    """Its broker may have been started again, and killed."""
    foreign = golden_copy("rocketmq-3.1.5-killed")
    before = tasks.plan_recovery(str(foreign), take_over=True)["plan_id"]
    os.utime(next((foreign / "commitlog").iterdir()))
    assert tasks.plan_recovery(str(foreign), take_over=True)["plan_id"] != before


def test_nobody_is_asked_about_what_cannot_be_done(golden: Callable[[str], Path]) -> None:
    """What a broker parked it alone can end: twenty people's answers were red tasks."""
    with pytest.raises(broker.StoreError, match="its broker alone can end its transactions: nothing was done"):
        tasks.parked(str(golden("rocketmq-5.3.3-killed")), now_ms=1)


def test_a_decision_that_a_broker_alone_can_carry_out_names_no_take_over(golden: Callable[[str], Path]) -> None:
    """The page said to stop the broker and take its store over, which of a store of 5.x is impossible."""
    with pytest.raises(broker.StoreError, match=r"nothing was done\. Have one checked again by RocketMQ's resume"):
        tasks.resolve(str(golden("rocketmq-5.3.3-killed")), commitlog_offset=0, decision="commit", now_ms=1)


def test_nobody_is_asked_to_exchange_what_a_rebuild_refuses(tmp_path: Path) -> None:
    """The approval was red afterwards; where nothing differed, too, and the question listed no difference."""
    path = shop(tmp_path / "shop", orders=4)
    (path / "commitlog/00000000000001048576.gz").write_bytes(b"an archive")
    found = tasks.compare_table(str(path), now_ms=1)
    assert (found["ok"], found["needed"]) == (False, False)
    assert "named after a segment that is not there" in found["text"]
    spoil_slot(path, 2)
    sentence = r"1 statetable-different, and none of it can be exchanged yet, so nobody was asked: .*Unpack it"
    with pytest.raises(broker.StoreError, match=sentence):
        tasks.compare_table(str(path), now_ms=1)
    (path / "commitlog/00000000000001048576.gz").unlink()
    assert tasks.compare_table(str(path), now_ms=1)["needed"]


def test_nobody_is_asked_to_exchange_files_of_a_broker(golden: Callable[[str], Path]) -> None:
    """The approval was red afterwards: whether the broker runs is not known here."""
    path = str(golden("rocketmq-5.3.3-killed"))
    found = tasks.compare_table(path, now_ms=1)
    assert (found["ok"], found["needed"]) == (False, False)
    assert "--broker-is-stopped" in found["text"]
    assert "queue `consumequeue/RMQ_SYS_TRANS_HALF_TOPIC/0`: 1 missing" in found["text"]
