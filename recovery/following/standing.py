"""What others see of a copy without a word to its follower: whose it is, whether it is followed, what was lost."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any

from broker.errors import StoreError
from broker.store.disk.files import Disk, Missing
from broker.store.disk.paths import Paths, path_of_store
from broker.store.disk.store_lock import is_held
from recovery.following.copied_log import FollowedStore


@dataclass(frozen=True, slots=True)
class CopyStanding:
    """One copy at one moment."""

    master: str
    is_followed: bool  # by a process that runs now
    lost_bytes: int  # what the master lost at its recoveries, and the copy had
    losses: int

    def as_json(self) -> dict[str, Any]:
        """For the page."""
        return {name: getattr(self, name) for name in self.__slots__}


def copy_standing(path: str | os.PathLike[str]) -> CopyStanding | None:
    """How the copy at a path stands; None where there is none. Raises StoreError when it cannot be read."""
    disk, paths = Disk(), Paths(path_of_store(path))
    known = FollowedStore.read(paths, disk)
    if known is None:
        return None
    lost = [_lost_bytes(os.path.join(paths.lost, name), disk) for name in _reports(paths, disk)]
    return CopyStanding(known.master, is_held(paths.lock, disk), sum(lost), len(lost))


def _reports(paths: Paths, disk: Disk) -> list[str]:
    try:
        return [entry.name for entry in disk.entries(paths.lost) if entry.name.endswith(".json")]
    except Missing:
        return []


def _lost_bytes(path: str, disk: Disk) -> int:
    try:
        return int(json.loads(disk.read(path))["bytes"])
    except (TypeError, ValueError, KeyError, OverflowError, RecursionError) as error:
        text = f"{path} is not a report of what the master lost ({error!r}): move it out of this directory"
        raise StoreError(text, path=path) from error
