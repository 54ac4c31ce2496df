"""Unpack the golden stores: `python tests/golden/unpack.py DIR` puts each into DIR/NAME."""

from __future__ import annotations

import os
import shutil
import sys
import tarfile
from pathlib import Path, PurePosixPath

HERE = Path(__file__).resolve().parent
SUFFIX = ".tar.gz"
BLOCK_BYTES = 4096
ZEROS = bytes(BLOCK_BYTES)


def names() -> list[str]:
    """The golden stores, in order: `<generation>-<case>`."""
    return sorted(path.name.removesuffix(SUFFIX) for path in HERE.glob(f"*{SUFFIX}"))


def unpack(name: str, directory: Path) -> Path:
    """Write the store called `name` into `directory`, which is made. Returns `directory`.

    Segments are mostly zeros, which are left as holes: 43 MB of a store take 3 MB of disk. The standard library's
    extraction writes them out, and its `filter="data"` is missing from the first releases of Python 3.11; so a member
    that is neither a file nor a directory, or that would land outside of `directory`, is refused here.
    """
    directory.mkdir(parents=True)
    with tarfile.open(HERE / f"{name}{SUFFIX}") as archive:
        for member in archive:
            path = PurePosixPath(member.name)
            if path.is_absolute() or ".." in path.parts or not (member.isfile() or member.isdir()):
                raise ValueError(f"{name}{SUFFIX} holds {member.name!r}, which is no file or directory of a store")
            target = directory / path
            if member.isdir():
                target.mkdir(exist_ok=True)
            else:
                _write(target, member, archive)
    return directory


def _write(target: Path, member: tarfile.TarInfo, archive: tarfile.TarFile) -> None:
    content = archive.extractfile(member)
    assert content is not None
    with target.open("xb") as out:
        while block := content.read(BLOCK_BYTES):
            if block == ZEROS:
                out.seek(BLOCK_BYTES, os.SEEK_CUR)
            else:
                out.write(block)
        out.truncate(member.size)
    os.utime(target, (member.mtime, member.mtime))


def main(directory: Path) -> None:
    """Unpack each store that `directory` lacks or holds from an older archive."""
    for name in names():
        store, unfinished = directory / name, directory / f".{name}"
        if store.is_dir() and store.stat().st_mtime >= (HERE / f"{name}{SUFFIX}").stat().st_mtime:
            continue
        for old in (store, unfinished):
            shutil.rmtree(old, ignore_errors=True)
        unpack(name, unfinished).rename(store)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
