"""An index of a store of RocketMQ that no single rule makes, and that is right: a rebuild calls it so."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from broker.format import properties as names
from broker.format.index import IndexHeader, IndexItem, item_at
from recovery.findings import Findings
from recovery.rebuild import builder
from recovery.rebuild.rebuilder import rebuild
from recovery.scan.kinds import Kinds
from recovery.scan.record_at import record_at
from recovery.scan.records import Records
from recovery.scan.scanner import Scan
from recovery.scan.store_files import StoreFiles
from recovery.scan.units import Rows
from recovery.verify.comparison import FinishContext
from recovery.verify.index import IndexComparison
from recovery.verify.index_files import open_live_index
from recovery.verify.index_items import IndexingRule, expected_items
from recovery.verify.verifier import verify

pytestmark = pytest.mark.usefixtures("is_still")


def _before_an_upgrade(items: Rows, untagged: Rows, middle: int) -> Rows:
    """What a broker before 5.4 indexed, and then one of 5.5."""
    return np.concatenate((untagged[untagged["commitlog_offset"] < middle], items[items["commitlog_offset"] >= middle]))


def _indexed_again(items: Rows, _untagged: Rows, middle: int) -> Rows:
    """What a broker leaves that came back after a crash in the middle."""
    before = items["commitlog_offset"] < middle
    return np.concatenate((items[before], items[before][-3:], items[~before]))


@pytest.mark.parametrize("indexed", [_before_an_upgrade, _indexed_again])
def test_an_index_that_two_brokers_made_is_what_the_log_says(
    kind_store: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, indexed: Callable[[Rows, Rows, int], Rows]
) -> None:
    """1,919 items of a store that went from 5.3.3 to 5.5.0 were called different, and the broker was to be stopped."""
    path = kind_store("rocketmq-5.5.0-clean")

    def as_brokers_did(records: Records, kinds: Kinds, _rule: IndexingRule) -> Rows:
        items = expected_items(records, kinds, IndexingRule.V54)
        middle = int(np.median(items["commitlog_offset"]))
        return indexed(items, expected_items(records, kinds, IndexingRule.V5), middle)

    with monkeypatch.context() as patch:
        patch.setattr(builder, "expected_items", as_brokers_did)
        shutil.rmtree(path / "index")
        rebuild(path, apply=True, broker_is_stopped=True)
    assert verify(path).ok
    assert rebuild(path).ok
    (newest,) = sorted((path / "index").iterdir())[-1:]
    raw = bytearray(newest.read_bytes())
    at = item_at(50, 1)
    raw[at] ^= 1
    newest.write_bytes(raw)
    assert [one.part for one in rebuild(path).differences][:1] == ["index"]


def test_op_messages_in_front_of_a_window_lack_no_item_where_a_broker_was_exchanged(
    kind_store: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have tags and no key: before 5.4 there is no item for them, and those of the window were called wrong."""
    path = kind_store("rocketmq-4.9.7-clean")
    (records,) = Scan(StoreFiles.open(path).commitlog)
    begin = int(np.flatnonzero(records.values(names.UNIQ_KEY).lengths == 0)[5])
    middle = int(records.offsets[begin + 12])

    def as_brokers_did(all_records: Records, kinds: Kinds, _rule: IndexingRule) -> Rows:
        plain, tagged = (expected_items(all_records, kinds, rule) for rule in (IndexingRule.V5, IndexingRule.V54))
        return _before_an_upgrade(tagged, plain, middle)

    with monkeypatch.context() as patch:
        patch.setattr(builder, "expected_items", as_brokers_did)
        shutil.rmtree(path / "index")
        rebuild(path, apply=True, broker_is_stopped=True)
    files, findings = StoreFiles.open(path), Findings()
    comparison = IndexComparison(partial(open_live_index, files), findings)
    for part in (slice(0, begin), slice(begin, len(records))):  # a window of 12 MiB begins anywhere
        window = records.take(part)
        comparison.add(window, Kinds(window))
    end, look = files.commitlog.end, partial(record_at, files.commitlog)
    comparison.finish(FinishContext(begin_offset=0, ignore_from=end, look=look))
    assert not findings.counts


def test_an_index_of_3_2_6_is_made_again_as_it_was(kind_store: Callable[[str], Path]) -> None:
    """A rebuild kept the sign of the hashes, as 3.1.4 does: 3.2.6 found half of the keys no more."""
    path = kind_store("rocketmq-3.2.6-clean")
    (index,) = (path / "index").iterdir()
    before = index.read_bytes()
    assert rebuild(path).ok
    index.write_bytes(before[: item_at(30, 50)] + bytes(IndexItem.SIZE) + before[item_at(31, 50) :])
    assert len(rebuild(path, apply=True, broker_is_stopped=True).differences)
    assert index.read_bytes() == before


def test_the_index_of_a_store_that_went_from_3_2_6_to_5_4_is_what_the_log_says(
    kind_store: Callable[[str], Path],
) -> None:
    path = kind_store("rocketmq-3.2.6-upgraded")
    assert rebuild(path).ok
    (path / "index" / min(os.listdir(path / "index"))).unlink()
    assert [one.part for one in rebuild(path).differences][:1] == ["index"]
    assert verify(path).findings.counts["index-missing"] > 100


def test_the_checkpoint_states_the_end_of_an_index_that_stays(kind_store: Callable[[str], Path]) -> None:
    """Its files end elsewhere than ours would: verify called the checkpoint damaged that a rebuild of a queue wrote."""
    path = kind_store("rocketmq-3.2.6-upgraded")
    before = verify(path).findings.counts
    queue = path / "consumequeue" / "Plain" / "0" / f"{0:020}"
    queue.write_bytes(bytes(20) + queue.read_bytes()[20:])
    assert [one.part for one in rebuild(path, apply=True, broker_is_stopped=True).differences] == ["consumequeue"]
    assert verify(path).findings.counts == before


def test_an_index_whose_broker_moved_to_another_time_zone_is_what_the_log_says(
    kind_store: Callable[[str], Path],
) -> None:
    """Its files are named by local time. At its next start the broker takes the one of the largest name for the last:
    what it begins then counts from the end of that one.
    """
    path = kind_store("rocketmq-5.5.0-clean")
    first, *_, last = sorted((path / "index").iterdir())
    end_ms = IndexHeader.unpack_from(first.read_bytes()).end_timestamp_ms
    first.rename(first.with_name(str(int(first.name) + 80_000_000)))  # eight hours
    raw = bytearray(last.read_bytes())
    seconds = (IndexHeader.unpack_from(raw).begin_timestamp_ms - end_ms) // 1000
    at = item_at(1, 50) + IndexItem.OFFSET["time_diff_s"]
    raw[at : at + 4] = seconds.to_bytes(4, "big")
    last.write_bytes(raw)
    assert [str(one) for one in verify(path).findings] == []
    assert rebuild(path).ok


def test_an_index_is_made_in_the_sizes_that_its_broker_is_set_to_now(kind_store: Callable[[str], Path]) -> None:
    """maxIndexNum was changed: the broker takes its number for that of all files, and a rebuild took the first's."""
    path = kind_store("rocketmq-5.5.0-clean")
    names = sorted(os.listdir(path / "index"))
    before = {os.stat(path / "index" / name).st_size for name in names}
    for name in names[-2:]:
        with (path / "index" / name).open("r+b") as file:
            file.truncate(max(before) + 40 * IndexItem.SIZE)
    (path / "index" / names[1]).unlink()
    assert rebuild(path, apply=True, broker_is_stopped=True).applied
    assert {file.stat().st_size for file in (path / "index").iterdir()} == {max(before) + 40 * IndexItem.SIZE}
    assert verify(path).ok
