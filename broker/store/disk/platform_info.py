"""What only the operating system knows: which boot this is, which file system a path lies on, how two names swap."""

from __future__ import annotations

import errno
import os
import re
import sys

from broker.store.disk.os_errors import NotSupported, explained

_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_MOUNTS = "/proc/self/mountinfo"

# Other machines write there too, and share neither locks nor maps with us. `fuse.` covers sshfs, s3fs, GlusterFS.
_REMOTE = {
    "9p", "acfs", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "fuse", "gfs", "gfs2", "glusterfs", "gpfs",
    "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "panfs", "prl_fs", "pvfs2", "smb3", "smbfs", "vboxsf",
    "virtiofs", "vmhgfs",
}  # fmt: skip


def boot_id() -> str:
    """A name for the time since the machine was started; empty when the system does not tell: then trust no memory.

    Raises StoreError when too many files are open: it would tell, and a store in use would be taken for another's.
    """
    try:
        with open(_BOOT_ID, encoding="ascii") as file:
            return file.read().strip()
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            raise explained(error, _BOOT_ID) from error
        return _boot_session() if sys.platform == "darwin" else ""


def _boot_session() -> str:
    """macOS."""
    import ctypes

    value, size = ctypes.create_string_buffer(64), ctypes.c_size_t(64)
    library = ctypes.CDLL(None)
    if library.sysctlbyname(b"kern.bootsessionuuid", value, ctypes.byref(size), None, 0):
        return ""
    return value.value.decode("ascii", "replace")


def file_system(path: str) -> str:
    """The kind of file system that a path lies on, as mount(8) calls it; empty when the system does not tell."""
    try:
        with open(_MOUNTS, encoding="utf-8", errors="surrogateescape") as file:
            lines = file.read().splitlines()
    except OSError:
        return ""
    return kind_of_mount(lines, os.path.realpath(path))


def kind_of_mount(lines: list[str], path: str) -> str:
    """The file system of an absolute path by the lines of mountinfo: the deepest mount point, of equals the last."""
    best, kind = "", ""
    for line in lines:
        before, found, after = line.partition(" - ")
        fields = before.split(" ")
        if not found or len(fields) < 5:
            continue
        # Spaces and the like are written as \040.
        point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[4])
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, after.split(" ")[0]
    return kind


def is_remote(kind: str) -> bool:
    """Whether a file system of this kind is shared with other machines."""
    return kind in _REMOTE or kind.startswith("fuse.")


def exchange(path_a: str, path_b: str) -> None:
    """Swap what two names mean, in one step. Raises OSError, and NotSupported where there is no such step."""
    import ctypes

    library = ctypes.CDLL(None, use_errno=True)
    a, b = os.fsencode(path_a), os.fsencode(path_b)
    try:
        if sys.platform == "darwin":
            failed = library.renamex_np(a, b, 0x2)  # RENAME_SWAP
        else:
            failed = library.renameat2(-100, a, -100, b, 0x2)  # AT_FDCWD, RENAME_EXCHANGE
    except AttributeError:
        raise _cannot_exchange(path_a) from None
    if failed:
        number = ctypes.get_errno()
        if number in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
            raise _cannot_exchange(path_a)
        raise OSError(number, os.strerror(number), path_a, None, path_b)


def _cannot_exchange(path: str) -> NotSupported:
    return NotSupported(f"{path}: this file system cannot exchange two names in one step", path=path)
