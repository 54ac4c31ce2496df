"""Where a group stands: shared by all processes, exported for RocketMQ, never ahead of what was acknowledged."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import broker
from broker.consuming.group.consumer_table import BOOT
from broker.consuming.group.offset_export import OffsetExport
from broker.consuming.group.positions import Positions, Start
from broker.format.config import ConsumerOffsets, decode_consumer_offsets, encode_consumer_offsets
from broker.live import LiveStore
from broker.store.disk.files import Disk
from broker.testing.crash_disk import SMALL

WAIT_S = 20


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


def opened(path: Path) -> LiveStore:
    return broker.open(path, layout=SMALL, sync="os")


def send(store: LiveStore, count: int) -> None:
    for number in range(count):
        store.append(broker.Message("orders", b"%d" % number))


def consume(store: LiveStore, count: int, group: str = "billing") -> list[int]:
    with store.consumer(group, "orders") as consumer:
        found = []
        for _ in range(count):
            message = consumer.receive(WAIT_S)
            assert message is not None, f"only {found}"
            found.append(int(message.body))
            assert consumer.ack(message)
        return found


def offsets(path: Path) -> dict[tuple[str, str], dict[int, int]]:
    said = decode_consumer_offsets((path / "config/consumerOffset.json").read_bytes())
    return {key: dict(value) for key, value in said.positions.items()}


def test_positions_are_exported_as_rocketmq_keeps_them(path: Path) -> None:
    """Whatever else the file holds stays in it, and the version before is beside it."""
    with opened(path) as store:
        send(store, 3)
        before = ConsumerOffsets({("orders", "other"): {0: 3}}, extra={"unknown": 1})
        (path / "config/consumerOffset.json").write_bytes(encode_consumer_offsets(before))
        consume(store, 2)
    assert offsets(path)["orders", "billing"][0] == 2
    assert offsets(path)["orders", "other"] == {0: 3}
    assert decode_consumer_offsets((path / "config/consumerOffset.json").read_bytes()).extra["unknown"] == 1
    assert (path / "config/consumerOffset.json.bak").exists()


def test_the_file_is_decoded_once_for_each_version(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is asked how far every group is looks into it for each queue of each."""
    decoded: list[int] = []

    def decode(raw: bytes) -> ConsumerOffsets:
        decoded.append(len(raw))
        return decode_consumer_offsets(raw)

    with opened(path) as store:
        send(store, 3)
        consume(store, 2)
        positions = Positions(store)
        positions.exchange.export(at_once=True)
        monkeypatch.setattr("broker.format.config.decode_consumer_offsets", decode)
        seen = [positions.exchange.offsets().positions["orders", "billing"][0] for _ in range(3)]
        assert len(decoded) <= 1
        consume(store, 1)
        positions.exchange.export(at_once=True)
        decoded.clear()
        seen += [positions.exchange.offsets().positions["orders", "billing"][0] for _ in range(3)]
        positions.close()
    assert seen == [2, 2, 2, 3, 3, 3]
    assert len(decoded) <= 1


def test_a_position_that_another_program_wrote_wins(path: Path) -> None:
    """A real broker ran on the store in between: the group goes on where it was there."""
    with opened(path) as store:
        send(store, 5)
        assert consume(store, 3) == [0, 1, 2]
        said = offsets(path)
        said["orders", "billing"][0] = 1
        (path / "config/consumerOffset.json").write_bytes(encode_consumer_offsets(ConsumerOffsets(said)))
        assert consume(store, 4) == [1, 2, 3, 4]


@pytest.mark.parametrize("has_cells", [False, True])
def test_a_position_beyond_its_queue_hides_no_message(path: Path, *, has_cells: bool) -> None:
    """As of a broker that lost the end of its log: what comes next is new to the group."""
    with opened(path) as store:
        send(store, 3)
        if has_cells:  # then they are not made again in this boot
            Positions(store).close()
        said = ConsumerOffsets({("orders", "billing"): {0: 99}, ("orders", "audit"): {0: 99}})
        (path / "config/consumerOffset.json").write_bytes(encode_consumer_offsets(said))
        with store.consumer("billing", "orders") as consumer:
            send(store, 1)
            message = consumer.receive(WAIT_S)
            assert message is not None
            positions = Positions(store)
            assert positions.cells.position(positions.cell("audit", "orders", 0)) == 3
            positions.close()


def test_a_group_that_begins_at_a_position_beyond_its_queue_begins_at_its_end(path: Path) -> None:
    with opened(path) as store:
        send(store, 3)
        positions = Positions(store)
        said = ConsumerOffsets({("orders", "billing"): {0: 99}, ("orders", "audit"): {0: 99}})
        (path / "config/consumerOffset.json").write_bytes(encode_consumer_offsets(said))
        positions.begin("billing", "orders", Start("first"))
        for group in ("billing", "audit"):
            assert positions.cells.position(positions.cell(group, "orders", 0)) == 3
        positions.close()


@pytest.mark.parametrize(("stated", "stands"), [(99, 3), (-7, 0)])
def test_a_position_that_another_program_states_lies_in_the_queue(path: Path, stated: int, stands: int) -> None:
    """Of a group that stands somewhere already: what comes next would be passed over, or nothing could be read."""
    with opened(path) as store:
        send(store, 3)
        consume(store, 2)
        said = ConsumerOffsets({("orders", "billing"): {0: stated}})
        (path / "config/consumerOffset.json").write_bytes(encode_consumer_offsets(said))
        positions = Positions(store)
        assert positions.cells.position(positions.cell("billing", "orders", 0)) == stands
        positions.close()


def test_a_consumer_at_work_goes_over_to_such_a_position(path: Path) -> None:
    with opened(path) as store, store.consumer("billing", "orders") as consumer:
        send(store, 2)
        for _ in range(2):
            message = consumer.receive(WAIT_S)
            assert message is not None
            consumer.ack(message)
        consumer._positions.exchange.export(at_once=True)
        said = offsets(path)
        said["orders", "billing"][0] = 0
        (path / "config/consumerOffset.json").write_bytes(encode_consumer_offsets(ConsumerOffsets(said)))
        consumer._positions.exchange.export(at_once=True)
        message = consumer.receive(WAIT_S)
        assert message is not None
        assert message.body == b"0"


def test_losing_our_directory_redelivers_and_never_skips(path: Path) -> None:
    """What was exported counts; what was acknowledged since comes again."""
    with opened(path) as store:
        send(store, 4)
        consume(store, 2)
        kept = (path / "config/consumerOffset.json").read_bytes()
        consume(store, 1)
    (path / "config/consumerOffset.json").write_bytes(kept)
    for name in ("consumers", "consumers.lock", "export.lock"):
        (path / "checkback" / name).unlink()
    shutil.rmtree(path / "checkback" / "members")
    with opened(path) as store:
        assert consume(store, 2) == [2, 3]


def test_losing_our_directory_does_not_make_an_old_group_a_new_one(path: Path) -> None:
    """`last` counts once: what came since the group began is its own."""
    with opened(path) as store:
        send(store, 1)
        store.consumer("billing", "orders", start="last").close()
        send(store, 2)
    (path / "checkback" / "consumers").unlink()
    with opened(path) as store, store.consumer("billing", "orders", start="last") as consumer:
        message = consumer.receive(WAIT_S)
        assert message is not None
        assert message.queue_offset == 1


def test_damaged_cells_are_thrown_away_and_made_anew(path: Path) -> None:
    """A flipped bit in a name is found; the export says where the group stands."""
    with opened(path) as store:
        send(store, 3)
        consume(store, 2)
    raw = bytearray((path / "checkback/consumers").read_bytes())
    raw[raw.index(b"billingorders")] ^= 1
    (path / "checkback/consumers").write_bytes(bytes(raw))
    with opened(path) as store:
        assert consume(store, 1) == [2]


def test_after_a_machine_crash_no_position_lies_beyond_its_queue(path: Path) -> None:
    """Else what comes next, and is new, would be skipped: opening the store sets it right, before anything is sent."""
    with opened(path) as store:
        send(store, 2)
        consume(store, 2)
        positions = Positions(store)
        with positions.cells.lock:
            positions.cells.put(positions.cell("billing", "orders", 0), 50)  # the queue was longer before the crash
            positions.cells.set_head(BOOT, 0)
        positions.close()
    with opened(path) as store:
        send(store, 1)
        assert consume(store, 1) == [0]


def test_where_the_system_does_not_tell_its_boots_each_opening_may_follow_a_crash(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.consuming.group.positions.boot_words", lambda _: (0, 0))
    with opened(path) as store:
        send(store, 2)
        positions = Positions(store)
        cell = positions.cell("billing", "orders", 0)
        with positions.cells.lock:
            positions.cells.put(cell, 50)
        positions.close()
        positions = Positions(store)
        assert positions.cells.position(cell) == store.queue_end("orders", 0) < 50
        positions.close()


def test_a_group_is_idle_by_the_clock_of_this_boot(path: Path) -> None:
    """That of the last one was ahead, after a year: the group was never gone, and retention waited for it."""
    year_ms = 365 * 86_400_000
    with opened(path) as store:
        send(store, 1)
        positions = Positions(store)
        cell = positions.cell("billing", "orders", 0)
        positions.cells.see(cell, 1_000, year_ms)
        assert positions.cells.idle_ms(cell, 9_000, 500) == 0
        with positions.cells.lock:
            positions.cells.set_head(BOOT, 0)
        positions.close()
        positions = Positions(store)
        assert positions.cells.idle_ms(cell, 9_000, 500) == 8_000
        positions.close()


def test_a_queue_that_another_member_took_meanwhile_is_left_to_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both had seen it free: with its fence raised once more the first would have lost what it has in hand."""
    with opened(path) as store, store.consumer("billing", "orders") as consumer:
        leases = consumer._leases
        with leases.mutex:
            leases.release()
            cells, cell, owner = leases._cells, consumer._positions.cell("billing", "orders", 0), leases._cells.owner

            def taken_after(_: object) -> tuple[int, int]:
                monkeypatch.undo()
                seen = owner(cell)
                with cells.lock:
                    cells.give(cell, 99, 7)
                return seen

            monkeypatch.setattr(cells, "owner", taken_after)
            leases._take(cell, "orders", 0, has_clients=False)
            assert cells.owner(cell) == (99, 7)
            assert leases.queues == []


def test_a_reset_takes_effect_under_a_consumer_at_work(path: Path) -> None:
    """What it had in hand then counts no more."""
    with opened(path) as store:
        send(store, 3)
        with store.consumer("billing", "orders") as consumer:
            held, later = consumer.receive(WAIT_S), consumer.receive(WAIT_S)
            assert held is not None
            assert later is not None
            positions = Positions(store)
            assert positions.reset("billing", "orders", 1, 0) == {0: 1}
            positions.close()
            assert not consumer.ack(later), "though no position would move for it"
            assert not consumer.ack(held)
            found = []
            while len(found) < 2:
                message = consumer.receive(WAIT_S)
                assert message is not None
                if consumer.ack(message):
                    found.append(int(message.body))
            assert found == [1, 2]


def test_a_reset_stays_within_the_queue(path: Path) -> None:
    with opened(path) as store:
        send(store, 3)
        positions = Positions(store)
        assert positions.reset("billing", "orders", 99, 0) == {0: 3}
        assert positions.reset("billing", "orders", Start("first"), 0) == {0: 0}
        assert positions.reset("billing", "orders", Start("last"))[0] == 3
        positions.close()


def test_a_reset_to_what_was_removed_goes_to_the_first_that_is_kept(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says where the group stands then, and how much is before it."""
    with opened(path) as store:
        send(store, 3)
        monkeypatch.setattr(type(store), "queue_range", lambda *_: (2, 3))
        positions = Positions(store)
        assert positions.reset("billing", "orders", 0, 0) == {0: 2}
        positions.close()


def test_our_own_export_is_never_taken_for_anothers(path: Path) -> None:
    """Killed between the note and the file, or between the file and the next note: the cells stand."""
    with opened(path) as store:
        send(store, 3)
        consume(store, 1)
        before = (path / "config/consumerOffset.json").read_bytes()
        consume(store, 1)
        (path / "config/consumerOffset.json").write_bytes(before)  # killed before the rename
        assert consume(store, 1) == [2]


def test_the_positions_of_queues_that_only_a_broker_knows_stay_as_they_are(path: Path) -> None:
    """Of a BatchConsumeQueue and of light messages: when their broker goes on, its groups would begin again."""
    opened(path).close()
    (path / "batchconsumequeue" / "batches" / "0").mkdir(parents=True)
    said = {("batches", "billing"): {0: 7}, ("%LMQ%light", "billing"): {0: 8}, ("orders", "billing"): {0: 9}}
    (path / "config").mkdir(exist_ok=True)
    (path / "config" / "consumerOffset.json").write_bytes(encode_consumer_offsets(ConsumerOffsets(said)))
    opened(path).close()
    assert offsets(path) == {**said, ("orders", "billing"): {0: 0}}


def test_a_full_disk_takes_no_position_back(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is there of the export is ours still, however often the next one finds no room."""
    with opened(path) as store:
        send(store, 4)
        consume(store, 1)
        positions = Positions(store)
        cells, cell = positions.cells, positions.cell("billing", "orders", 0)

        def full(_disk: Disk, name: str, *_: object, **__: object) -> None:
            raise broker.StoreFull("there is no room", path=name)

        with monkeypatch.context() as patch:
            patch.setattr(Disk, "write_file", full)
            for position in (2, 3, 4):
                assert cells.advance(cell, cells.fence(cell), position)
                with pytest.raises(broker.StoreFull):
                    positions.exchange.export(at_once=True)
        positions.exchange.export(at_once=True)
        assert cells.position(cell) == 4
        positions.close()
    assert offsets(path)["orders", "billing"][0] == 4


def test_a_start_must_be_a_moment() -> None:
    with pytest.raises(broker.BrokerError, match="start is"):
        Start.parse("yesterday")
    from datetime import datetime

    with pytest.raises(broker.BrokerError, match="time zone"):
        Start.parse(datetime(2026, 1, 1))  # noqa: DTZ001 - that is the point


def test_the_exchange_needs_no_file(path: Path) -> None:
    with opened(path) as store:
        positions = Positions(store)
        assert isinstance(positions.exchange, OffsetExport)
        assert not positions.exchange.offsets().positions
        positions.close()
