"""What tasks call: plain functions that may be called again, on real stores."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import create_engine

import broker
from broker.database.ledger_binding import LEDGER_BINDING
from broker.enlisting.ledger_key import LEDGER_KEY, new_key
from broker.ledger import Ledger
from recovery.checkback.ledgers.proof import WrongLedger
from recovery.jobs import rebuilding, recovering, tasks
from recovery.jobs.checks import check_settings
from recovery.jobs.setup import alone, last_report, spark_for
from recovery.verify.verifier import verify
from recovery.views.overview import overview
from tests.jobs.shops import ANSWERS, LATE_MS, SMALL, bodies, in_child, killed_shop, park, shop, spoil_slot, tree


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def test_a_killed_store_is_found_recovered_asked_about_and_verified(tmp_path: Path) -> None:
    """The whole way, with a second run of each step that finds nothing left to do."""
    path, later = str(killed_shop(tmp_path / "shop")), now_ms() + LATE_MS
    assert tasks.crashed(path)
    assert tasks.check_back(path, now_ms=later, resolver=ANSWERS)["did"] == "it crashed, and is recovered first"
    assert tasks.plan_recovery(path)["needed"]
    for _ in range(2):
        tasks.recover(path, now_ms=1)
        assert tasks.crashed(path) is None
        assert not tasks.plan_recovery(path)["needed"]
    asked = tasks.check_back(path, now_ms=later, resolver=ANSWERS)
    assert (asked["committed"], asked["rolled_back"]) == (5, 5)
    assert tasks.check_back(path, now_ms=later, resolver=ANSWERS)["did"] == "nothing is in doubt"
    report = tasks.verify(path, now_ms=2)
    assert report["ok"]
    assert report["transactions"] == {"total": 12, "committed": 6, "rolled_back": 6, "in_doubt": 0, "parked": 0}
    assert sorted(bodies(tmp_path / "shop")) == sorted(b"order %d" % number for number in (0, 2, 4, 6, 8, 11))


def test_a_store_that_is_open_has_not_crashed(tmp_path: Path) -> None:
    """The file abort is there while a process has the store open."""
    with broker.open(str(tmp_path / "shop")):
        assert (tmp_path / "shop/abort").exists()
        assert tasks.crashed(str(tmp_path / "shop")) is None


def test_a_pass_that_finds_nothing_writes_nothing(tmp_path: Path) -> None:
    """Not even the time of a file changes; no directory appears."""
    path = shop(tmp_path / "shop", orders=0)
    before = tree(path)
    assert tasks.check_back(str(path), now_ms=now_ms())["did"] == "nothing is in doubt"
    assert tree(path) == before


def test_nobody_to_ask_is_said(tmp_path: Path) -> None:
    """Settings without a ledger and without a resolver."""
    path = shop(tmp_path / "shop", orders=1)
    with pytest.raises(broker.BrokerError, match="nobody is named who could answer"):
        tasks.check_back(str(path), now_ms=now_ms() + LATE_MS)


def test_a_wrong_database_is_said_before_a_check_is_due_too(tmp_path: Path) -> None:
    ledgers = {name: Ledger(create_engine(f"sqlite:///{tmp_path / name}.db")) for name in ("right", "wrong")}
    for ledger in ledgers.values():
        ledger.create_all()
    path = str(tmp_path / "shop")
    with broker.open(path, layout=SMALL) as store:
        store.producer("shop", topics=["orders"], ledger=ledgers["right"])
        extra = {LEDGER_KEY: new_key(now_ms()), LEDGER_BINDING: ledgers["right"].binding(store.store_id).binding_id}
        store.transactions.prepare(broker.Message("orders", b"x"), "shop", extra_properties=extra)
    for when in (now_ms(), now_ms() + LATE_MS):
        with pytest.raises(WrongLedger, match=r"nothing was decided: .* is not bound to this store"):
            tasks.check_back(path, now_ms=when, ledger=f"sqlite:///{tmp_path}/wrong.db")
    assert tasks.check_back(path, now_ms=now_ms(), ledger=f"sqlite:///{tmp_path}/right.db")["waiting"] == 1


def test_a_path_without_a_store_stays_without_one(tmp_path: Path) -> None:
    """No task makes a store where there is none."""
    for work in (
        lambda path: tasks.check_back(path, now_ms=1),
        lambda path: tasks.verify(path, now_ms=1),
        lambda path: tasks.resolve(path, commitlog_offset=0, decision="commit", now_ms=1),
        lambda path: tasks.recover(path, now_ms=1),
        lambda path: tasks.rebuild_table(path, now_ms=1),
        lambda path: tasks.retain(path, now_ms=1, keep="1s"),
        lambda path: tasks.parked(path, now_ms=1),
    ):
        with pytest.raises(broker.NotAStore):
            work(str(tmp_path / "nothing"))
        assert not (tmp_path / "nothing").exists()


def test_what_airflow_is_given_is_small(tmp_path: Path) -> None:
    """MySQL holds 64 KiB of an approval: long keys made it longer, and nobody could be asked."""
    keys, path = ["k" * 900] * 30, tmp_path / "shop"

    def traffic() -> None:
        store = broker.open(str(path), layout=SMALL)
        for _ in range(25):
            store.transactions.prepare(broker.Message("orders", b"body", keys=keys), "shop")
        os.kill(os.getpid(), signal.SIGKILL)

    in_child(traffic)
    for number in range(100):
        (path / "commitlog" / f"notes {number}").mkdir()
    assert len(json.dumps(tasks.verify(str(path), now_ms=0))) < 20_000
    assert len(tasks.plan_recovery(str(path))["text"]) < 20_000
    tasks.recover(str(path), now_ms=0)
    park(path)
    found = tasks.parked(str(path), now_ms=0)
    assert len(json.dumps(found)) < 60_000
    assert "and 25 more" in found[0]["body"]


def test_a_person_decides_about_what_is_parked(tmp_path: Path) -> None:
    """Commit once, whatever is asked afterwards; the why and the who are in the store."""
    from recovery.views.overview import story

    shop(tmp_path / "shop", orders=3)
    first, second, third = park(tmp_path / "shop")
    path = str(tmp_path / "shop")
    listed = tasks.parked(path, now_ms=now_ms())
    assert [one["commitlog_offset"] for one in listed] == [first, second, third]
    assert "nobody knew" in listed[0]["body"]
    (only,) = tasks.parked(path, now_ms=now_ms(), only=second)
    assert (only["commitlog_offset"], only["subject"]) == (second, listed[1]["subject"])

    def decide(commitlog_offset: int, decision: str) -> str:
        found = tasks.resolve(
            path, commitlog_offset=commitlog_offset, decision=decision, now_ms=now_ms(), why="paid", by="ada"
        )
        return str(found["result"])

    assert decide(first, "commit") == "committed"
    assert decide(first, "commit") == "unchanged"
    assert decide(first, "rollback") == "refused"
    assert decide(second, "ask-again") == "unparked"
    assert decide(third, "leave") == "unchanged"
    assert bodies(tmp_path / "shop") == [b"order 0"]
    end = story(path, first)[-1]
    assert (end["what"], end["why"], end["by"]) == ("committed", "paid", "ada")
    counts = overview(path, now_ms()).counts
    assert counts == {"in_doubt": 1, "committed": 1, "rolled_back": 0, "parked": 1}


def test_a_wrong_slot_is_found_and_mended_once(tmp_path: Path) -> None:
    """Verify and compare both see it; the exchange is done once, a second rebuild finds nothing to do."""
    path = str(killed_shop(tmp_path / "shop"))
    tasks.recover(path, now_ms=1)
    spoil_slot(tmp_path / "shop", 2)
    assert tasks.verify(path, now_ms=2)["counts"] == {"slot-wrong-state": 1}
    compared = tasks.compare_table(path, now_ms=3)
    assert compared["needed"]
    assert "statetable" in compared["text"]
    assert tasks.rebuild_table(path, now_ms=4)["applied"]
    assert not tasks.rebuild_table(path, now_ms=5)["applied"]
    assert tasks.verify(path, now_ms=6)["ok"]
    assert not tasks.compare_table(path, now_ms=7)["needed"]


@pytest.mark.parametrize("damage", [b"\xff" * 20, None])
def test_no_exchange_is_offered_on_a_damaged_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: bytes | None
) -> None:
    """Spark showed what differs, a person approved it, and the rebuild then refused it."""
    monkeypatch.setattr(rebuilding, "verified", lambda path, _spark: verify(path).as_json())
    path = shop(tmp_path / "shop")
    segment = path / "commitlog" / f"{0:020}"
    if damage is None:  # one is missing in the middle
        shutil.copy(segment, segment.with_name(f"{2 << 20:020}"))
    else:
        with segment.open("r+b") as file:
            file.seek(400)
            file.write(damage)
    for compare in (rebuilding._compared, lambda path: rebuilding._compared_on_spark(path, None)):
        with pytest.raises(broker.CorruptStore, match=r"CommitLog offset .* is not better\. Run: checkback salvage"):
            compare(str(path))


def test_what_cannot_be_exchanged_is_said_before_it_is_approved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By both engines: an entry that nobody understands is in the way."""
    monkeypatch.setattr(rebuilding, "verified", lambda path, _spark: verify(path).as_json())
    path = shop(tmp_path / "shop")
    spoil_slot(path, 3)
    (path / "consumequeue" / "orders" / "0").mkdir(parents=True, exist_ok=True)
    (path / "consumequeue" / "orders" / "0" / "mystery").mkdir()
    for compare in (rebuilding._compared, lambda path: rebuilding._compared_on_spark(path, None)):
        report, _, _ = compare(str(path))
        assert (report["ok"], "mystery" in report["refusal"]) == (False, True)


def test_reports_are_kept_and_the_last_one_is_found(tmp_path: Path) -> None:
    """A retry writes the same file."""
    from recovery.jobs.setup import last_report

    path = shop(tmp_path / "shop")
    for _ in range(2):
        kept = tasks.verify(str(path), now_ms=17)["report"]
        assert json.loads(Path(kept).read_text())["now_ms"] == 17
    assert sorted(os.listdir(path / "checkback/reports")) == ["verify-17.json", "verify-latest.json"]
    assert last_report(str(path))["transactions"]["in_doubt"] == 10


@pytest.mark.parametrize(("store", "ours"), [(0o2775, 0o770), (0o775, 0o700), (0o700, 0o700)])
def test_reports_and_leases_are_the_groups_where_the_store_is(tmp_path: Path, store: int, ours: int) -> None:
    """A second user saw "not verified yet", kept no report, and took a lease that the first one held."""
    path, before = tmp_path / "shop", os.umask(0o002)
    try:
        path.mkdir()
        path.chmod(store)
        tasks.verify(str(shop(path, orders=1)), now_ms=1)
    finally:
        os.umask(before)
    made = [path / "checkback" / name for name in ("reports", "leases")]
    assert [oct(one.stat().st_mode & 0o777) for one in made] == [oct(ours)] * 2


def test_two_verifications_at_once_do_not_run(tmp_path: Path) -> None:
    """The second is told to wait; when the first dies its lease is free."""
    path = shop(tmp_path / "shop")
    with alone(str(path), "verify"):

        def second() -> None:
            try:
                tasks.verify(str(path), now_ms=1)
            except broker.StoreLocked:
                os._exit(7)

        assert os.waitstatus_to_exitcode(in_child(second)) == 7
    assert tasks.verify(str(path), now_ms=1)["ok"]


def test_a_store_that_rocketmq_wrote_is_never_recovered_unasked(golden_copy: Callable[[str], Path]) -> None:
    """The plan says that a person must say so."""
    plan = tasks.plan_recovery(str(golden_copy("rocketmq-3.1.5-killed")), take_over=True)
    assert plan["needed"]
    assert plan["must_ask"]
    assert not tasks.plan_recovery(str(golden_copy("rocketmq-3.1.5-clean")))["needed"]


def test_what_is_in_doubt_for_long_is_told(golden: Callable[[str], Path], tmp_path: Path) -> None:
    """Both generations; what is parked does not count."""
    path = str(golden("rocketmq-5.3.3-killed"))
    assert tasks.in_doubt_longer(path, 10.0, now_ms())["count"] == 91
    assert tasks.in_doubt_longer(path, 1e9, now_ms()) is None
    shop(tmp_path / "shop", orders=2)
    park(tmp_path / "shop")
    assert tasks.in_doubt_longer(str(tmp_path / "shop"), 0.0, now_ms() + LATE_MS) is None


def test_more_in_doubt_than_a_look_reads_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 1,500 the event said 1,000, and no more."""
    path = str(shop(tmp_path / "shop", orders=5))
    monkeypatch.setattr(tasks, "LATE_LOOKED_AT", 3)
    found = tasks.in_doubt_longer(path, 0.0, now_ms() + LATE_MS)
    assert found is not None
    assert (found["count"], found["omitted"]) == (3, 2)


def test_a_connection_is_tested(tmp_path: Path) -> None:
    """A sentence about what works; see also test_checks.py."""
    path = shop(tmp_path / "shop", orders=4)
    assert "4 transactions in doubt" in check_settings(str(path))


def test_a_verification_says_when_it_was_due_and_when_it_was_done(tmp_path: Path) -> None:
    """A run that was due last night and ran this morning is not shown as last night's."""
    path, before = str(shop(tmp_path / "shop", orders=1)), now_ms()
    done_ms = tasks.verify(path, now_ms=5)["done_ms"]
    report = last_report(path)
    assert report is not None
    assert (report["now_ms"], report["done_ms"]) == (5, done_ms)
    assert before <= done_ms <= now_ms()


def test_auto_goes_on_without_spark_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A master that cannot be reached: the local engine does it. Who chose Spark is refused instead."""
    from recovery.spark import sessions

    def refused(*_: object, **__: object) -> None:
        raise sessions.SparkNotReady("no master at yarn")

    monkeypatch.setattr(sessions, "running", refused)
    path = str(shop(tmp_path / "shop", orders=1))
    assert tasks.verify(path, now_ms=1, engine="auto", master="yarn")["engine"] == "local"
    assert "the local engine does the work: no master at yarn" in caplog.text
    with pytest.raises(sessions.SparkNotReady):
        tasks.verify(path, now_ms=1, engine="spark", master="yarn")
    with pytest.raises(broker.BrokerError, match="engine cannot be 'sprak': it is one of auto, local, spark"):
        tasks.verify(path, now_ms=1, engine="sprak")


def test_one_spark_at_a_time_has_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With Java, `checkback up` started one for each slot of Airflow: a JVM of a gigabyte and all processors, each."""
    from recovery.spark import sessions

    monkeypatch.setenv("CHECKBACK_STATE", str(tmp_path / "state"))
    monkeypatch.setattr(sessions, "running", lambda *_, **__: contextlib.nullcontext("a session"))
    with spark_for("auto", "local[*]") as first, spark_for("auto", "local[2]") as second:
        assert (first, second) == ("a session", None)
        for engine, master in (("spark", "local[*]"), ("auto", "spark://host:7077")):  # who chose it; on other machines
            with spark_for(engine, master) as other:
                assert other is not None
    with spark_for("auto", "local[*]") as again:
        assert again is not None


def test_a_report_that_cannot_be_kept_is_an_error_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With the file and the reason; the verification itself counts."""
    path = shop(tmp_path / "shop", orders=1)
    (path / "checkback/reports").write_text("a file is in the way")
    found = tasks.verify(str(path), now_ms=1)
    assert (found["ok"], found["report"]) == (True, None)
    assert "cannot be kept: " in caplog.text


def test_nothing_is_written_into_a_store_of_another_program(
    golden_copy: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its leases and reports are under CHECKBACK_STATE."""
    monkeypatch.setenv("CHECKBACK_STATE", str(tmp_path / "state"))
    path = golden_copy("rocketmq-3.1.5-killed")
    before = tree(path)
    tasks.verify(str(path), now_ms=1)
    tasks.compare_table(str(path), now_ms=1)
    assert tasks.retain(str(path), now_ms=1, keep="1s")["did"].startswith("another program wrote it")
    assert tree(path) == before
    assert last_report(str(path)) is not None
    assert list((tmp_path / "state").rglob("verify-latest.json"))


def test_a_user_without_a_home_makes_no_directory_of_that_name(
    golden_copy: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A directory `~` was made wherever the process stood, as of a container's user that no passwd names."""
    for name in ("CHECKBACK_STATE", "XDG_STATE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    monkeypatch.chdir(tmp_path)
    path = golden_copy("rocketmq-3.1.5-killed")
    found = tasks.verify(str(path), now_ms=1)
    assert (found["records"] > 0, found["report"], last_report(str(path))) == (True, None, None)
    assert "has no home directory: set CHECKBACK_STATE" in caplog.text
    assert not (tmp_path / "~").exists()


@pytest.mark.parametrize("name", ["rocketmq-3.1.5-killed", "rocketmq-5.3.3-killed"])
def test_a_take_over_that_is_offered_can_be_done(name: str, golden_copy: Callable[[str], Path]) -> None:
    """In both generations; the report says what was done and who approved it, and there is nothing left to do."""
    path = str(golden_copy(name))
    assert not tasks.plan_recovery(path)["needed"]
    plan = tasks.plan_recovery(path, name="shop", take_over=True)
    assert plan["needed"]
    assert tasks.recover(path, now_ms=1, broker_is_stopped=True, expected=plan["plan_id"], by="ada")["applied"]
    report = last_report(path, "recover-latest.json")
    assert report is not None
    assert (report["applied"], report["approved_by"]) == (True, "ada")
    assert not tasks.plan_recovery(path, take_over=True)["needed"]


@pytest.mark.parametrize("is_opened_again", [False, True])
def test_a_store_that_is_closed_during_the_look_did_not_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_opened_again: bool
) -> None:
    """The mark was there, and a moment later nobody had it open: a recovery was offered, or the look failed."""
    path = killed_shop(tmp_path / "shop", orders=1)
    assert tasks.crashed(str(path)) is not None

    def closed_now(_: str) -> bool:
        (path / "of the next").touch()
        (path / "abort").rename(path / "of the last")
        if is_opened_again:
            (path / "of the next").rename(path / "abort")
        return False

    monkeypatch.setattr(recovering, "is_held", closed_now)
    assert tasks.crashed(str(path)) is None
