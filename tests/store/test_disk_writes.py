"""The writing side of the disk: directories, files, names; what fails says why and leaves nothing behind."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import broker
from broker.errors import StoreError, StoreFull, SyncFailed
from broker.store.disk import platform_info as machine
from broker.store.disk.files import Disk, Missing, NotSupported
from broker.store.disk.os_errors import refused
from broker.testing.crash_disk import CrashDisk
from broker.testing.fixtures import SMALL
from recovery.verify.verifier import verify
from tests.store.permissions import NOBODY

DISK = Disk()


def test_allocate_gives_every_byte_a_block(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    DISK.allocate(str(path), 1 << 20)
    assert path.stat().st_size == 1 << 20
    assert path.stat().st_blocks * 512 >= 1 << 20
    assert not any(path.read_bytes())


def test_allocate_keeps_what_is_there(tmp_path: Path) -> None:
    """A file with holes, as Java makes them, gets its blocks; one that is too short grows."""
    path = tmp_path / "segment"
    path.write_bytes(b"mine")
    DISK.allocate(str(path), 1 << 20)
    assert path.read_bytes() == b"mine".ljust(1 << 20, b"\0")
    sparse = tmp_path / "sparse"
    with sparse.open("wb") as file:
        file.truncate(1 << 20)
    DISK.allocate(str(sparse), 1 << 20, durable=False)
    assert sparse.stat().st_blocks * 512 >= 1 << 20
    with pytest.raises(StoreError, match="has 1048576 bytes where 4096 are expected"):
        DISK.allocate(str(path), 4096)
    assert path.stat().st_size == 1 << 20


def test_a_segment_that_lost_its_zeros_is_whole_again_as_the_error_says(tmp_path: Path) -> None:
    """As a copy leaves it that drops zeros at the end of a file."""
    with broker.open(tmp_path / "store", sync="os") as store:
        store.append(broker.Message("orders", b"body"))
    (segment,) = (tmp_path / "store" / "commitlog").iterdir()
    size = segment.stat().st_size
    os.truncate(segment, size - 4096)
    says = f"it was cut.*truncate -s {size} {segment}. See"
    with pytest.raises(StoreError, match=says), broker.open(tmp_path / "store") as store:
        store.append(broker.Message("orders", b"body"))
    os.truncate(segment, size)
    with broker.open(tmp_path / "store") as store:
        store.append(broker.Message("orders", b"body"))
    assert verify(tmp_path / "store").ok


@pytest.mark.parametrize("error", [AttributeError(), OSError(errno.EOPNOTSUPP, "not supported")])
def test_allocate_where_the_system_cannot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Zeros are written; what is there stays."""

    def refuse(*_arguments: int) -> None:
        raise error

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    path = tmp_path / "segment"
    path.write_bytes(b"mine")
    DISK.allocate(str(path), (2 << 20) + 7)
    assert path.read_bytes() == b"mine".ljust((2 << 20) + 7, b"\0")
    assert path.stat().st_blocks * 512 >= 2 << 20


def test_what_is_filled_is_told_from_holes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when reading one stretch brings what follows it into memory, and where no holes are known."""
    path = tmp_path / "segment"
    size, places = 32 << 20, (0, 5 << 20, (32 << 20) - 4096)
    DISK.allocate(str(path), size)
    with path.open("r+b") as file:
        for place in places:
            file.seek(place)
            file.write(b"\x01" * 4096)
    file = DISK.open_read(str(path))
    found = file.filled(0)
    assert all(any(start <= place and place + 4096 <= stop for start, stop in found) for place in places)
    assert found == sorted(found)
    assert file.filled(size) == []
    assert file.filled(size - 10) == [(size - 10, size)]
    file.warm(0, size)
    assert path.read_bytes().count(1) == len(places) * 4096

    def refuse(*_: object) -> int:
        raise OSError(errno.EINVAL, "not here")

    monkeypatch.setattr(os, "lseek", refuse)
    assert file.filled(17) == [(17, size)]


def test_allocate_needs_its_directory(tmp_path: Path) -> None:
    with pytest.raises(Missing):
        DISK.allocate(str(tmp_path / "none" / "segment"), 4096)


def test_directories_with_parents(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "c"
    DISK.create_directory(str(path))
    DISK.create_directory(str(path))
    DISK.create_directory(str(path), durable=False)
    assert path.is_dir()
    DISK.sync_directory(str(path))
    (tmp_path / "file").touch()
    with pytest.raises(StoreError):
        DISK.create_directory(str(tmp_path / "file" / "below"))
    with pytest.raises(StoreError):
        DISK.create_directory(str(tmp_path / "file"))


def test_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    DISK.create_directory("store")
    DISK.write_file("small", b"1")
    DISK.allocate("segment", 512)
    DISK.rename("small", "other")
    DISK.remove("other")
    assert sorted(os.listdir()) == ["segment", "store"]


def test_write_file_replaces_whole(tmp_path: Path) -> None:
    path = tmp_path / "small"
    for data in (b"one", b"", b"x" * (3 << 20)):
        DISK.write_file(str(path), data)
        assert path.read_bytes() == data
    DISK.write_file(str(path), b"three", durable=False)
    assert [item.name for item in tmp_path.iterdir()] == ["small"]


def test_write_file_meets_what_a_killed_process_left(tmp_path: Path) -> None:
    (tmp_path / f"small.{os.getpid()}.tmp").write_bytes(b"longer than what comes")
    DISK.write_file(str(tmp_path / "small"), b"new")
    assert {item.name: item.read_bytes() for item in tmp_path.iterdir()} == {"small": b"new"}


def test_write_file_in_place_of_a_directory_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "directory").mkdir()
    with pytest.raises(StoreError):
        DISK.write_file(str(tmp_path / "directory"), b"x")
    assert [item.name for item in tmp_path.iterdir()] == ["directory"]


def test_exchange_swaps_directories_and_files(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    a.mkdir()
    (a / "inside").touch()
    b.write_bytes(b"file")
    number = DISK.inode(str(a))
    DISK.exchange(str(a), str(b))
    assert a.read_bytes() == b"file"
    assert (b / "inside").exists()
    assert DISK.inode(str(b)) == number
    with pytest.raises(Missing):
        DISK.exchange(str(a), str(tmp_path / "none"))


def test_exchange_where_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An old kernel, an old C library, a file system that cannot."""
    import ctypes

    (tmp_path / "a").touch()
    (tmp_path / "b").touch()
    monkeypatch.setattr(ctypes, "CDLL", lambda *_args, **_options: object())
    with pytest.raises(NotSupported):
        DISK.exchange(str(tmp_path / "a"), str(tmp_path / "b"))


@contextmanager
def mounted(options: list[str], point: Path) -> Iterator[None]:
    """A tmpfs, or another directory of the same file system, at an empty directory."""
    point.mkdir(exist_ok=True)
    done = subprocess.run(["mount", *options, str(point)], capture_output=True, check=False, text=True)
    if done.returncode:
        pytest.skip(f"cannot mount here: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(point)], check=True)


@pytest.mark.parametrize("bound", [False, True])
def test_a_queue_on_another_mount_is_refused_before_a_record_exists(tmp_path: Path, bound: bool) -> None:
    """The record was in the log, its unit could not be written, and no process could append or recover any more."""
    (tmp_path / "other").mkdir()
    options = ["--bind", str(tmp_path / "other")] if bound else ["-t", "tmpfs", "tmpfs"]
    path = tmp_path / "store"
    with broker.open(path, layout=SMALL) as store:
        store.append(broker.Message("orders", b"1"))
        with mounted(options, path / "consumequeue" / "new"):
            with pytest.raises(StoreError, match=r"is another file system, or another mount, than .*begun, from which"):
                store.append(broker.Message("new", b"2"))
            end = store.append(broker.Message("orders", b"3")).end
        assert store.end_offset == end
    refused = pytest.raises(StoreError, match=r"consumequeue is another file system, .* than .*checkback, from which")
    with mounted(options, path / "consumequeue"), refused:
        broker.open(path)


def test_names(tmp_path: Path) -> None:
    (tmp_path / "directory").mkdir()
    (tmp_path / "old").write_bytes(b"1")
    DISK.rename(str(tmp_path / "old"), str(tmp_path / "directory" / "new"))
    assert (tmp_path / "directory" / "new").read_bytes() == b"1"
    (tmp_path / "directory" / "link").symlink_to(tmp_path / "kept")
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").touch()
    DISK.remove_tree(str(tmp_path / "directory"))
    DISK.remove_tree(str(tmp_path / "directory"))
    assert [item.name for item in tmp_path.iterdir()] == ["kept"]
    assert (tmp_path / "kept" / "file").exists()
    DISK.remove(str(tmp_path / "kept" / "file"), durable=False)
    tmp_path.joinpath("long").write_bytes(b"0123456789")
    DISK.truncate(str(tmp_path / "long"), 4)
    assert tmp_path.joinpath("long").read_bytes() == b"0123"


@pytest.mark.parametrize(
    "call",
    [
        DISK.remove,
        lambda path: DISK.rename(path, path + "2"),
        lambda path: DISK.open_map(path, 4096),
        DISK.inode,
        DISK.sync_file,
        DISK.sync_directory,
        lambda path: DISK.truncate(path, 0),
        lambda path: DISK.open_lock(path, write=False),
    ],
)
def test_what_is_missing_is_missing(tmp_path: Path, call: Callable[[str], object]) -> None:
    with pytest.raises(Missing):
        call(str(tmp_path / "none"))


@pytest.mark.parametrize("name", ["fdatasync", "fsync"])
def test_a_failed_sync_has_its_own_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, name, fail)
    with pytest.raises(SyncFailed, match="failed to keep what was written"):
        DISK.write_file(str(tmp_path / "small"), b"1")
    if name == "fdatasync":
        assert not list(tmp_path.iterdir())


def test_full_by_the_limit_of_the_process(tmp_path: Path) -> None:
    """ulimit -f, in a child: Python ignores SIGXFSZ, so the call fails."""
    script = f"""
import resource
from broker.errors import StoreFull
from broker.store.disk.files import Disk
resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))
Disk().allocate({str(tmp_path / "fits")!r}, 8192)
big, file = {str(tmp_path / "big")!r}, {str(tmp_path / "file")!r}
for call in (lambda: Disk().allocate(big, 8193), lambda: Disk().write_file(file, bytes(9000))):
    try:
        call()
    except StoreFull as error:
        print(error.needed_bytes, "ulimit -f" in str(error))
"""
    told = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    assert told == "8193 True\n9000 True\n"
    assert [item.name for item in tmp_path.iterdir()] == ["fits"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_no_permission(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(StoreError, match="may not be written by this user"):
        DISK.allocate(str(tmp_path / "segment"), 4096)


def test_a_file_system_that_is_read_only_is_to_be_mounted_for_writing() -> None:
    """As Linux mounts one when its disk fails: a verb that writes was told to open the store with read_only=True."""
    refusal = refused(OSError(errno.EROFS, "Read-only file system"), "/srv/shop.store/lock")
    assert "/srv/shop.store/lock cannot be written: its file system is mounted read-only. Mount it for" in str(refusal)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files for others")
def test_what_root_makes_belongs_to_the_owner_of_its_directory(tmp_path: Path) -> None:
    """And has its permissions, however careful root's umask is; a link that leads out of it gives nothing away."""
    store, outside = tmp_path / "store", tmp_path / "outside"
    store.mkdir()
    os.chown(store, NOBODY, NOBODY)
    store.chmod(0o2775)
    before = os.umask(0o077)
    try:
        DISK.allocate(str(store / "segment"), 4096)
        DISK.write_file(str(store / "small"), b"1")
        os.close(DISK.open_lock(str(store / "lock")))
        DISK.create_directory(str(store / "a" / "b"))
        DISK.create_directory(str(store / "another.store"), in_store=False)
        (store / "link").symlink_to(outside)
        os.close(DISK.open_lock(str(store / "link")))
    finally:
        os.umask(before)
    made = {name: (store / name).stat() for name in ("segment", "small", "lock", "a", "a/b")}
    assert {(found.st_uid, found.st_gid) for found in made.values()} == {(NOBODY, NOBODY)}
    assert [oct(found.st_mode & 0o7777) for found in made.values()] == ["0o664"] * 3 + ["0o2775"] * 2
    assert (outside.stat().st_uid, (store / "another.store").stat().st_uid) == (0, 0)


def test_no_file_takes_the_number_of_a_closed_stream(tmp_path: Path) -> None:
    """A program without standard error: what a C library reports there went into the first file that was opened."""
    script = f"""
import os
from broker.store.disk.files import Disk
for number in range(3):
    os.close(number)
disk, path = Disk(), {str(tmp_path / "control")!r}
disk.allocate(path, 4096)
held = disk.open_map(path, 4096), disk.open_lock(path), disk.open_read(path)
os.write(2, b"libfoo: warning")
assert not any(held[0].view), bytes(held[0].view[:20])
assert min(held[0].file.descriptor, held[1]) > 2
"""
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_the_machine(tmp_path: Path) -> None:
    assert DISK.free_bytes(str(tmp_path / "not" / "yet")) > 0
    assert DISK.boot_id() == DISK.boot_id()
    assert DISK.is_local(str(tmp_path))
    assert CrashDisk(tmp_path / "a").boot_id() != CrashDisk(tmp_path / "b").boot_id()


MOUNTS = r"""
21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
22 21 0:5 / /data rw - xfs /dev/sdb rw
23 22 0:6 / /data/net rw shared:2 master:1 - nfs4 server:/export rw,vers=4.2
24 21 0:7 / /with\040space rw - fuse.sshfs user@host: rw
25 21 0:8 / /twice rw - ext4 /dev/sdc rw
26 25 0:9 / /twice rw - cifs //host/share rw
nonsense
""".splitlines()


@pytest.mark.parametrize(
    ("path", "kind", "remote"),
    [
        ("/home", "ext4", False),
        ("/", "ext4", False),
        ("/data", "xfs", False),
        ("/database", "ext4", False),
        ("/data/net/store", "nfs4", True),
        ("/data/network", "xfs", False),
        ("/with space/store", "fuse.sshfs", True),
        ("/twice/store", "cifs", True),
    ],
)
def test_file_systems_by_their_mounts(path: str, kind: str, remote: bool) -> None:
    assert machine.kind_of_mount(MOUNTS, path) == kind
    assert machine.is_remote(kind) == remote


def test_a_system_that_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_MOUNTS", "/nowhere")
    monkeypatch.setattr(machine, "_BOOT_ID", "/nowhere")
    assert machine.file_system("/") == ""
    assert DISK.is_local("/")
    assert machine.boot_id() == ""


def test_a_system_with_too_many_open_files_would_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a boot id a store that other processes have open is taken for one of another version."""

    def refuse(path: str, **_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)

    monkeypatch.setattr(machine, "open", refuse, raising=False)
    with pytest.raises(StoreError, match="too many files are open"):
        machine.boot_id()


def test_full_is_told_with_numbers(tmp_path: Path) -> None:
    disk = CrashDisk(tmp_path / "disk")
    disk.full_after(100)
    with pytest.raises(StoreFull) as caught:
        disk.allocate(str(disk.root / "segment"), 4096)
    assert (caught.value.needed_bytes, caught.value.free_bytes) == (4096, 100)
    assert not list(disk.root.iterdir())
