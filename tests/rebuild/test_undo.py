"""What a rebuild replaced is kept aside: `rebuild --undo` brings it back byte for byte, whoever is killed."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import broker
from broker.errors import StoreError
from broker.store.disk.files import Disk
from broker.store.disk.paths import Paths
from broker.store.writer import open_writer
from recovery.rebuild import replaced
from recovery.rebuild.rebuilder import rebuild
from recovery.rebuild.undo import undo
from tests.cli.command import command
from tests.rebuild.derived_files import on_disk, store_of
from tests.rebuild.dying import Deaf, Killed, dying
from tests.store.filled import fill

pytestmark = pytest.mark.usefixtures("is_still")

# What was replaced


def damaged(path: Path) -> Path:
    """One unit of a queue is gone."""
    file = next(file for file in sorted((path / "consumequeue").rglob("0" * 20)) if any(file.read_bytes()))
    raw = bytearray(file.read_bytes())
    raw[0:20] = bytes(20)
    file.write_bytes(raw)
    return file


def outside_checkback(path: Path) -> dict[str, str]:
    return {name: digest for name, digest in on_disk(path).items() if name.split(os.sep)[0] != "checkback"}


def test_undo_brings_back_a_store_of_rocketmq_byte_for_byte(
    kind_store: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path = kind_store("rocketmq-5.3.3-plain")
    damaged(path)
    (path / "abort").write_text("4711")
    before = outside_checkback(path)
    ran = command(capsys, "rebuild", path)
    assert (ran.code, outside_checkback(path)) == (1, before)
    assert (
        f"Stop the broker. Then put what was made in place with: checkback rebuild {path} --apply --broker" in ran.out
    )
    ran = command(capsys, "rebuild", path, "--apply", "--broker-is-stopped")
    assert ran.code == 0, ran.err
    assert f"checkback rebuild {path} --undo --broker-is-stopped" in ran.out
    after = outside_checkback(path)
    assert after != before
    (kept,) = (path / "checkback" / "replaced").iterdir()
    manifest = json.loads((kept / "manifest.json").read_text())
    assert [part["live"] for part in manifest["parts"]] == ["consumequeue"], "what was equal stays"
    assert manifest["files"] == {"checkpoint": True, "abort": True}
    assert {str(file.relative_to(kept)) for file in kept.rglob("*") if file.is_file()} == {
        *manifest["sums"], "manifest.json",
    }  # fmt: skip
    ran = command(capsys, "rebuild", path, "--undo", "--broker-is-stopped")
    assert ran.code == 0, ran.err
    assert outside_checkback(path) == before
    ran = command(capsys, "rebuild", path, "--undo", "--broker-is-stopped")
    assert (ran.code, outside_checkback(path)) == (2, before)
    assert "nothing to undo" in ran.err


def test_undo_brings_back_a_store_of_ours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = store_of(tmp_path / "store", 60)
    file = damaged(path)
    parts = ("consumequeue", "index", "transaction")
    before = {name: digest for name, digest in on_disk(path).items() if name.startswith(parts)}
    ran = command(capsys, "rebuild", path, "--apply")
    assert ran.code == 0, ran.err
    assert any(file.read_bytes()[:20])
    assert command(capsys, "rebuild", path, "--undo").code == 0
    assert {name: digest for name, digest in on_disk(path).items() if name.startswith(parts)} == before
    assert command(capsys, "rebuild", path).code == 1


def test_undo_refuses_when_the_store_went_on(
    tmp_path: Path, kind_store: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    ours = store_of(tmp_path / "store", 30)
    damaged(ours)
    assert command(capsys, "rebuild", ours, "--apply").code == 0
    store = open_writer(str(ours), Disk(), sync="os")
    fill(store, 30, 3)
    store.close()
    ran = command(capsys, "rebuild", ours, "--undo")
    assert (ran.code, "appended since" in ran.err) == (2, True), ran.err
    assert command(capsys, "rebuild", ours).code == 0
    theirs = kind_store("rocketmq-5.3.3-plain")
    damaged(theirs)
    assert command(capsys, "rebuild", theirs, "--apply", "--broker-is-stopped").code == 0
    os.utime(theirs / "commitlog" / f"{0:020}")
    after = outside_checkback(theirs)
    ran = command(capsys, "rebuild", theirs, "--undo", "--broker-is-stopped")
    assert (ran.code, outside_checkback(theirs)) == (2, after)
    assert f"{theirs}/commitlog/{0:020} changed since" in ran.err


def test_kept_copies_are_deleted_only_when_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = store_of(tmp_path / "store", 30)
    for _ in range(2):
        damaged(path)
        assert command(capsys, "rebuild", path, "--apply").code == 0
    first, second = sorted(one.name for one in (path / "checkback" / "replaced").iterdir())
    ran = command(capsys, "rebuild", path)
    assert "2 replaced copies take" in ran.out
    ran = command(capsys, "rebuild", path, first, "--undo")
    assert (ran.code, "undo that one first" in ran.err) == (2, True)
    assert command(capsys, "rebuild", path, "nothing", "--forget-replaced").code == 2
    assert command(capsys, "rebuild", path, first, "--forget-replaced").code == 0
    assert [one.name for one in (path / "checkback" / "replaced").iterdir()] == [second]
    assert command(capsys, "rebuild", path, "--forget-replaced").code == 0
    assert not (path / "checkback" / "replaced").exists()


@pytest.mark.parametrize("is_link", [True, False])
def test_what_no_rename_swaps_is_refused_before_the_exchange_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_link: bool
) -> None:
    """A directory that is a link, or on a disk of its own: an exchange that never ends would let nobody append."""
    path = store_of(tmp_path / "store", 30)
    file = damaged(path)
    where = replaced._mount_of
    with monkeypatch.context() as patch:
        if is_link:
            (path / "consumequeue").rename(tmp_path / "queues")
            (path / "consumequeue").symlink_to("../queues")
        else:
            patch.setattr(
                replaced, "_mount_of", lambda directory: 0 if "consumequeue" in directory else where(directory)
            )
        with pytest.raises(
            StoreError, match=r"consumequeue (is a symbolic link|lies on another disk).*Nothing was repl"
        ):
            rebuild(path, apply=True)
        with broker.open(path) as store:
            store.append(broker.Message("orders", b"goes on"))
    if is_link:
        (path / "consumequeue").unlink()
        (tmp_path / "queues").rename(path / "consumequeue")
    assert rebuild(path, apply=True).replacement is not None
    with monkeypatch.context() as patch:
        patch.setattr(replaced, "_mount_of", lambda directory: 0 if "replaced" in directory else where(directory))
        with pytest.raises(StoreError, match="lies on another disk"):
            undo(path)
    assert file.exists()
    undo(path)
    with broker.open(path) as store:
        store.append(broker.Message("orders", b"goes on"))


def test_a_store_in_the_image_of_a_container_is_refused_before_the_exchange_begins(tmp_path: Path) -> None:
    """A directory of a lower layer of an overlay moves nowhere: the exchange was begun, and nobody could append."""
    damaged(store_of(tmp_path / "image" / "store", 30))
    layers = {name: tmp_path / name for name in ("image", "upper", "work", "merged")}
    for layer in layers.values():
        layer.mkdir(exist_ok=True)
    options = f"lowerdir={layers['image']},upperdir={layers['upper']},workdir={layers['work']},redirect_dir=off"
    mount = ["mount", "-t", "overlay", "overlay", "-o", options, str(layers["merged"])]
    done = subprocess.run(mount, capture_output=True, check=False, text=True)
    if done.returncode:
        pytest.skip(f"cannot mount here: {done.stderr.strip()}")
    path = layers["merged"] / "store"
    try:
        with pytest.raises(StoreError, match=r"consumequeue lies in a lower layer of an overlay.*Nothing was replaced"):
            rebuild(path, apply=True)
        with broker.open(path) as store:
            store.append(broker.Message("orders", b"goes on"))
        shutil.copytree(path / "consumequeue", path / "copy")
        shutil.rmtree(path / "consumequeue")
        (path / "copy").rename(path / "consumequeue")
        assert rebuild(path, apply=True).replacement is not None
    finally:
        subprocess.run(["umount", "--lazy", str(layers["merged"])], check=True)


def test_a_changed_copy_is_not_brought_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = store_of(tmp_path / "store", 30)
    damaged(path)
    assert command(capsys, "rebuild", path, "--apply").code == 0
    file = next(one for one in (path / "checkback" / "replaced").rglob("0" * 20) if any(one.read_bytes()))
    file.write_bytes(b"\1" + file.read_bytes()[1:])
    after = outside_checkback(path)
    ran = command(capsys, "rebuild", path, "--undo")
    assert (ran.code, outside_checkback(path)) == (4, after)
    assert f"{file} is not what was kept there" in ran.err


@pytest.mark.sample("_exchange-Disk", "_rename-Deaf", "_write-Disk", "_remove_file-Deaf")
@pytest.mark.parametrize("base", [Disk, Deaf])
@pytest.mark.parametrize("name", ["_exchange", "_rename", "_write", "_remove_file"])
def test_a_kill_loses_neither_the_old_files_nor_the_way_back(
    kind_store: Callable[[str], Path], tmp_path: Path, base: type[Disk], name: str
) -> None:
    """Killed in a rebuild the old files are live or kept; killed in an undo the next undo ends it."""
    source = kind_store("rocketmq-5.3.3-plain")
    damaged(source)
    (source / "abort").write_text("4711")
    before, kills = outside_checkback(source), 0
    old = {path: digest for path, digest in before.items() if path.startswith("consumequeue")}
    for call in range(1, 26, 4):
        path = shutil.copytree(source, tmp_path / f"{call}")
        kills += _killed(lambda disk, path=path: _apply(path, disk), dying(base, name, call))
        kept = on_disk(path / "checkback") if (path / "checkback").exists() else {}
        assert set(old.values()) <= {*on_disk(path).values(), *kept.values()}
        assert _apply(path, Disk()).applied
        kills += _killed(lambda disk, path=path: undo(path, broker_is_stopped=True, disk=disk), dying(base, name, call))
        for _ in range(2):  # a rebuild that was killed after its exchange is followed by one that closes the store
            with contextlib.suppress(StoreError):
                undo(path, broker_is_stopped=True)
        with pytest.raises(StoreError, match="nothing to undo"):
            undo(path, broker_is_stopped=True)
        now = outside_checkback(path)
        assert {name: digest for name, digest in now.items() if not name.endswith(".tmp")} == before
    assert kills or (base is Deaf and name == "_exchange")


def _apply(path: Path, disk: Disk) -> Any:
    return rebuild(path, apply=True, broker_is_stopped=True, disk=disk)


def _killed(act: Callable[[Disk], object], disk: Disk) -> bool:
    try:
        act(disk)
    except Killed:
        return True
    return False


@pytest.mark.parametrize(
    ("built", "has_old", "goes"),
    [("kept", True, True), ("live", True, False), ("live", False, False), ("neither", True, False)],
)
def test_only_what_was_built_and_never_used_is_removed(tmp_path: Path, built: str, has_old: bool, goes: bool) -> None:
    """Of a rebuild that was killed: what it replaced stays, if there was any, whatever took its place since."""
    disk, paths, live = Disk(), Paths(str(tmp_path)), tmp_path / "index"
    kept = Path(paths.replaced) / "20261127T000000.000000Z" / "index"
    for directory in (live, kept):
        directory.mkdir(parents=True)
    inodes = {"kept": kept.stat().st_ino, "live": live.stat().st_ino, "neither": 0xFFFFFFFF}
    if not has_old:
        kept.rmdir()
    made = replaced.Replacement(kept.parent.name, "checkback rebuild", "ada", replaced.BEGUN, [], [], {})
    made.parts = [replaced.Part("index", "index", old_inode=0, built_inode=inodes[built])]
    replaced.write(disk, paths, made)
    replaced.remove_unused(disk, paths)
    assert kept.parent.exists() is not goes
