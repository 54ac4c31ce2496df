"""How much disk a new store takes, where one may be made, and what is no path of a store."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import broker
from broker.store.disk.files import Disk
from broker.store.read.layout import StoreLayout

MIB = 1 << 20


@pytest.mark.parametrize(("preset", "limit_mib"), [("small", 11), ("default", 24)])
def test_a_new_store_takes_a_few_mib(preset: str, limit_mib: int, tmp_path: Path) -> None:
    """One message, one transaction, one consumer; in blocks, and it grows by one segment."""
    layout: StoreLayout = getattr(StoreLayout, preset)()
    with broker.open(tmp_path / "store", layout=layout, sync="os") as store:
        store.append(broker.Message("orders", b"paid"))
        store.transactions.commit(store.transactions.prepare(broker.Message("stock", b"locked"), "shop"))
        with store.consumer("billing", "orders") as consumer:
            assert consumer.receive(5)
    used = Disk().used_bytes(str(tmp_path / "store"))
    assert layout.first_bytes <= used <= limit_mib * MIB
    with broker.open(tmp_path / "store", sync="os") as store:
        for _ in range(layout.segment_bytes // MIB):
            store.append(broker.Message("orders", bytes(MIB)))
    grown = Disk().used_bytes(str(tmp_path / "store")) - used
    blocks = 64 << 10  # a file system counts the blocks of its own extent lists, and gives them back when it joins them
    assert layout.segment_bytes - blocks <= grown <= 2 * layout.segment_bytes + MIB  # one may have been made ahead


@pytest.mark.parametrize("preset", ["small", "default", "rocketmq"])
def test_each_preset_holds_the_largest_message(preset: str) -> None:
    layout: StoreLayout = getattr(StoreLayout, preset)()
    assert layout.record_bytes_max > (4 << 20) + (1 << 17)
    assert StoreLayout() == StoreLayout.default()


def test_rocketmq_has_rocketmqs_own_sizes() -> None:
    layout = StoreLayout.rocketmq()
    assert (layout.segment_bytes, layout.consume_queue_bytes) == (1 << 30, 6_000_000)
    assert (layout.index_slots, layout.index_items) == (5_000_000, 20_000_000)
    assert (layout.state_table_bytes, layout.redo_log_bytes) == (48_000_000, 40_000_000)


def test_more_queues_than_have_blocks_at_first(tmp_path: Path) -> None:
    """The table of next offsets is a hole behind its first cells; it is given blocks before it is written to."""
    layout = StoreLayout(1 << 20, 400, 2400, 2000, 16, 4000)
    with broker.open(tmp_path / "store", layout=layout, sync="os") as store:
        table = store.writer.paths.queues
        before = Disk().used_bytes(table)
        for number in range(300):
            store.append(broker.Message(f"topic-{number}", b"x"))
        assert Disk().used_bytes(table) > before
    with broker.open(tmp_path / "store") as store:
        assert [store.queue_end(f"topic-{number}", 0) for number in range(300)] == [1] * 300


def test_no_store_is_made_where_none_is_wanted(tmp_path: Path) -> None:
    with pytest.raises(broker.NotAStore, match="there is no such directory"):
        broker.open(tmp_path / "store", create=False)
    assert not (tmp_path / "store").exists()
    (tmp_path / "empty").mkdir()
    with pytest.raises(broker.NotAStore, match="it is empty"):
        broker.open(tmp_path / "empty", create=False)
    assert list((tmp_path / "empty").iterdir()) == []
    broker.open(tmp_path / "store", layout=StoreLayout.small()).close()
    broker.open(tmp_path / "store", create=False).close()


def test_a_missing_parent_is_no_place_for_a_store(tmp_path: Path) -> None:
    """A typing error, or a volume that is not mounted."""
    with pytest.raises(broker.NotAStore, match=f"there is no directory {tmp_path}/volume"):
        broker.open(tmp_path / "volume" / "store")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("wrong", [None, b"shop.store", "", 5])
@pytest.mark.parametrize("read_only", [True, False])
def test_what_is_no_path_gets_a_sentence(wrong: object, read_only: bool) -> None:
    with pytest.raises(broker.BrokerError, match=r"the path of a store is (text|a str) or a pathlib\.Path"):
        broker.open(wrong, read_only=read_only)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"segment_bytes": 1 << 31}, "segment_bytes is 2147483648, and RocketMQ's files have at most 2147483647 bytes"),
        ({"segment_bytes": 1 << 70}, "segment_bytes is "),
        ({"segment_bytes": 8 * 10**5000}, "segment_bytes is "),
        ({"consume_queue_bytes": 20 << 62}, "consume_queue_bytes is "),
        ({"state_table_bytes": 24 << 40}, "state_table_bytes is "),
        ({"redo_log_bytes": 20 << 40}, "redo_log_bytes is "),
        (
            {"index_slots": 1 << 33},
            "index_slots is 8589934592 and index_items 200000: an index file",
        ),
        ({"index_slots": 1 << 50}, "index_slots is "),
        ({"index_items": 10**5000}, "index_slots is 50000 and index_items "),
    ],
)
def test_sizes_that_rocketmq_has_no_number_for(sizes: dict[str, int], said: str) -> None:
    """They are refused when they are written down, not when a store was made with them."""
    with pytest.raises(broker.BrokerError, match=said):
        StoreLayout(**sizes)


def test_the_largest_files() -> None:
    """A segment of 2 GiB less 8 bytes is RocketMQ's largest; nothing is made here."""
    layout = StoreLayout(segment_bytes=(1 << 31) - 8, consume_queue_bytes=20 * 107_374_182, index_slots=1 << 28)
    assert layout.segment_bytes == 2_147_483_640


@pytest.mark.parametrize("name", ["segment_bytes", "consume_queue_bytes", "state_table_bytes", "index_slots"])
def test_a_store_file_without_one_of_the_sizes_is_damaged(name: str, tmp_path: Path) -> None:
    """The default stood in for it: new files of queues and slots lay between those that were there."""
    with broker.open(tmp_path / "store", layout=StoreLayout.small(), sync="os") as store:
        store.append(broker.Message("orders", b"paid"))
    file = tmp_path / "store" / "checkback" / "store.json"
    content = json.loads(file.read_text())
    del content["layout"][name]
    file.write_text(json.dumps(content))
    with pytest.raises(broker.CorruptStore, match=rf"store\.json is damaged \(it has no '{name}'\)\. Put it back"):
        broker.open(tmp_path / "store", sync="os")


@pytest.mark.parametrize("engine", ["state-table", "half-op"])
@pytest.mark.parametrize("change", ["consume_queue_bytes", "state_table_bytes", "redo_log_bytes", "index_items", "id"])
def test_a_store_file_that_was_edited_is_refused(change: str, engine: str, tmp_path: Path) -> None:
    """New files of queues and slots lay between those that were there, and sends went on."""
    with broker.open(tmp_path / "store", layout=StoreLayout.small(), transactions=engine, sync="os") as store:
        store.append(broker.Message("orders", b"paid"))
    file = tmp_path / "store" / "checkback" / "store.json"
    content = json.loads(file.read_text())
    if change == "id":
        content["id"] = f"{int(content['id'], 16) ^ 1:032x}"
    else:
        content["layout"][change] *= 2
    file.write_text(json.dumps(content))
    with pytest.raises(broker.CorruptStore, match=r"store\.json is damaged \(it was edited, or lost a bit; the sizes"):
        broker.open(tmp_path / "store", sync="os")


def test_a_store_file_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    """It has no CRC."""
    with broker.open(tmp_path / "store", layout=StoreLayout.small(), sync="os") as store:
        store.append(broker.Message("orders", b"paid"))
    file = tmp_path / "store" / "checkback" / "store.json"
    content = json.loads(file.read_text())
    del content["crc"]
    file.write_text(json.dumps(content))
    with broker.open(tmp_path / "store", sync="os") as store:
        assert [record.body for record in store.records()] == [b"paid"]
