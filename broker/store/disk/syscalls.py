"""The calls that change something on a disk, one function for each call to the system.

`Disk` is made of them, and a disk that stands in for it overrides them: each is a step at which the power may go.
"""

from __future__ import annotations

import errno
import os

from broker.store.disk import platform_info as machine
from broker.store.disk.maps import Flusher, Map, OpenFile, flusher, force
from broker.store.disk.opening import held, opened
from broker.store.disk.os_errors import free_bytes, refused, sync_failed

CAN_RESERVE = hasattr(os, "posix_fallocate")  # blocks in the middle of a file; macOS only appends zeros


class Calls:
    """What errors they raise: StoreFull, SyncFailed (`force…`), Missing, else StoreError."""

    def _open(self, path: str, flags: int) -> int:
        try:
            return opened(path, flags)
        except OSError as error:
            raise refused(error, path) from error

    def _names(self, directory: str) -> list[str]:
        try:
            return sorted(os.listdir(directory))
        except OSError as error:
            raise refused(error, directory) from error

    def _make_directory(self, path: str) -> None:
        try:
            with held(path) as (name, above):
                os.mkdir(name, dir_fd=above)
        except FileExistsError as error:  # another process was quicker
            if not os.path.isdir(path):
                raise refused(error, path) from error
        except OSError as error:
            raise refused(error, path) from error

    def _create(self, path: str) -> int:
        """An empty file that was not there, or one that another process just made."""
        return self._open(path, os.O_RDWR | os.O_CREAT)

    def _reserve(self, descriptor: int, path: str, size: int) -> None:
        """Give an open file its size, and a block of the disk for each byte of it; or leave it as it was."""
        before = os.fstat(descriptor).st_size
        try:
            if size - before > free_bytes(path):  # an attempt would take the last block from everybody for a while
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            reserve(descriptor, size)
        except OSError as error:
            if os.fstat(descriptor).st_size > before:
                os.ftruncate(descriptor, before)
            raise refused(error, path, size) from error

    def _write(self, descriptor: int, path: str, data: bytes) -> None:
        """All of an empty file."""
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
        except OSError as error:
            raise refused(error, path, len(data)) from error

    def _cut(self, descriptor: int, path: str, size: int) -> None:
        try:
            os.ftruncate(descriptor, size)
        except OSError as error:
            raise refused(error, path, size) from error

    def _map(self, path: str, size: int, file: OpenFile) -> Map:
        return Map(path, size, file)

    def flusher(self) -> Flusher | None:
        """What flushes maps beside the thread that asks; None where nothing can."""
        return flusher()

    def _force(self, descriptor: int, path: str) -> None:
        try:
            force(descriptor)
        except OSError as error:
            raise sync_failed(error, path) from error

    def _force_directory(self, path: str) -> None:
        descriptor = self._open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno != errno.EINVAL:  # this file system makes names durable at once
                raise sync_failed(error, path) from error
        finally:
            os.close(descriptor)

    def _rename(self, old: str, new: str) -> None:
        try:
            with held(old) as (name, above), held(new) as (new_name, new_above):
                os.replace(name, new_name, src_dir_fd=above, dst_dir_fd=new_above)
        except OSError as error:
            raise refused(error, old) from error

    def _exchange(self, path_a: str, path_b: str) -> None:
        try:
            with held(path_a), held(path_b):  # which check the way to them
                machine.exchange(path_a, path_b)
        except OSError as error:
            raise refused(error, path_a) from error

    def _remove_file(self, path: str) -> None:
        try:
            with held(path) as (name, above):
                os.unlink(name, dir_fd=above)
        except OSError as error:
            raise refused(error, path) from error

    def _remove_directory(self, path: str) -> None:
        try:
            with held(path) as (name, above):
                os.rmdir(name, dir_fd=above)
        except OSError as error:
            raise refused(error, path) from error


def reserve(descriptor: int, size: int) -> None:
    """posix_fallocate; where system or file system has none, zeros behind the end. Raises OSError."""
    try:
        os.posix_fallocate(descriptor, 0, size)
        return
    except AttributeError:  # macOS
        pass
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS):
            raise
    at = os.fstat(descriptor).st_size
    zeros = memoryview(bytes(min(_PIECE_BYTES, max(0, size - at))))
    while at < size:
        at += os.pwrite(descriptor, zeros[: size - at], at)


_PIECE_BYTES = 1 << 20
