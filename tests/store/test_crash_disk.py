"""The crashable disk keeps its own rules: what was forced survives, anything else may or may not, in blocks of 512."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.errors import StoreError, StoreFull, SyncFailed
from broker.store.disk.files import Disk, Map, Missing
from broker.testing.crash_disk import CrashDisk, Crashed
from broker.testing.power_cut import BLOCK

SEEDS = range(40)


@pytest.fixture
def disk(tmp_path: Path) -> CrashDisk:
    return CrashDisk(tmp_path / "disk")


def page_of(disk: CrashDisk, blocks: int = 8) -> Map:
    """A mapped file, all of it durable."""
    path = str(disk.root / "page")
    disk.allocate(path, blocks * BLOCK)
    return disk.open_map(path, blocks * BLOCK)


def images(disk: CrashDisk, name: str = "page") -> set[bytes | None]:
    """What a file may be after a power cut; None when it is gone."""
    found = set()
    for seed in SEEDS:
        path = disk.survivors(seed) / name
        found.add(path.read_bytes() if path.exists() else None)
    return found


def trees(disk: CrashDisk) -> set[frozenset[tuple[str, bytes | None]]]:
    """All names and contents that a power cut may leave; directories have no content."""
    found = set()
    for seed in SEEDS:
        image = disk.survivors(seed)
        paths = image.rglob("*")
        found.add(frozenset((str(p.relative_to(image)), p.read_bytes() if p.is_file() else None) for p in paths))
    return found


def test_what_was_synced_survives_whatever_the_seed(disk: CrashDisk) -> None:
    page = page_of(disk)
    page.view[0:700] = b"a" * 700
    page.sync(0, 700)
    assert images(disk) == {b"a" * 700 + bytes(8 * BLOCK - 700)}


def test_un_synced_blocks_are_each_on_their_own_and_never_half(disk: CrashDisk) -> None:
    page = page_of(disk, 3)
    page.view[100:1300] = b"b" * 1200
    whole = bytes(page.view)
    parts = [(bytes(BLOCK), whole[at : at + BLOCK]) for at in range(0, 3 * BLOCK, BLOCK)]
    assert images(disk) == {b"".join(choice) for choice in itertools.product(*parts)}
    assert (disk.survivors(0) / "page").read_bytes() == bytes(3 * BLOCK)
    assert (disk.survivors(1) / "page").read_bytes() == whole


def test_a_sync_covers_its_range_alone(disk: CrashDisk) -> None:
    page = page_of(disk, 4)
    page.view[:] = b"c" * (4 * BLOCK)
    page.sync(BLOCK, 2 * BLOCK)
    assert all(data is not None and data[BLOCK : 2 * BLOCK] == b"c" * BLOCK for data in images(disk))
    assert (disk.survivors(0) / "page").read_bytes() == bytes(BLOCK) + b"c" * BLOCK + bytes(2 * BLOCK)


def test_any_state_that_a_step_saw_may_be_there(disk: CrashDisk) -> None:
    """The system writes back when it likes: an older state than the last, but never one from before the sync."""
    page = page_of(disk, 1)
    for letter in (b"1", b"2", b"3"):
        page.view[0:1] = letter
        disk.sync_directory(str(disk.root))
    assert {data[:1] for data in images(disk) if data} == {b"\0", b"1", b"2", b"3"}
    disk = CrashDisk(disk.root)
    page = disk.open_map(str(disk.root / "page"), BLOCK)
    for letter in (b"4", b"5", b"6"):
        page.view[0:1] = letter
        page.sync(0, 1) if letter == b"5" else disk.sync_directory(str(disk.root))
    assert {data[:1] for data in images(disk) if data} == {b"5", b"6"}


def test_stores_of_other_maps_and_of_closed_ones_are_seen(disk: CrashDisk) -> None:
    page, plain = page_of(disk, 2), Disk().open_map(str(disk.root / "page"), 2 * BLOCK)
    plain.view[0:1] = b"x"
    page.view[BLOCK : BLOCK + 1] = b"y"
    page.close()
    assert len(images(disk)) == 4


def test_names_need_their_directory(disk: CrashDisk) -> None:
    root = str(disk.root)
    disk.allocate(f"{root}/kept", 512)
    disk.allocate(f"{root}/new", 512, durable=False)
    disk.remove(f"{root}/kept", durable=False)
    names = {frozenset(name for name, _ in tree) for tree in trees(disk)}
    assert names == {frozenset(each) for each in ((), ("kept",), ("new",), ("kept", "new"))}


def test_a_forced_file_without_its_name_is_gone(disk: CrashDisk) -> None:
    path = str(disk.root / "file")
    disk.allocate(path, 512, durable=False)
    disk.sync_file(path)
    assert images(disk, "file") == {None, bytes(512)}


def test_a_name_without_a_forced_file_has_any_size(disk: CrashDisk) -> None:
    path = str(disk.root / "file")
    disk.allocate(path, 4 * BLOCK, durable=False)
    disk.sync_directory(str(disk.root))
    sizes = {len(data) for data in images(disk, "file") if data is not None}
    assert {0, 4 * BLOCK} < sizes
    assert not [size for size in sizes if size % BLOCK]


def test_what_lies_in_a_lost_directory_is_lost(disk: CrashDisk) -> None:
    disk.create_directory(f"{disk.root}/a", durable=False)
    disk.create_directory(f"{disk.root}/a/b")  # its name in `a` is safe, that of `a` is not
    assert trees(disk) == {frozenset(), frozenset({("a", None), ("a/b", None)})}


def test_durable_is_the_default_and_keeps_its_word(disk: CrashDisk) -> None:
    root = str(disk.root)
    disk.create_directory(f"{root}/a/b/c")
    disk.write_file(f"{root}/a/small", b"one")
    disk.write_file(f"{root}/a/small", b"two")
    disk.allocate(f"{root}/a/b/segment", 512)
    disk.rename(f"{root}/a/b/segment", f"{root}/a/moved")
    disk.exchange(f"{root}/a/moved", f"{root}/a/b/c")
    disk.write_file(f"{root}/gone", b"")
    disk.remove(f"{root}/gone")
    disk.create_directory(f"{root}/tree/below")
    disk.remove_tree(f"{root}/tree")
    kept = {("a", None), ("a/b", None), ("a/moved", None), ("a/b/c", bytes(512)), ("a/small", b"two")}
    assert trees(disk) == {frozenset(kept)}


@pytest.mark.parametrize(
    "call",
    [
        lambda disk, root: disk.create_directory(f"{root}/new/below"),
        lambda disk, root: disk.allocate(f"{root}/new", 512),
        lambda disk, root: disk.write_file(f"{root}/a/file", b"new"),
        lambda disk, root: disk.rename(f"{root}/a/file", f"{root}/b/moved"),
        lambda disk, root: disk.rename(f"{root}/a/file", f"{root}/a/moved"),
        lambda disk, root: disk.exchange(f"{root}/a", f"{root}/b"),
        lambda disk, root: disk.exchange(f"{root}/a/file", f"{root}/b/other"),
        lambda disk, root: disk.truncate(f"{root}/a/file", 1),
        lambda disk, root: disk.remove(f"{root}/a/file"),
        lambda disk, root: disk.remove_tree(f"{root}/a"),
    ],
)
def test_each_call_is_durable_by_itself(disk: CrashDisk, call: Callable[[Disk, str], None]) -> None:
    root = str(disk.root)
    for name in ("a/file", "b/other"):
        disk.create_directory(os.path.dirname(f"{root}/{name}"))
        disk.write_file(f"{root}/{name}", name.encode())
    before = trees(CrashDisk(disk.root))
    call(disk, root)
    after = trees(disk)
    assert len(after) == 1
    assert after != before


def test_write_file_is_old_or_new_at_every_step(tmp_path: Path) -> None:
    seen = set()
    for step in range(1, 100):
        disk = CrashDisk(tmp_path / f"disk{step}")
        path = str(disk.root / "small")
        disk.write_file(path, b"old" * 400)
        disk.crash_at = disk.steps + step
        with contextlib.suppress(Crashed):
            disk.write_file(path, b"new" * 500)
            break
        found = images(disk, "small")
        assert found <= {b"old" * 400, b"new" * 500}
        seen |= found
    assert disk.steps == disk.crash_at - 1 if disk.crash_at else False
    assert len(seen) == 2
    assert images(disk, "small") == {b"new" * 500}


def test_without_the_force_write_file_would_be_torn(disk: CrashDisk) -> None:
    """The disk finds the classic mistake: a rename of what was not forced."""
    disk.write_file(str(disk.root / "small"), b"old" * 400)
    disk.write_file(str(disk.root / "small"), b"new" * 500, durable=False)
    disk.sync_directory(str(disk.root))
    assert len(images(disk, "small") - {b"old" * 400, b"new" * 500}) > 3


def test_an_exchange_is_never_half(disk: CrashDisk) -> None:
    root = str(disk.root)
    for name in ("a", "b"):
        disk.create_directory(f"{root}/{name}")
        disk.write_file(f"{root}/{name}/{name}", b"")
    disk.exchange(f"{root}/a", f"{root}/b", durable=False)
    seen = {frozenset(name for name, content in tree if content is not None) for tree in trees(disk)}
    assert seen == {frozenset({"a/a", "b/b"}), frozenset({"a/b", "b/a"})}


def test_a_rename_between_directories_is_never_half(disk: CrashDisk) -> None:
    root = str(disk.root)
    disk.create_directory(f"{root}/a")
    disk.create_directory(f"{root}/b")
    disk.write_file(f"{root}/a/file", b"1")
    disk.rename(f"{root}/a/file", f"{root}/b/file", durable=False)
    directories = {("a", None), ("b", None)}
    assert trees(disk) == {frozenset({*directories, ("a/file", b"1")}), frozenset({*directories, ("b/file", b"1")})}


def test_later_names_win_when_a_directory_is_synced(disk: CrashDisk) -> None:
    """A sync takes along what touched the same names before, even from another directory."""
    root = str(disk.root)
    disk.create_directory(f"{root}/a")
    disk.create_directory(f"{root}/b")
    disk.allocate(f"{root}/a/x", 512, durable=False)
    disk.rename(f"{root}/a/x", f"{root}/b/x", durable=False)
    disk.sync_directory(f"{root}/b")
    assert all(name != "a/x" for tree in trees(disk) for name, _ in tree)
    assert all("b/x" in {name for name, _ in tree} for tree in trees(disk))


def test_a_cut_comes_back_or_not_and_zeros_follow(disk: CrashDisk) -> None:
    path = str(disk.root / "file")
    disk.write_file(path, b"d" * 1024)
    disk.truncate(path, 512, durable=False)
    assert images(disk, "file") == {b"d" * 1024, b"d" * 512 + bytes(512), b"d" * 512}
    disk = CrashDisk(disk.root)
    disk.allocate(path, 1024)
    assert images(disk, "file") == {b"d" * 512 + bytes(512)}


def test_a_failed_sync_loses_what_it_should_have_kept(disk: CrashDisk) -> None:
    """A second sync that succeeds says nothing about what the first lost; writing again does."""
    page = page_of(disk, 2)
    page.view[:] = b"e" * (2 * BLOCK)
    disk.fail_next_sync("pa*")
    with pytest.raises(SyncFailed):
        page.sync()
    page.view[0:1] = b"E"
    page.sync()
    found = images(disk)
    assert {data[:BLOCK] for data in found if data} == {b"E" + b"e" * (BLOCK - 1)}
    assert {data[BLOCK:] for data in found if data} == {bytes(BLOCK), b"e" * BLOCK}


def test_a_failed_sync_by_pattern(disk: CrashDisk) -> None:
    disk.fail_next_sync("log/*")
    disk.create_directory(f"{disk.root}/log")
    disk.write_file(f"{disk.root}/small", b"")
    with pytest.raises(SyncFailed, match="log/segment"):
        disk.allocate(f"{disk.root}/log/segment", 512)
    disk.allocate(f"{disk.root}/log/segment", 512)
    disk.fail_next_sync()
    with pytest.raises(SyncFailed):
        disk.sync_directory(str(disk.root))


def test_a_disk_that_fills_up(disk: CrashDisk) -> None:
    disk.full_after(1000)
    disk.allocate(f"{disk.root}/first", 512)
    assert disk.free_bytes(str(disk.root)) == 488
    for full in (lambda: disk.allocate(f"{disk.root}/b", 512), lambda: disk.write_file(f"{disk.root}/c", bytes(489))):
        with pytest.raises(StoreFull):
            full()
    assert os.listdir(disk.root) == ["first"]
    disk.full_after(None)
    disk.allocate(f"{disk.root}/second", 512)


def test_stores_after_the_crash_are_no_more(disk: CrashDisk) -> None:
    """`finally` blocks run on after the power went."""
    page = page_of(disk, 1)
    disk.crash()
    page.view[0:1] = b"z"
    with pytest.raises(Crashed):
        page.sync()
    assert images(disk) == {bytes(BLOCK)}


def test_no_handler_of_errors_lives_on(disk: CrashDisk) -> None:
    assert not issubclass(Crashed, Exception)
    assert not issubclass(Crashed, StoreError)


def test_the_same_seed_leaves_the_same(disk: CrashDisk) -> None:
    page = page_of(disk, 64)
    page.view[:] = b"h" * (64 * BLOCK)
    first, second = (disk.survivors(7) / "page", disk.survivors(7) / "page")
    assert first.parent != second.parent
    assert first.read_bytes() == second.read_bytes()


def test_the_next_boot_begins_with_what_survived(disk: CrashDisk) -> None:
    page = page_of(disk, 2)
    page.view[0:1] = b"i"
    page.sync(0, 1)
    after = CrashDisk(disk.survivors(0))
    assert after.boot_id() != disk.boot_id()
    assert after.read(str(after.root / "page"))[:1] == b"i"
    after.remove(str(after.root / "page"), durable=False)
    assert images(after) == {None, b"i" + bytes(2 * BLOCK - 1)}


def test_lock_files_do_not_survive(disk: CrashDisk) -> None:
    os.close(disk.open_lock(str(disk.root / "lock")))
    assert trees(disk) == {frozenset()}


def test_a_relative_root_and_what_lies_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    disk = CrashDisk("disk")
    disk.write_file("disk/small", b"1")
    disk.write_file("outside", b"2")
    assert images(disk, "small") == {b"1"}
    with pytest.raises(Missing):
        CrashDisk(disk.root).remove("nowhere")


def test_threads_share_it(disk: CrashDisk) -> None:
    """Every thread stops at the crash, at one step."""
    disk.crash_at = 100
    stopped = []

    def run(number: int) -> None:
        try:
            for turn in itertools.count():
                disk.write_file(str(disk.root / f"{number}-{turn}"), b"1")
        except Crashed:
            stopped.append(number)

    # write_file names its temporary file after the path, so threads with paths of their own do not meet
    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(stopped) == [0, 1, 2, 3]
    assert disk.steps == 100


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.integers(0, 15), st.integers(1, 255), st.booleans()), max_size=12),
    st.integers(0, 1 << 16),
)
def test_any_history_of_one_map(
    tmp_path_factory: pytest.TempPathFactory, history: list[tuple[int, int, bool]], seed: int
) -> None:
    """Each block is what was last synced of it or something later, by a model of plain dicts."""
    disk = CrashDisk(tmp_path_factory.mktemp("any") / "disk")
    page = page_of(disk, 16)
    allowed: dict[int, set[int]] = {block: {0} for block in range(16)}
    for block, value, sync in history:
        page.view[block * BLOCK : (block + 1) * BLOCK] = bytes([value]) * BLOCK
        allowed[block].add(value)
        if sync:
            page.sync(block * BLOCK, (block + 1) * BLOCK)
            allowed[block] = {value}
        else:
            disk.sync_directory(str(disk.root))
    data = (disk.survivors(seed) / "page").read_bytes()
    for block, values in allowed.items():
        assert data[block * BLOCK : (block + 1) * BLOCK] in {bytes([value]) * BLOCK for value in values}
