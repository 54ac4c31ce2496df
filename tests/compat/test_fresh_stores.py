"""Fresh stores of real RocketMQ brokers, made with random parameters, judged against what their clients wrote down.

`make compat` runs this: it needs Java 17, Maven and some minutes. A failed test's name ends with its seed: set
CHECKBACK_COMPAT_SEED to it for the same parameters again, CHECKBACK_COMPAT_STORES to a directory to keep the stores.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
import zlib
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

import broker
from tests.compat import expectation, rocketmq, stores
from tests.compat.stores import Draw, Made
from tests.compat.witness import Account, Transaction, take_account

ROOT = Path(__file__).resolve().parents[2]
SEED = int(os.environ.get("CHECKBACK_COMPAT_SEED") or random.SystemRandom().randrange(1_000_000))
GENERATIONS = {"3.1.4": "state-table", "5.3.3": "half-op"}

pytestmark = pytest.mark.timeout(900)


def seeds(count: int) -> pytest.MarkDecorator:
    """So many seeds; the first is the one to repeat a run with."""
    return pytest.mark.parametrize("seed", range(SEED, SEED + count))


both_versions = pytest.mark.parametrize("version", rocketmq.VERSIONS)


@pytest.fixture
def directory(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Where a test's store goes."""
    keep = os.environ.get("CHECKBACK_COMPAT_STORES")
    name = request.node.name.replace("[", "-").replace("]", "")
    return Path(keep) / name if keep else tmp_path / "made"


@pytest.fixture(autouse=True)
def _brokers_to_be_had(request: pytest.FixtureRequest) -> None:
    """Skip, with the reason, where a broker cannot be run."""
    try:
        for version in rocketmq.VERSIONS:
            rocketmq.install(version)
    except rocketmq.NotToBeHad as missing:
        pytest.skip(str(missing))


def checkback(verb: str, store: Path, *more: str) -> tuple[int, Any]:
    """Run the command with --json; the exit code and the answer. It writes nothing and never ends with a traceback."""
    command = [sys.executable, "-m", "tests.compat.guarded", str(store), verb, str(store), "--json", *more]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode in (0, 1), f"{verb} ended with {done.returncode}: {done.stderr}"
    return done.returncode, json.loads(done.stdout)


def judge(made: Made) -> tuple[Account, dict[str, Any]]:
    """The truth, the second reading of the store and the verification must say the same."""
    print(f"{made.store}: {made.ending}, {made.parameters}")
    events, account = made.events(), take_account(made.store, made.version)
    assert not expectation.contradictions(events, account, made.version, made.ending)
    assert not expectation.lost_messages(events, account.messages)
    assert not expectation.lost_messages(events, messages_read(made.store))
    if made.ending == "clean":
        found_by_key(made.store, account)
    return account, verified(made, account)


def messages_read(store: Path) -> dict[str, set[tuple[str, int, int]]]:
    """What the library reads: for each key the topic that was meant, and the length and the CRC of the plain body."""
    found: dict[str, set[tuple[str, int, int]]] = defaultdict(set)
    with broker.open(store, read_only=True) as opened:
        for record in opened.records():
            properties, body = record.property_map, record.plain_body
            key = properties.get("KEYS", "").split(" ")[0]
            found[key].add((record.topic, len(body), zlib.crc32(body)))
            found[key].add((properties.get("REAL_TOPIC", record.topic), len(body), zlib.crc32(body)))
    return found


def found_by_key(store: Path, account: Account) -> None:
    """Each delivered message of a clean store is found through the index and through its queue."""
    with broker.open(store, read_only=True) as opened:
        for transaction in account.transactions:
            if transaction.delivered:
                half = transaction.halves[0]
                bodies = [message.body for message in opened.by_key(half.target, transaction.key)]
                assert half.body in bodies, transaction.key


def verified(made: Made, account: Account) -> dict[str, Any]:
    """The verification of a store, compared with the second reading of it."""
    report: dict[str, Any]
    code, report = checkback("verify", made.store)
    assert report["transactions"] == account.totals()
    assert report["records"] == account.records
    assert report["generation"] == GENERATIONS[made.version]
    assert report["ok"] == (not report["findings"]) == (code == 0)
    false_alarms = report["counts"].keys() - expectation.explained_kinds(account, made.version, made.ending)
    assert not false_alarms, [f for f in report["findings"] if f["kind"] in false_alarms][:5]
    if made.version == "5.3.3":
        late = sum(bool(t.delivered) and not t.named_by_op for t in account.transactions)
        assert report["counts"].get("committed-without-op", 0) == late
    pending = checkback("pending", made.store)[1]
    assert len(pending) == account.totals()["in_doubt"]
    return report


@both_versions
@seeds(2)
def test_a_cleanly_stopped_store(version: str, seed: int, directory: Path) -> None:
    judge(stores.clean(directory, Draw.of(version, seed)))


@both_versions
@seeds(3)
def test_a_killed_store(version: str, seed: int, directory: Path) -> None:
    """SIGKILL in the middle of traffic, for 5.3.3 late enough that check-backs and op messages are under way."""
    late = random.Random(seed).uniform(1, 15) if version == "5.3.3" else 0.0
    judge(stores.killed(directory, Draw.of(version, seed), seconds=late))


@both_versions
@seeds(1)
def test_retries_and_dead_letters(version: str, seed: int, directory: Path) -> None:
    """Messages that consumers send back keep the COMMIT flag and name offset 0, where a transaction begins: no ends."""
    made = stores.retries(directory, Draw.of(version, seed))
    account, _ = judge(made)
    first = account.transactions[0]
    assert first.halves[0].commitlog_offset == 0
    assert first.state == "committed"
    assert len(first.delivered) == 1
    assert account.copies > 3
    died = {event["key"] for event in made.events() if event["event"] == "consumed" and event["dead"]}
    assert first.key in died
    assert any(topic.startswith("%DLQ%") for topic in account.topics)


@both_versions
@seeds(1)
def test_killed_during_retries_and_checks(version: str, seed: int, directory: Path) -> None:
    """3.1.4 asks after 60 s at the earliest, so there the kill waits for that."""
    seconds = 75 if version == "3.1.4" else 20
    judge(stores.retries_killed(directory, Draw.of(version, seed), seconds=seconds))


@both_versions
@seeds(1)
def test_ends_that_no_client_should_send(version: str, seed: int, directory: Path) -> None:
    """Two ends, contrary ends, an end by a stranger, a half with a delay: one decision counts, the rest is told."""
    made = stores.traps(directory, Draw.of(version, seed))
    events, account = made.events(), take_account(made.store, version)
    as_the_traps_say(made, account)
    report = checkback("verify", made.store)[1]
    rounds = sum(event["event"] == "trap" and event["name"] == "twice" for event in events)
    assert report["counts"]["delivered-twice"] >= rounds
    if version == "3.1.4":
        assert report["transactions"] == account.totals()
        assert report["counts"]["decision-conflict"] == 2 * rounds
    else:
        assert report["counts"]["half-diverted"] >= 2 * rounds


def as_the_traps_say(made: Made, account: Account) -> dict[str, Transaction]:
    """The second reading of each transaction that ended strangely stands as it may; all transactions by their keys."""
    seen = {transaction.key: transaction for transaction in account.transactions}
    copied = {key for key, transaction in seen.items() if len(transaction.halves) > 1}
    for key, states in expectation.trapped_states(made.events(), made.version, copied).items():
        assert seen[key].state in states, key
    return seen


@seeds(1)
def test_a_rollback_whose_op_message_comes_late(seed: int, directory: Path) -> None:
    """The broker checks it before it wrote the op message, and stores its half again: that copy is still open."""
    draw = Draw.of("5.3.3", seed)
    slow = {"transactionOpBatchInterval": 12_000, "transactionCheckInterval": 3000, "transactionTimeOut": 2000}
    draw.properties |= slow
    made = stores.traps(directory, draw, settle=24)
    seen = as_the_traps_say(made, take_account(made.store, "5.3.3"))
    keys = [event["key"] for event in made.events() if event["event"] == "trap" and event["name"] == "rollback"]
    open_again = {key: seen[key].state for key in keys if seen[key].state != "rolled_back"}
    assert open_again
    assert all(seen[key].named_by_op and len(seen[key].halves) > 1 for key in open_again)
    pending = {entry["keys"][0]: entry["state"] for entry in checkback("pending", made.store, "--parked")[1]}
    assert {key: pending[key] for key in keys if key in pending} == open_again


@seeds(1)
@pytest.mark.parametrize("more", [0, 300])
def test_a_store_that_a_real_broker_recovered(seed: int, more: int, directory: Path) -> None:
    """3.1.4 rebuilds its state table from the first redo log file only, and without the settled slots."""
    made = stores.recovered(directory, Draw.of("3.1.4", seed), more)
    account = take_account(made.store, "3.1.4")
    assert not expectation.contradictions(made.events(), account, "3.1.4", "recovered")
    code, report = checkback("verify", made.store)
    assert code == 1
    assert report["transactions"] == account.totals()
    assert {"slot-missing", "slot-moved", "table-compacted"} & report["counts"].keys()
    assert not {"torn-tail", "crc-mismatch", "corrupt-region"} & report["counts"].keys()


@both_versions
@seeds(1)
def test_reading_while_the_broker_writes(version: str, seed: int, directory: Path) -> None:
    """Over and over, on a live store: no crash, nothing blamed on the tail, nothing touched."""
    draw = Draw.of(version, seed)
    store, truth = stores.fresh(directory)
    options = {**draw.options, "pause_ms": 5, "count": 1_000_000}
    with rocketmq.running(rocketmq.install(version), store, **draw.properties) as cluster:
        sender = cluster.start("Generate", truth, **options)
        rocketmq.await_events(truth, lambda events: len(events) > 50)
        records = _read_repeatedly(store, 20)
        sender.kill()
        assert cluster.broker is not None
        cluster.broker.kill()
    assert records == sorted(records)
    assert records[-1] > records[0]
    judge(Made(version, store, truth, "killed", {**options, **draw.properties}))


def _read_repeatedly(store: Path, seconds: float) -> list[int]:
    """Ask for everything that only reads; the number of records seen each time."""
    lag = {"queue-missing", "index-missing", "redo-missing", "slot-missing", "slot-wrong-state", "committed-without-op"}
    twice = {"delivered-twice", "double-end", "decision-conflict"}
    records: list[int] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        report = checkback("verify", store)[1]
        false_alarms = report["counts"].keys() - lag - twice
        blamed = [finding for finding in report["findings"] if finding["kind"] in false_alarms]
        assert not blamed, (report["live"], report["end_offset"], report["counts"], blamed[:9])
        records.append(report["records"])
        for verb in ("pending", "info"):
            checkback(verb, store)
        assert messages_read(store)
    return records
