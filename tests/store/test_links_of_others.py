"""Links that the owner of a store put into it: root does not write where they lead, and copies nothing from there."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import broker
from broker.errors import StoreError
from broker.store.disk.files import Disk
from broker.store.disk.opening import give_directory
from broker.testing.crash_disk import SMALL
from recovery.checkback.catalog import Catalog
from recovery.jobs.setup import keep_report
from recovery.repair.copying import copy_store

NOBODY, ANOTHER = 65534, 65533
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may write where other users may not")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store of another user's, and beside it a directory `root` that is root's."""
    (tmp_path / "root").mkdir()
    store = tmp_path / "shop.store"
    with broker.open(store, layout=SMALL) as made:
        made.append(broker.Message("orders", b"1"))
    for one in (store, *store.rglob("*")):
        os.chown(one, NOBODY, NOBODY)
    return store


def plant(link: Path, target: Path, owner: int = NOBODY) -> None:
    """A link of another user's in the place of a file, or of a directory."""
    if link.exists():
        link.rename(link.with_name("was"))
    link.symlink_to(target)
    os.chown(link, owner, owner, follow_symlinks=False)


def use(path: Path) -> None:
    """What an operator's verbs do: they open, append a segment, take locks, keep a catalog."""
    with broker.open(path) as store:
        for _ in range(3):
            store.append(broker.Message("orders", bytes(SMALL.segment_bytes // 2)))
        Catalog.open(str(path), store.store_id).close()


@pytest.mark.parametrize("is_there", [True, False])
@pytest.mark.parametrize(
    "name",
    [f"commitlog/{SMALL.segment_bytes:020}", "checkback/sync.lock", "checkback/queues", "checkback/catalog.db",
     "checkback/catalog.db-wal", "config"],
)  # fmt: skip
def test_root_follows_no_link_to_what_is_not_its_owners(path: Path, name: str, is_there: bool) -> None:
    """A segment that led to authorized_keys got what was sent, and a lock that led to /etc/nologin made it."""
    target = path.parent / "root" / "precious"
    if name == "config":
        target.mkdir()
    elif is_there:
        target.write_bytes(b"precious")
    plant(path / name, target)
    with pytest.raises(broker.BrokerError, match="symbolic link that the user nobody made"):
        use(path)
    assert [one.read_bytes() for one in (path.parent / "root").rglob("*") if one.is_file()] in ([], [b"precious"])


def test_a_report_is_not_written_over_what_a_link_leads_to(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    precious = path.parent / "root" / "precious"
    precious.write_bytes(b"precious")
    assert keep_report(str(path), "verify-1.json", {"ok": True}) is not None
    reports = path / "checkback" / "reports"
    assert {one.stat().st_uid for one in (reports, *reports.iterdir())} == {NOBODY}
    plant(reports / ".verify-latest.json.new", precious)
    assert keep_report(str(path), "verify-2.json", {"ok": True}) is None
    assert precious.read_bytes() == b"precious"
    assert "symbolic link" in caplog.text


@pytest.mark.parametrize("name", ["config/note", "checkback/catalog.db", "old"])
def test_root_copies_no_file_that_a_link_leads_to(path: Path, name: str) -> None:
    """A copy that all may read had what root alone may read."""
    secret = path.parent / "root" / "secret"
    secret.write_bytes(b"secret")
    plant(path / name, secret.parent if name == "old" else secret)
    with pytest.raises(StoreError, match="symbolic link"):
        copy_store(str(path), str(path.parent / "copy"))
    assert sorted(one.name for one in path.parent.iterdir()) == ["root", "shop.store"]


def test_a_directory_that_a_link_leads_to_is_not_given_away(path: Path) -> None:
    made = path.parent / "root" / "made"
    made.mkdir()
    plant(path / "made", made)
    give_directory(str(path / "made"))
    assert made.stat().st_uid == 0


def of_root(path: Path) -> None:
    os.chown(path / "commitlog", 0, 0, follow_symlinks=False)


def of_its_owner(path: Path) -> None:
    os.chown(path.parent / "root" / "log", NOBODY, NOBODY)


@pytest.mark.parametrize("rightly", [of_root, of_its_owner])
def test_root_follows_its_own_links_and_those_to_what_is_their_owners(
    path: Path, rightly: Callable[[Path], None]
) -> None:
    """A log on another disk: operators put it there."""
    log = path.parent / "root" / "log"
    (path / "commitlog").rename(log)
    plant(path / "commitlog", log)
    os.chown(log, ANOTHER, ANOTHER)
    with pytest.raises(StoreError, match="symbolic link"):
        use(path)
    rightly(path)
    use(path)
    assert len(list(log.iterdir())) > 1


def test_a_link_of_roots_that_leads_to_a_link_of_anothers(path: Path) -> None:
    """And one of root's that leads to itself ends."""
    root = path.parent / "root"
    plant(path / "mine", root)
    (root / "to-theirs").symlink_to(path / "mine")
    with pytest.raises(StoreError, match="symbolic link"):
        Disk().write_file(str(root / "to-theirs" / "file"), b"x")
    (root / "round").symlink_to("round")
    with pytest.raises(StoreError):
        Disk().write_file(str(root / "round" / "file"), b"x")
    assert sorted(one.name for one in root.iterdir()) == ["round", "to-theirs"]


def test_root_goes_through_proc_where_the_kernel_says(tmp_path: Path) -> None:
    """Into a container, say: `/proc/PID/root` reads `/`, and belongs to the user of its process."""
    there = tmp_path / "there"
    there.mkdir()
    with subprocess.Popen(["sleep", "60"], cwd=there, user=NOBODY) as process:
        try:
            Disk().write_file(f"/proc/{process.pid}/cwd/file", b"x")
        finally:
            process.kill()
    assert (there / "file").read_bytes() == b"x"
