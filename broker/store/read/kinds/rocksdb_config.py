"""Topics, groups and positions that a broker keeps in RocksDBs under `config`, as the JSON files beside them have them.

RocketMQ: RocksDBTopicConfigManager, RocksDBSubscriptionGroupManager, RocksDBConsumerOffsetManager (5.3.3 to 5.5.0: one
RocksDB each), ConfigStorage with TopicConfigManagerV2 and the like (5.3.2 and later: one for all, `rdb`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from broker.errors import CorruptStore
from broker.format import config
from broker.format.kinds import rocksdb_config as layout
from broker.store.disk.files import Disk
from broker.store.disk.paths import Paths
from broker.store.read.kinds.rocksdb import RocksDB, is_rocksdb, missing_extra, open_rocksdb

# For each JSON file: its RocksDB, the name of its table in JSON, and the number of its table in the RocksDB for all.
TABLES: Mapping[str, tuple[str, str, int]] = {
    "topics.json": ("topics", "topicConfigTable", layout.TOPICS),
    "subscriptionGroup.json": ("subscriptionGroups", "subscriptionGroupTable", layout.GROUPS),
    "consumerOffset.json": ("consumerOffsets", "offsetTable", layout.POSITIONS),
}
SHARED = ("rdb", "metadata")
READ = (*(own for own, _, _ in TABLES.values()), *SHARED)  # the RocksDBs under config/ that are read here
# Of a table without one: a broker takes a JSON file over into an empty RocksDB only if its counter is above 0.
_FIRST_VERSION = {"counter": 1, "stateVersion": 0, "timestamp": 0}
_ROWS, _VERSIONS, _VERSION_KEY = "default", "kvDataVersion", b"kvDataVersionKey"


def read_config_database(name: str, paths: Paths, disk: Disk) -> bytes | None:
    """What a RocksDB holds, as the JSON file `name` has it; None where there is none, or the extra is missing.

    Raises CorruptStore where the RocksDB cannot be read, CorruptRecord where it holds something else.
    """
    own, table, number = TABLES[name]
    for directory in (own, *SHARED):
        path = paths.config(directory)
        if is_rocksdb(path, disk) and not missing_extra():
            with open_rocksdb(path, disk) as database:
                rows = dict(_rows_of_own(database, own) if directory == own else _rows_of_shared(database, number))
                raw = database.get(_VERSIONS, _VERSION_KEY)
                version = config.loads(raw) if raw else _FIRST_VERSION
                return json.dumps({"dataVersion": version, table: rows}).encode()
    return None


def damaged_config_databases(paths: Paths, disk: Disk) -> dict[str, CorruptStore]:
    """Each RocksDB of the configuration that cannot be read as what it should be, with the reason."""
    damaged: dict[str, CorruptStore] = {}
    for name, (own, _, _) in TABLES.items():
        found = [path for path in map(paths.config, (own, *SHARED)) if is_rocksdb(path, disk)]
        if found and found[0] not in damaged:
            try:
                read_config_database(name, paths, disk)
            except CorruptStore as error:
                damaged[found[0]] = error
    return damaged


def _rows_of_own(database: RocksDB, own: str) -> Iterator[tuple[str, Any]]:
    for key, value in database.items(_ROWS):
        row = config.loads(value)
        yield key.decode("utf-8", "replace"), row.get("offsetTable", {}) if own == "consumerOffsets" else row


def _rows_of_shared(database: RocksDB, number: int) -> Iterator[tuple[str, Any]]:
    """The rows of one table: names with JSON, or topics and groups with a number for each queue."""
    positions: dict[str, dict[str, int]] = {}
    for key, value in database.items(_ROWS, prefix=layout.table_prefix(number)):
        if number == layout.POSITIONS:
            topic, group, queue_id = layout.decode_position_key(key)
            positions.setdefault(f"{topic}@{group}", {})[str(queue_id)] = layout.decode_position(value)
        else:
            yield layout.decode_name(key), config.loads(layout.json_of(value))
    yield from positions.items()
