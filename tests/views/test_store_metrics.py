"""`checkback metrics`: what it prints is the text format of Prometheus, with right numbers."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

import broker
from broker.app.handler_runs import HandlerTotals
from broker.server.metrics import exposition
from broker.testing.fixtures import SMALL
from broker.transaction.events import TransactionState
from recovery.checkback.catalog import Catalog
from recovery.checkback.manual import resolve
from recovery.checkback.policy import Policy, Rule
from recovery.checkback.protocol import Answer, Outcome, Question
from recovery.checkback.round import CheckBack
from recovery.metrics.work_metrics import run_samples
from tests.cli.command import command
from tests.house.tree import ROOT

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
TYPE = re.compile(rf"# TYPE ({NAME}) (counter|gauge)")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"')
SAMPLE = re.compile(rf"({NAME})\{{((?:{LABEL.pattern},?)*)\}} (-?[0-9.e+-]+)")

Labels = tuple[tuple[str, str], ...]


def parse(text: str) -> dict[tuple[str, Labels], float]:
    """The samples of an exposition, by its grammar; anything else fails. Of each name there is one block."""
    found: dict[tuple[str, Labels], float] = {}
    typed: list[str] = []
    assert text.endswith("\n")
    for line in text.splitlines():
        if head := TYPE.fullmatch(line):
            assert head[1] not in typed, f"{head[1]} has two blocks"
            typed.append(head[1])
            assert head[2] == "gauge" or head[1].endswith(("_total", "_offset")), line
            continue
        sample = SAMPLE.fullmatch(line)
        assert sample, line
        assert sample[1] == typed[-1], f"{line} is not below its type"
        key = (sample[1], tuple(sorted(LABEL.findall(sample[2]))))
        assert key not in found, f"{line} is there twice"
        found[key] = float(sample[5])
    return found


def test_the_numbers_are_those_of_the_store(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], each_engine: str
) -> None:
    path = tmp_path / "store"
    with broker.open(path, layout=SMALL) as store:
        for _ in range(3):
            store.append(broker.Message("orders", b"secret-body", keys=["secret-key"]))
        halves = [store.transactions.prepare(broker.Message("orders", b"x"), "shop") for _ in range(4)]
        store.transactions.commit(halves[0])
        store.transactions.park(halves[1], "a test")
        with store.consumer("billing", "orders", max_retries=0) as consumer:
            first, second = consumer.receive(20), consumer.receive(20)
            assert first is not None
            assert second is not None
            consumer.ack(first)
            consumer.retry(second, reason="no")
        store.pause_group("billing")
    ran = command(capsys, "metrics", path)
    assert ran.code == 0, ran.err
    found = parse(ran.out)
    billing, orders = ("group", "billing"), ("topic", "orders")
    assert found["checkback_transactions_in_doubt", ()] == 3
    assert found["checkback_transactions_parked", ()] == 1
    assert found["checkback_transactions_total", ()] == 4
    assert 0 <= found["checkback_in_doubt_oldest_seconds", ()] < 300
    assert found["rocketmq_producer_offset", (orders,)] == 4
    assert found["rocketmq_group_diff", (billing, orders)] == 2
    assert found["rocketmq_consumer_offset", (billing, orders)] == 2
    assert found["checkback_group_paused", (billing,)] == 1
    assert found["checkback_dead_letters", (billing,)] == 1
    assert found["checkback_not_durable_bytes", ()] == 0
    assert found["checkback_store_bytes", ()] > 1 << 20
    assert "secret" not in ran.out
    asked = re.findall(
        rf"\b(?:checkback|rocketmq)_{NAME}",
        " ".join(target["expr"] for panel in _dashboard()["panels"] for target in panel["targets"]),
    )
    assert len(asked) >= len(_dashboard()["panels"])
    of_exporters = {f"checkback_{one}_seconds_bucket" for one in ("append", "sync")}  # see test_metrics_exporter.py
    of_workers = {name for name, *_ in run_samples([HandlerTotals("billing", "shop.charge")])}
    assert of_workers & set(asked)  # their numbers: tests/workers/test_work_metrics.py
    of_check_back = {"checkback_decisions_total"}  # see below
    assert set(asked) <= {name for name, _ in found} | of_exporters | of_workers | of_check_back, (
        "the dashboard asks for what is not measured"
    )


def _dashboard() -> dict[str, list[dict[str, list[dict[str, str]]]]]:
    found: dict[str, list[dict[str, list[dict[str, str]]]]] = json.loads((ROOT / "docs" / "grafana.json").read_text())
    return found


class Told:
    """Says of each half message what it is to say; of others that nobody knows."""

    def __init__(self, outcomes: dict[int, Outcome]) -> None:
        self.outcomes = outcomes

    def ask(self, questions: Sequence[Question], _now_ms: int) -> list[Answer]:
        said = [self.outcomes.get(one.half.commitlog_offset, Outcome.UNKNOWN) for one in questions]
        return [Answer(outcome, "told so") for outcome in said]


def test_who_decided_is_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str], each_engine: str) -> None:
    path = tmp_path / "store"
    with broker.open(path, layout=SMALL) as store:
        for _ in range(2):  # the counters go on
            made = [store.transactions.prepare(broker.Message("orders", b"x"), "shop") for _ in range(6)]
            halves = [store.transactions.half(one.commitlog_offset) for one in made]
            outcomes = [Outcome.COMMITTED, Outcome.COMMITTED, Outcome.ROLLED_BACK]
            told = Told({half.commitlog_offset: one for half, one in zip(halves, outcomes, strict=False)})
            with closing(Catalog.open(str(path), store.store_id)) as catalog:
                policy = Policy(Rule(jitter=0.0, most_checks=1))
                check = CheckBack(store, told, policy=policy, catalog=catalog)
                for later in (1, 2):
                    check.round(check.now_ms() + later * 3_600_000)
                resolve(
                    store, halves[3:4], TransactionState.ROLLED_BACK, why="lost", by="ada", now_ms=1, catalog=catalog
                )
                store.transactions.commit(halves[4])
    found = parse(command(capsys, "metrics", path).out)
    counts = {labels: count for (name, labels), count in found.items() if name == "checkback_decisions_total"}
    assert {tuple(value for _, value in labels): count for labels, count in counts.items()} == {
        ("check-back", "committed"): 4,
        ("check-back", "parked"): 6,
        ("check-back", "rolled_back"): 2,
        ("person", "rolled_back"): 2,
    }


def test_large_numbers_are_exact() -> None:
    """A queue offset of seven digits is not rounded to six."""
    text = exposition(iter([("a_total", "counter", {}, 12_345_678_901), ("b", "gauge", {}, 0.1)]))
    assert parse(text) == {("a_total", ()): 12_345_678_901.0, ("b", ()): 0.1}
    assert "12345678901" in text


def test_a_store_that_is_not_there_is_not_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ran = command(capsys, "metrics", tmp_path / "none")
    assert (ran.code, ran.out) == (2, "")
    assert not (tmp_path / "none").exists()


def test_several_stores_have_no_sample_in_common(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """node_exporter's textfile collector showed one of them: nobody was alerted about the other."""
    seen: set[tuple[str, Labels]] = set()
    for name in ("shop", "billing"):
        with broker.open(str(tmp_path / name), layout=SMALL) as store:
            store.append(broker.Message("orders", b"1"))
        found = parse(command(capsys, "metrics", tmp_path / name, "--label", f"store={name}").out)
        assert all(("store", name) in labels for _, labels in found)
        assert not seen & found.keys()
        seen |= found.keys()


@pytest.mark.parametrize(
    ("label", "why"),
    [
        ("shop", "not NAME=VALUE"),
        ("my-store=a", "cannot name a label"),
        ("__a=b", "nor __"),
        ("group=a", "of their own"),
    ],
)
def test_a_label_that_prometheus_does_not_take(
    label: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = command(capsys, "metrics", tmp_path, "--label", label)
    assert (ran.code, ran.out) == (2, "")
    assert why in ran.err
