"""`checkback work --metrics`: one page, right over all processes, also over those that were killed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from broker.app.handler_runs import BOUNDS_S, HandlerRuns, HandlerTotals, RunOutcome, summed
from recovery.metrics.work_metrics import SharedRuns, WorkPage
from tests.cli.command import command
from tests.cluster.waiting import awaited
from tests.house.tree import ROOT

SHOP = """
import sys
from sqlalchemy import create_engine
from sqlalchemy.orm import Session
import broker
from broker.testing.fixtures import SMALL

engine = create_engine("sqlite:///shop.db", connect_args={"timeout": 30})
app = broker.App("shop.store", engine=engine, layout=SMALL, sync="os")

@app.on("orders", group="billing", retry=broker.Retry(3, delays_s=(0.05,)))
def charge(item: str, session: Session) -> None:
    if item == "bad":
        raise ValueError("no such card")

@app.on("orders", group="audit")
def note(item: str) -> None:
    pass

if __name__ == "__main__":
    with app.transaction():
        for item in sys.argv[1:]:
            app.send("orders", item)
    app.close()
"""
SAMPLE = re.compile(r"([a-z_]+)\{(.*)\} (\S+)")
Numbers = dict[tuple[str, str], float]


def place(directory: Path, *items: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "shop.py", *items], cwd=directory, env=environment, check=True, timeout=120)


def numbers(address: str) -> Numbers:
    """The samples by name and the rest of their labels' text."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as answer:
        found = [SAMPLE.fullmatch(line) for line in answer.read().decode().splitlines() if not line.startswith("#")]
    return {(one[1], one[2]): float(one[3]) for one in found if one}


def of_group(found: Numbers, name: str, group: str) -> float:
    """A sum over the samples of a name that are of a group."""
    return sum(value for (own, labels), value in found.items() if own == name and f'group="{group}"' in labels)


@contextmanager
def working(directory: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The command, and the address of its page."""
    words = [sys.executable, "-m", "recovery.cli", "work", "shop:app", "--metrics", "127.0.0.1:0", *options]
    environment = {**os.environ, "PYTHONPATH": f"{directory}:{ROOT}"}
    log = directory / "log"
    with (
        log.open("w") as err,
        subprocess.Popen(words, cwd=directory, env=environment, stderr=err, text=True) as process,
    ):
        try:
            assert awaited(lambda: "/metrics" in log.read_text(), 60), log.read_text()
            address = re.search(r"http://(\S+)/metrics", log.read_text())
            assert address is not None
            yield process, address[1]
        finally:
            process.kill()


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.sample("options1")
@pytest.mark.parametrize("options", [(), ("--processes", "2")])
def test_the_page_is_right_over_all_processes(options: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    place(tmp_path, *[f"item-{number}" for number in range(20)], "bad")
    with working(tmp_path, *options) as (process, address):

        def is_(name: str, group: str, value: float) -> Callable[[], bool]:
            return lambda: of_group(numbers(address), f"checkback_handler_{name}", group) == value

        assert awaited(is_("handled_total", "billing", 20), 60), numbers(address)
        assert awaited(is_("dead_lettered_total", "billing", 1), 60), numbers(address)
        assert awaited(is_("handled_total", "audit", 21), 60)
        found = numbers(address)
        retried = of_group(found, "checkback_handler_retried_total", "billing")
        assert retried >= 2
        assert of_group(found, "checkback_handler_failed_total", "billing") == retried + 1
        assert of_group(found, "checkback_handler_seconds_count", "billing") == 21 + retried
        assert of_group(found, "checkback_handler_seconds_sum", "billing") > 0
        assert of_group(found, "checkback_handler_failed_total", "audit") == 0
        assert awaited(lambda: lag(numbers(address)) == 0, 30), "the store's own samples, positions at most 5 s old"
        assert awaited(lambda: numbers(address)["checkback_dead_letters", 'group="billing"'] == 1, 30)
        if options:
            os.kill(children(process.pid)[0], signal.SIGKILL)
            place(tmp_path, "lamp", "chair")
            assert awaited(is_("handled_total", "billing", 22), 60), numbers(address)
            assert awaited(is_("handled_total", "audit", 23), 60), numbers(address)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, (tmp_path / "log").read_text()


def lag(found: Numbers) -> float:
    """The lag of billing; -1 while the store's samples are not there."""
    return found.get(("rocketmq_group_diff", 'group="billing",topic="orders"'), -1.0)


def test_what_processes_that_ended_did_stays_in_the_sums(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    gone = HandlerTotals("billing", "shop.charge").with_run(RunOutcome.HANDLED, 0.2)
    (tmp_path / f"{ended.pid}.runs").write_text(json.dumps([gone.as_json()]))
    living, page = SharedRuns(str(tmp_path)), WorkPage(str(tmp_path))
    living.runs.add("billing", "shop.charge", RunOutcome.RETRIED, 100.0)
    living.publish(None)
    for _ in range(2):
        (total,) = page.totals()
        assert (total.handled, total.retried, total.failed, total.seconds) == (1, 1, 1, 100.2)
        assert (sum(total.buckets), total.buckets[-1], total.buckets[BOUNDS_S.index(0.25)]) == (2, 1, 1)
        assert [name for name in os.listdir(tmp_path) if name.endswith(".runs")] == [f"{os.getpid()}.runs"]


def test_sums_are_by_group_and_handler() -> None:
    runs = HandlerRuns()
    runs.expect("billing", "shop.charge")
    for outcome in RunOutcome:
        runs.add("audit", "shop.note", outcome, 0.001)
    found = summed([*runs.read(), *runs.read()])
    assert [(one.group, one.handled, one.retried, one.dead_lettered) for one in found] == [
        ("audit", 2, 2, 2), ("billing", 0, 0, 0),
    ]  # fmt: skip
    assert found[0].buckets[0] == 6  # a bound belongs to its bucket


@pytest.mark.parametrize("address", ["9464x", "127.0.0.1:", "127.0.0.1:70000"])
def test_an_address_that_is_none_is_one_sentence(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    ran = command(capsys, "work", "shop:app", "--metrics", address)
    assert ran.code == 2
    assert "HOST:PORT such as 127.0.0.1:9464" in ran.err
