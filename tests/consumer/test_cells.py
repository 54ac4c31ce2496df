"""The cells of the consumers' table: those of clients that left are given back, and all others stay what they are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import broker
from broker.consuming.group import consumer_table
from broker.consuming.group.members import MemberKind
from broker.consuming.group.membership import Membership
from broker.consuming.group.positions import Positions, Start
from broker.errors import StoreError
from broker.testing.crash_disk import SMALL

CELLS = 16


@pytest.fixture
def positions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Positions]:
    monkeypatch.setattr(consumer_table, "CELLS", CELLS)
    with broker.open(tmp_path / "store", layout=SMALL, sync="os") as store:
        found = Positions(store)
        yield found
        found.close()


def clients(positions: Positions, group: str, count: int) -> Membership:
    """A server's clients at topics of their own."""
    topics = [f"{group}-{number}" for number in range(count)]
    return Membership(positions.cells, group, topics, kind=MemberKind.SERVER)


def names(positions: Positions) -> set[tuple[str, str, int]]:
    return {name for _, name in positions.cells.all()}


def test_cells_of_clients_that_left_are_given_to_others(positions: Positions) -> None:
    for number in range(20):
        clients(positions, f"g{number}", 9).leave()
    living = clients(positions, "last", 9)
    assert {("last", f"last-{number}", -1) for number in range(9)} < names(positions)
    with pytest.raises(StoreError, match="all 16 queues of groups are taken"):
        clients(positions, "more", 9)
    assert len(positions.cells) == CELLS, "the file ends there"
    living.leave()
    clients(positions, "more", 9)


def test_what_is_no_clients_stays(positions: Positions) -> None:
    """Positions, what a consumer with the store open began, and where retention waits for a group."""
    cells = positions.cells
    positions.begin("billing", "orders", Start())
    cell = positions.cell("billing", "orders", 0)
    shared = Membership(cells, "billing", ["orders", "read"], kind=MemberKind.SERVER)
    positions.cell("billing", "read", 3)
    shared.leave()
    kept = {("billing", "orders", -1), ("billing", "orders", 0), ("billing", "read", -1), ("billing", "read", 3)}
    for number in range(20):
        clients(positions, f"g{number}", 9).leave()
        assert kept < names(positions)
    assert cells.find("billing", "orders", 0) == cell


def test_another_process_reads_the_new_names(positions: Positions, tmp_path: Path) -> None:
    with broker.open(tmp_path / "store", layout=SMALL, sync="os") as store:
        other = Positions(store)
        for number in range(20):
            member = clients(positions, f"g{number}", 9)
            for topic in range(9):
                place = f"g{number}", f"g{number}-{topic}", -1
                assert other.cells.find(*place) == positions.cells.find(*place) is not None
                assert other.cells.find("g0", f"g0-{topic}", -1) is None or number <= 2
            member.leave()
        other.close()


def test_a_member_that_was_silent_marks_no_cell_of_another(
    positions: Positions, monkeypatch: pytest.MonkeyPatch
) -> None:
    hung, cells = clients(positions, "hung", 9), positions.cells
    for cell in hung._subscribed:
        cells.see(cell, 1, 1)
    other = clients(positions, "other", 9)
    taken = [cells.find("other", f"other-{number}", -1) for number in range(9)]
    seen: list[int] = []
    see = cells.see
    monkeypatch.setattr(cells, "see", lambda cell, *times: (seen.append(cell), see(cell, *times)))
    hung._seen_ms = -1_000
    hung.beat()
    assert not set(seen) & set(taken)
    other.leave()
    hung.beat()
    assert {("hung", f"hung-{number}", -1) for number in range(9)} < names(positions)


def test_a_table_with_nameless_cells_is_whole(positions: Positions, tmp_path: Path) -> None:
    """A process is killed between taking a name away and giving another."""
    positions.begin("billing", "orders", Start())
    with positions.cells.lock:
        positions.cells.make("billing", "orders", 7, 5)
    left = clients(positions, "left", 8)
    left.leave()
    with positions.cells.lock:
        positions.cells._sweep()
    with broker.open(tmp_path / "store", layout=SMALL, sync="os") as store:
        again = Positions(store)
        assert again.cells.position(again.cell("billing", "orders", 7)) == 5
        assert not [name for name in names(again) if name[0] == "left"]
        again.close()


def test_a_topic_that_is_missing_takes_no_cell_but_counts(positions: Positions) -> None:
    cells, topics = positions.cells, ["missing", "orders"]
    known = {"orders"}
    member = Membership(cells, "billing", topics, kind=MemberKind.SERVER, has_topic=known.__contains__)
    assert names(positions) == {("billing", "", -1), ("billing", "orders", -1)}
    with pytest.raises(StoreError, match="other topics"):
        Membership(cells, "billing", ["orders"])
    Membership(cells, "billing", topics).leave()
    known.add("missing")
    member.see(topics)
    assert ("billing", "missing", -1) in names(positions)


def test_clients_whose_server_finds_no_place_left_again(positions: Positions, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else retention would wait for a group that is not there, as long as the cells last."""

    def full(_: Membership) -> tuple[int, int]:
        raise StoreError("1024 consumers are at work, and there is no room for more")

    monkeypatch.setattr(Membership, "_take_place", full)
    with pytest.raises(StoreError, match="no room for more"):
        clients(positions, "g", 2)
    left = [positions.cells.find("g", f"g-{number}", -1) for number in range(2)]
    assert [positions.cells.position(cell) for cell in left if cell is not None] == [consumer_table._LEFT] * 2
