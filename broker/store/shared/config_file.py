"""Write a file of STORE/config as RocketMQ does. RocketMQ: ConfigManager.persist (5.3.3)."""

from __future__ import annotations

from broker.store.disk.files import Disk


def write_config(disk: Disk, path: str, raw: bytes) -> None:
    """Move the file into place whole; the one before is kept beside it as `.bak`. Raises StoreFull, SyncFailed."""
    if disk.entry(path) is not None:
        disk.write_file(f"{path}.bak", disk.read(path))
    disk.write_file(path, raw)
