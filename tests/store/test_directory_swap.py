"""An exchange of directories that was begun goes on where its process was killed, and is never done twice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from broker.errors import CorruptStore
from broker.store.disk.files import Disk, NotSupported
from broker.store.disk.paths import Paths
from broker.store.shared.directory_swap import begin_swap, finish_swap, pending_swaps

DISK = Disk()


class WithoutExchange(Disk):
    """As on a file system that has no such step."""

    def exchange(self, one: str, other: str) -> None:
        raise NotSupported(f"{one} and {other}")


def begun(tmp_path: Path, *, is_take_over: bool = False) -> tuple[Paths, Path, Path]:
    """A store whose index is about to be exchanged."""
    paths, live = Paths(str(tmp_path)), tmp_path / "index"
    built = tmp_path / "checkback" / "replaced" / "20261127T000000.000000Z" / "index"
    for directory, file in ((live, "old"), (built, "new")):
        directory.mkdir(parents=True)
        (directory / file).touch()
    begin_swap(DISK, paths, [(str(live), str(built))], is_take_over=is_take_over)
    return paths, live, built


def names(*directories: Path) -> list[list[str]]:
    return [[one.name for one in directory.iterdir()] for directory in directories]


def nothing(_live: Path, _built: Path) -> None:
    """Killed before the exchange."""


def exchanged(live: Path, built: Path) -> None:
    """Killed behind it."""
    DISK.exchange(str(live), str(built))


def old_aside(live: Path, built: Path) -> None:
    """Killed between the two renames of a file system without that step."""
    live.rename(f"{built}.old")


def new_in_place(live: Path, built: Path) -> None:
    """Killed behind the second one."""
    old_aside(live, built)
    built.rename(live)


@pytest.mark.parametrize("disk", [DISK, WithoutExchange()])
@pytest.mark.parametrize("killed", [nothing, exchanged, old_aside, new_in_place])
def test_it_goes_on_where_its_process_was_killed(
    tmp_path: Path, killed: Callable[[Path, Path], None], disk: Disk
) -> None:
    paths, live, built = begun(tmp_path)
    killed(live, built)
    assert pending_swaps(disk, paths) == ["index"]
    assert finish_swap(disk, paths) == ["index"]
    assert names(live, built, built.parent) == [["new"], ["old"], ["index"]]
    assert (pending_swaps(disk, paths), finish_swap(disk, paths)) == ([], [])
    assert names(live) == [["new"]]


def test_a_take_over_that_never_was_one_is_forgotten(tmp_path: Path) -> None:
    """Its process was killed before the store was ours: it stays as it is."""
    paths, live, built = begun(tmp_path, is_take_over=True)
    assert finish_swap(DISK, paths) == []
    assert names(live, built) == [["old"], ["new"]]
    assert not Path(paths.swap).exists()


def test_a_damaged_journal_is_a_sentence(tmp_path: Path) -> None:
    paths, live, _ = begun(tmp_path)
    Path(paths.swap).write_bytes(b"00000000\n{}")
    with pytest.raises(CorruptStore, match=r"swap is damaged.*checkback rebuild"):
        finish_swap(DISK, paths)
    assert names(live) == [["old"]]
