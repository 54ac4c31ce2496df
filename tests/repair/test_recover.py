"""Recover: what the command shows, and what it does, for a store of each kind."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import broker
from broker.errors import CorruptStore, StoreError
from broker.format.commitlog import encode
from broker.store.disk.files import Disk
from broker.store.disk.paths import Paths
from broker.store.recover.cases import CASES
from broker.store.writer import open_writer
from recovery.cli import repair as verbs_repair
from recovery.cli.declaration import VerbGroup
from recovery.jobs import tasks
from recovery.repair import crash
from recovery.verify.verifier import verify
from tests.house.tree import ROOT
from tests.jobs.shops import killed_shop, tree
from tests.store.build import record
from tests.store.crashed import abandoned, offsets, write_at
from tests.store.filled import SMALL, assert_right, fill, half


def run(*words: object) -> Any:
    """`checkback WORDS` with the verbs of this room alone; errors come as they are."""
    app = VerbGroup()
    verbs_repair.register(app)
    return CliRunner().invoke(app, [str(word) for word in words])


def closed(path: Path, count: int = 30) -> Path:
    store = open_writer(str(path), Disk(), SMALL, sync="os")
    fill(store, 0, count)
    store.close()
    return path


def test_the_plan_says_what_there_is_to_do_and_changes_nothing(tmp_path: Path) -> None:
    end = abandoned(tmp_path, 30, 30)
    write_at(tmp_path, end, bytes.fromhex("000000ffdaa320a7") + b"torn")
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    ran = run("recover", tmp_path)
    assert ran.exit_code == 1
    assert f"at {end}" in ran.output
    assert f"checkback recover {tmp_path} --apply" in ran.output
    said = json.loads(run("recover", tmp_path, "--json").output)
    assert (said["case"], said["needed"]) == ("crashed", True)
    assert [step["step"] for step in said["steps"]] == [
        "keep-aside", "cut-log", "cut-derived", "flush", "replay", "checkpoint", "trust",
    ]  # fmt: skip
    assert said["survey"]["end_offset"] == end
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == before


def test_apply_does_it_and_a_second_time_there_is_nothing_to_do(tmp_path: Path) -> None:
    end = abandoned(tmp_path, 30, 30)
    write_at(tmp_path, end, bytes.fromhex("000000ffdaa320a7") + b"torn")
    ran = run("recover", tmp_path, "--apply", "--json")
    assert ran.exit_code == 0
    assert json.loads(ran.output)["kept"] == [str(tmp_path / "checkback" / "torn" / f"{end:020}")]
    assert_right(tmp_path, 20, 20, 20)
    assert run("recover", tmp_path).exit_code == 0


def test_the_next_step_works_as_it_is_pasted(tmp_path: Path) -> None:
    """Of a store whose path has a space it had a word too many."""
    path = tmp_path / "my store"
    path.mkdir()
    abandoned(path, 30, 30)
    *_, step = run("recover", path).output.splitlines()
    ran = run(*shlex.split(step.partition("checkback ")[2]))
    assert ran.exit_code == 0, ran.output
    assert ran.output.endswith(f"checkback verify {shlex.quote(str(path))}\n")


def test_apply_finishes_what_a_killed_process_left(tmp_path: Path) -> None:
    """It did nothing, and said so; the page went on calling the store crashed, and Airflow's check-back waited."""
    path = killed_shop(tmp_path / "shop", orders=1)
    assert tasks.crashed(str(path)) is not None
    shown = run("recover", path, "--apply")
    assert (shown.exit_code, shown.stdout.splitlines()[1]) == (0, "What killed processes left is finished")
    assert tasks.crashed(str(path)) is None
    assert run("recover", path, "--apply").stdout.splitlines()[1] == "Nothing was done"


def test_a_store_in_use_is_left_alone(tmp_path: Path) -> None:
    store = open_writer(str(tmp_path), Disk(), SMALL, sync="os")
    fill(store, 0, 3)
    made = crash.plan(crash.survey(tmp_path))
    assert made.case.label == "in use"
    assert not crash.apply(made).applied
    assert run("recover", tmp_path).exit_code == 0
    store.append([half(9)])
    store.close()


def test_a_corrupt_log_is_refused_with_its_place(tmp_path: Path) -> None:
    abandoned(tmp_path, 3, 30)
    at = offsets(tmp_path)[40][0]
    write_at(tmp_path, at + 60, b"\x77")
    ran = run("recover", tmp_path)
    assert ran.exit_code == 4
    assert str(at) in ran.output
    with pytest.raises(CorruptStore, match=rf"{at}.*checkback salvage"):
        crash.apply(crash.plan(crash.survey(tmp_path)))


def test_a_store_that_grew_under_another_program_is_taken_over_by_a_word(tmp_path: Path) -> None:
    path = closed(tmp_path)
    end = crash.survey(path).tail.end
    write_at(path, end, encode(record(0, end, topic="Strange")))
    (path / "checkback" / "control").unlink()
    made = crash.plan(crash.survey(path))
    assert made.case.label == "appended by another program"
    with pytest.raises(StoreError, match="--broker-is-stopped"):
        crash.apply(made, still_s=0)
    assert crash.apply(made, broker_is_stopped=True, still_s=0).applied
    assert_right(path, 10, 10, 10)
    with broker.open(path, read_only=True) as store:
        assert store.message("Strange", 0, 0) is not None


@pytest.mark.parametrize("name", ["rocketmq-3.1.5-clean", "rocketmq-3.1.5-killed", "rocketmq-3.1.5-recovered"])
def test_a_store_of_rocketmq_3_is_taken_over_and_written_to(golden_copy: Callable[[str], Path], name: str) -> None:
    """Its transactions stay what they were; ours come behind them, at slots that nobody had."""
    path = golden_copy(name)
    before = verify(path)
    with pytest.raises(StoreError, match="another program"):
        open_writer(str(path), Disk())
    crash.apply(crash.plan(crash.survey(path)), broker_is_stopped=True, still_s=0)
    after = verify(path)
    assert after.ok, [str(finding) for finding in after.findings][:4]
    assert (after.digest, after.transactions) == (before.digest, before.transactions)
    store = open_writer(str(path), Disk(), sync="os")
    fill(store, 0, 30)
    store.close()
    report = verify(path)
    assert report.ok, [str(finding) for finding in report.findings][:4]
    assert report.transactions["total"] == before.transactions["total"] + 30


def test_a_store_of_rocketmq_5_is_taken_over_with_its_engine(golden_copy: Callable[[str], Path]) -> None:
    """Its settled and parked ones are: tests/transaction/test_half_op.py."""
    path = golden_copy("rocketmq-5.3.3-clean")
    before = verify(path).transactions
    crash.apply(crash.plan(crash.survey(path)), broker_is_stopped=True, still_s=0)
    with broker.open(path) as store:
        assert store.writer.dispatcher.engine.name == "half-op"
    report = verify(path)
    assert report.ok, [str(finding) for finding in report.findings][:4]
    assert report.transactions == before


def test_the_plan_for_the_store_of_a_broker_says_what_comes_next(golden_copy: Callable[[str], Path]) -> None:
    path = golden_copy("rocketmq-5.3.3-clean")
    ran = run("recover", path)
    assert ran.exit_code == 1
    assert f"stop the broker, and run:\ncheckback recover {path} --apply --broker-is-stopped" in ran.output
    followed = Path(Paths(str(path)).followed)  # a copy that follows a master is not taken over
    followed.parent.mkdir(exist_ok=True)
    followed.write_text("{}")
    ran = run("recover", path)
    assert ran.exit_code == 1
    assert "--apply" not in ran.output
    assert f"checkback salvage {path} NEW" in ran.output


def test_rebuild_on_the_command_line(golden_copy: Callable[[str], Path]) -> None:
    path = golden_copy("rocketmq-3.1.5-recovered")
    ran = run("rebuild", path)
    assert ran.exit_code == 1
    assert "1241 missing" in ran.output
    said = json.loads(run("rebuild", path, "--json").output)
    assert said["counts"] == {"consumequeue-different": 44, "statetable-different": 68, "statetable-missing": 1241}


def test_the_page_has_the_table_of_cases() -> None:
    """docs/recovery.md explains every case by its sentence, and every kind of difference."""
    from recovery.rebuild.diff import DIFFERENCES

    page = (ROOT / "docs" / "recovery.md").read_text(encoding="utf-8")
    for case in CASES:
        assert f"| {case.label} | {case.sentence} | {case.verdict.value} |" in page, case.label
    for kind, sentence in DIFFERENCES.items():
        assert f"| {kind} | {sentence} |" in page, kind


@pytest.mark.parametrize(
    ("text", "error", "why"),
    [
        (
            '{"version": 3, "sizes": []}',
            StoreError,
            "a version of checkback that this one does not know (3): update it",
        ),
        ('{"version": 1', CorruptStore, "is damaged"),
    ],
)
def test_a_store_of_ours_is_not_called_another_programs(
    text: str, error: type[Exception], why: str, tmp_path: Path
) -> None:
    """Of a later version, or with a damaged store.json: the advice was to take it over, and Airflow's plan said so."""
    path = closed(tmp_path / "shop")
    (path / "checkback/store.json").write_text(text)
    before = tree(path)
    for words in (["recover", path], ["recover", path, "--apply", "--broker-is-stopped"]):
        ran = run(*words)
        assert (type(ran.exception), why in str(ran.exception)) == (error, True), ran.output
    with pytest.raises(error):
        tasks.plan_recovery(str(path), take_over=True)
    assert tree(path) == before
