"""Stores that pass from hand to hand: the real 3.1.4 broker goes on with what we rebuilt, and we with what it wrote."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from broker.errors import StoreError
from broker.store.disk.files import Disk
from broker.store.writer import open_writer
from recovery.rebuild.rebuilder import rebuild
from recovery.repair import crash
from recovery.transactions.in_doubt import Pending
from recovery.verify.verifier import verify
from tests.compat import ours, rocketmq
from tests.compat.rocketmq import running
from tests.store.filled import fill

ASKED_S = 75  # 3.1.4 asks 60 s after its start, and every 10 s from then on
# The sizes of the fixture's files, where they are not those of tests/compat/rocketmq.py, and its producers' group.
GROUP, TOPIC = "order_producer", "OrderTopic"

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(autouse=True)
def _brokers_to_be_had() -> None:
    """Skip, with the reason, where the broker cannot be run."""
    try:
        rocketmq.install("3.1.4")
        rocketmq.install(rocketmq.NAME_SERVER)
    except rocketmq.NotToBeHad as missing:
        pytest.skip(str(missing))


def test_the_real_broker_settles_what_was_in_doubt(golden_copy: Callable[[str], Path], tmp_path: Path) -> None:
    """It asks about each of them by its own slot, and takes the answers; what it left wrong itself is right again."""
    store = golden_copy("rocketmq-3.1.5-recovered")
    assert not verify(store).ok
    in_doubt = {half.slot: half.commitlog_offset for half in Pending(store, 0)}
    before = verify(store).transactions
    rebuild(store, apply=True, broker_is_stopped=True)
    assert verify(store).ok
    truth = tmp_path / "asked.jsonl"
    with running(rocketmq.install("3.1.4"), store) as cluster:
        cluster.run("Decider", truth, group=GROUP, topic=TOPIC, seconds=ASKED_S)
        assert cluster.broker is not None
        cluster.broker.stop()
    asked = {e["slot"]: e["commitlog_offset"] for e in rocketmq.read_truth(truth) if e["event"] == "check"}
    assert asked == in_doubt
    after = verify(store)
    assert after.ok, after.as_json()["counts"]
    committed = sum(slot % 2 == 0 for slot in in_doubt)
    assert after.transactions == {
        **before,
        "committed": before["committed"] + committed,
        "rolled_back": before["rolled_back"] + len(in_doubt) - committed,
        "in_doubt": 0,
    }


def test_we_go_on_with_our_store_after_the_real_broker_wrote_to_it(tmp_path: Path) -> None:
    """Not without a word: only who says that the broker is stopped may take over what it wrote."""
    store, truth = tmp_path / "store", tmp_path / "asked.jsonl"
    ours.written_clean(store, 7, 300)
    before = verify(store)
    with running(rocketmq.install("3.1.4"), store) as cluster:
        cluster.run("Decider", truth, group=ours.GROUP, topic=ours.TOPICS[0], seconds=ASKED_S)
        assert cluster.broker is not None
        cluster.broker.stop()
    assert before.transactions["in_doubt"] > 0
    settled = verify(store)
    assert settled.transactions["in_doubt"] == 0
    with pytest.raises(StoreError, match="--broker-is-stopped"):
        open_writer(str(store), Disk())
    crash.apply(crash.plan(crash.survey(store)), broker_is_stopped=True)
    after = verify(store)
    assert after.ok, after.as_json()["counts"]
    assert (after.digest, after.transactions) == (settled.digest, settled.transactions)
    writer = open_writer(str(store), Disk(), sync="os")
    fill(writer, 0, 30)
    writer.close()
    last = verify(store)
    assert last.ok, last.as_json()["counts"]
    assert last.transactions["total"] == before.transactions["total"] + 30
