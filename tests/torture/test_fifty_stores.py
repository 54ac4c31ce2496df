"""A deployment of fifty stores, four of them out of order, whose parts are killed in turn: `tests.torture.deployment`.

An hour in `make torture`; CHECKBACK_DEPLOYMENT_S=300 makes it five minutes.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

import broker
from broker.format.sysflag import TransactionType
from recovery.jobs import tasks
from recovery.verify.verifier import verify
from recovery.views.overview import overview
from tests.jobs.shops import bodies, tree
from tests.ledger import postgres
from tests.torture.deployment import HEALTHY, PARTS, READY_S, Deployment, Hook, traffic

DURATION_S = float(os.environ.get("CHECKBACK_DEPLOYMENT_S", "3600"))
SALE_EVERY_S = 6.0
KILL_EVERY_S = 45.0
LONGEST_S = 600.0  # from a half message to its end, on a busy machine: a killed scheduler, and the task that it lost
SETTLED_S = 900.0  # parallelism is 4, and a busy machine starts a task in half a minute

pytestmark = [
    pytest.mark.timeout(int(DURATION_S) + 3000),
    pytest.mark.skipif(bool(postgres.missing()), reason=postgres.missing()),
]


def row_counts(socket_directory: Path) -> Counter[str]:
    """The rows of each table of Airflow's database."""
    with psycopg.connect(f"host={socket_directory} user=shop dbname=postgres") as connection:
        names = [name for (name,) in connection.execute("select tablename from pg_tables where schemaname = 'public'")]
        counted = {name: connection.execute(f'select count(*) from "{name}"').fetchone() for name in names}  # noqa: S608
    return Counter({name: row[0] for name, row in counted.items() if row})


def test_fifty_stores_are_served_while_parts_are_killed(tmp_path: Path, golden_copy: Callable[[str], Path]) -> None:
    """Each order is decided once, a crash asks by the hook and recovers, nothing is written into a foreign store."""
    foreign, hook = golden_copy("rocketmq-3.1.5-killed"), Hook()
    untouched = tree(foreign)
    with postgres.server() as socket_directory:
        made = Deployment(tmp_path, socket_directory, foreign, hook)
        try:
            with (tmp_path / "migrate.log").open("wb") as log:
                assert made.airflow.child(["-m", "airflow", "db", "migrate"], log).wait(READY_S) == 0
            for part in PARTS:
                made.start(part)
            made.until(lambda: not made.rest.unhealthy(), READY_S)
            wanted = {f"{name}.check_back" for name in (*made.healthy, "crashed", "foreign", "gone")} | {
                "typo.settings"
            }
            made.until(lambda: wanted <= set(made.rest.dag_ids()), READY_S)
            before = row_counts(socket_directory)
            killed, sold = run_it(made)
            report_rows(before, row_counts(socket_directory), killed)
            check_healthy(made, sold)
            check_out_of_order(made, hook)
        finally:
            made.stop()
            hook.close()
    assert tree(foreign) == untouched
    assert not made.airflow.left()


def run_it(made: Deployment) -> tuple[Counter[str], dict[str, list[int]]]:
    """Traffic for the duration, and a kill every now and then: what was killed, and the orders of each store."""
    chance, killed = random.Random(1), Counter[str]()
    victims = [*PARTS, "worker"]
    with traffic(made, SALE_EVERY_S) as log:
        end, next_kill = time.monotonic() + DURATION_S, time.monotonic() + KILL_EVERY_S
        while time.monotonic() < end:
            time.sleep(1)
            if time.monotonic() < next_kill:
                continue
            victim = victims[killed.total() % len(victims)]
            if victim != "worker":
                made.kill(victim)
            elif not made.kill_a_task(chance):
                continue
            killed[victim] += 1
            next_kill = time.monotonic() + KILL_EVERY_S
    sold: dict[str, list[int]] = {}
    for line in log.read_text().splitlines():
        path, number = json.loads(line)
        sold.setdefault(path, []).extend((number, number + 1))
    assert sum(map(len, sold.values())) > DURATION_S / SALE_EVERY_S / 2
    return killed, sold


def check_healthy(made: Deployment, sold: dict[str, list[int]]) -> None:
    """Nothing stays in doubt; the even orders were delivered, each once; every store verifies."""

    def settled() -> bool:
        return all(not overview(str(path), 0).counts["in_doubt"] for path in made.healthy.values())

    made.until(settled, SETTLED_S)
    for path in made.healthy.values():
        expected = [b"order %d" % number for number in sold.get(str(path), []) if number % 2 == 0]
        assert sorted(bodies(path)) == sorted(expected), path
        assert verify(path).ok, path
    assert len(sold) > HEALTHY / 4
    waited = sorted(one for path in made.healthy.values() for one in waits_s(path))
    shares = {p: waited[len(waited) * p // 100] for p in (50, 90, 99)}
    print(json.dumps({"orders": len(waited), "waited_s": shares, "longest_s": waited[-1]}))
    assert waited[-1] < LONGEST_S, "a store was not served for a while"


def waits_s(path: Path) -> Iterator[float]:
    """How long each transaction of a store was in doubt, in seconds."""
    prepared: dict[int, int] = {}
    with broker.open(str(path), read_only=True) as store:
        for record in store.records():
            if record.transaction_type is TransactionType.PREPARED:
                prepared[record.commitlog_offset] = record.store_timestamp_ms
            elif record.transaction_type is not TransactionType.NONE:
                yield (record.store_timestamp_ms - prepared[record.prepared_transaction_offset]) / 1000


def check_out_of_order(made: Deployment, hook: Hook) -> None:
    """The mistake and the missing store raise alerts; the crash waits for its approval, and is recovered by it."""
    assert hook.about("typo", "ask cannot be 'true'")
    assert hook.about("crashed", "an answer is needed"), "the approval was announced"
    assert tasks.crashed(str(made.crashed)), "without an approval nothing is recovered"
    (question,) = made.until(made.questions, READY_S)
    assert question["task_instance"]["dag_id"] == "crashed.recover_after_crash"
    made.approve(question)
    made.until(lambda: not tasks.crashed(str(made.crashed)), READY_S)
    lines = {one["name"]: one for one in made.rest.ask("GET", "/checkback/api/stores")}
    assert "no such directory" in lines["gone"]["error"]
    assert "ask cannot be" in lines["typo"]["error"]
    assert lines["foreign"]["error"] is None
    assert len(lines) == HEALTHY + 4


def report_rows(before: Counter[str], after: Counter[str], killed: Counter[str]) -> None:
    """What the duration added to Airflow's database."""
    added = {name: count - before[name] for name, count in sorted(after.items()) if count != before[name]}
    print(json.dumps({"seconds": DURATION_S, "killed": killed, "rows": sum(added.values()), "by_table": added}))
