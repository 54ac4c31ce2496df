"""The JSON files of a store's `config`, copied as far as they can be read, with positions that skip nothing.

What a broker keeps in RocksDBs becomes the JSON files that it takes over when it starts.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from broker.errors import CorruptRecord, StoreError
from broker.format import config
from broker.format.topics import SCHEDULE_TOPIC
from broker.store.disk.files import Disk
from broker.store.disk.paths import Paths
from broker.store.read.kinds.rocksdb_config import TABLES, damaged_config_databases, read_config_database
from recovery.repair.queue_gaps import Gap, lowered

_SUFFIX, _BACKUP = ".json", ".json.bak"


@dataclass(slots=True)
class CopiedConfig:
    """Names below config/ that were copied, and that could not be read; how many positions were lowered."""

    copied: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    positions_lowered: int = 0


def copy_config(store: str, out: str, gaps: Sequence[Gap]) -> CopiedConfig:
    """Copy config/*.json, with positions lowered for queue offsets that are gone."""
    disk, directory = Disk(), os.path.join(store, "config")
    try:
        present = {entry.name for entry in disk.entries(directory) if entry.is_file and entry.size}
        damaged = damaged_config_databases(Paths(store), disk)
    except StoreError:
        return CopiedConfig()
    result = CopiedConfig(unreadable=sorted(map(os.path.basename, damaged)))
    in_rocksdb = _in_rocksdb(Paths(store), disk)
    wanted = {name.removesuffix(".bak") for name in present if name.endswith((_SUFFIX, _BACKUP))}
    wanted |= {name for name, raw in in_rocksdb.items() if raw is not None}
    for name in sorted(wanted):
        raw = in_rocksdb.get(name) or _readable(disk, directory, name, present)
        if raw is None:
            result.unreadable.append(name)
            continue
        raw, count = _adjusted(name, raw, gaps)
        os.makedirs(os.path.join(out, "config"), exist_ok=True)
        with open(os.path.join(out, "config", name), "xb") as file:
            file.write(raw)
        result.copied.append(name)
        result.positions_lowered += count
    return result


def _in_rocksdb(paths: Paths, disk: Disk) -> dict[str, bytes | None]:
    """What the RocksDBs that can be read hold."""
    found: dict[str, bytes | None] = {}
    for name in TABLES:
        try:
            found[name] = read_config_database(name, paths, disk)
        except StoreError:  # damaged
            found[name] = None
    return found


def _readable(disk: Disk, directory: str, name: str, present: set[str]) -> bytes | None:
    """The bytes of a file that holds JSON, or of its backup; None when neither does."""
    for candidate in (name, f"{name}.bak"):
        if candidate in present:
            try:
                raw = disk.read(os.path.join(directory, candidate))
                config.loads(raw)
            except StoreError:  # damaged, or the disk cannot read it
                continue
            return raw
    return None


def _adjusted(name: str, raw: bytes, gaps: Sequence[Gap]) -> tuple[bytes, int]:
    """The file with lowered positions; the very same bytes when none changes."""
    try:
        if name == "consumerOffset.json":
            offsets = config.decode_consumer_offsets(raw)
            tables: Mapping[Any, Mapping[int, int]] = {
                (topic, group): lowered(table, [gap for gap in gaps if gap.topic == topic])
                for (topic, group), table in offsets.positions.items()
            }
            count = _differences(offsets.positions, tables)
            return (config.encode_consumer_offsets(replace(offsets, positions=tables)) if count else raw), count
        if name == "delayOffset.json":  # by level; its queue is one less
            delays = config.decode_delay_offsets(raw)
            own = [replace(gap, queue_id=gap.queue_id + 1) for gap in gaps if gap.topic == SCHEDULE_TOPIC]
            table = lowered(delays.positions, own)
            count = _differences({0: delays.positions}, {0: table})
            return (config.encode_delay_offsets(replace(delays, positions=table)) if count else raw), count
    except CorruptRecord:  # JSON, but no table of positions: copied as it is
        pass
    return raw, 0


def _differences(before: Mapping[Any, Mapping[int, int]], after: Mapping[Any, Mapping[int, int]]) -> int:
    return sum(after[key][number] != value for key, table in before.items() for number, value in table.items())
