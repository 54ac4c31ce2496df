"""What consumers popped, as the key-value service of RocketMQ 5.4 and later keeps it."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path

from rocksdict import Options, Rdict

FAMILY = "popState"
POPPED_MS, INVISIBLE_MS = 1_795_735_249_173, 30_000


def put_popped(store: Path, *queue_offsets: int, without: Collection[str] = ()) -> None:
    """A row for each message of queue 1 of Plain that pop_g popped and did not acknowledge, as 5.5.0 wrote them."""
    place = str(store / "kvStore")
    names = Rdict.list_cf(place, Options(raw_mode=True)) if (store / "kvStore").exists() else [FAMILY]
    options = Options(raw_mode=True)
    options.create_missing_column_families(True)
    database = Rdict(place, options, {name: Options(raw_mode=True) for name in {*names, FAMILY}})
    for offset in queue_offsets:
        visible = (POPPED_MS + INVISIBLE_MS).to_bytes(8)
        key = visible + b"pop_g@Plain@" + (1).to_bytes(4) + b"@" + offset.to_bytes(8)
        row = {
            "popTime": POPPED_MS, "groupId": "pop_g", "topicId": "Plain", "queueId": 1, "retryFlag": 0,
            "invisibleTime": INVISIBLE_MS, "offset": offset, "attemptTimes": 0, "suspend": False,
        }  # fmt: skip
        kept = {name: value for name, value in row.items() if name not in without}
        database.get_column_family(FAMILY)[key] = json.dumps(kept).encode()
    database.flush()
    database.close()
    (store / "kvStore" / "rocksdict-config.json").unlink()
