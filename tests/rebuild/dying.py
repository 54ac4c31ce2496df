"""Disks whose user is killed at a chosen call, or which lack an exchange of directories."""

from __future__ import annotations

from broker.store.disk.files import Disk, NotSupported


class Deaf(Disk):
    """A file system that cannot exchange two names."""

    def _exchange(self, path_a: str, path_b: str) -> None:
        raise NotSupported(f"{path_a} and {path_b}: no", path=path_a)


class Killed(BaseException):
    """The process is gone; nothing of it is tidied up."""


def dying(base: type[Disk], name: str, call: int) -> Disk:
    """A disk whose user is gone at the nth call of a name: the files stay as they are then."""
    left = [call]

    def counted(self: Disk, *arguments: object, **named: object) -> object:
        left[0] -= 1
        if left[0] == 0:
            raise Killed
        return getattr(base, name)(self, *arguments, **named)

    return type("Dying", (base,), {name: counted})()
