"""Stores to rebuild, and what their derived files hold."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import broker
from broker.format.commitlog import encode, make_record
from broker.format.consumequeue import BatchUnit, Unit
from broker.format.properties import encode as encode_properties
from broker.store.disk.files import Disk
from broker.store.read.layout import StoreLayout
from broker.store.writer import open_writer
from tests.scan.logs import Log, Wanted
from tests.store.build import HOST
from tests.store.filled import SMALL, fill


def derived(path: Path) -> dict[str, bytes]:
    """Every derived file that holds anything, by its name; of the index the names of the files do not count."""
    found = {}
    for directory in ("consumequeue", "transaction", "index"):
        for number, file in enumerate(sorted((path / directory).rglob("*"))):
            if file.is_file() and any(file.read_bytes()):
                name = f"index/{number}" if directory == "index" else str(file.relative_to(path))
                found[name] = file.read_bytes()
    return found


def store_of(path: Path, count: int, layout: StoreLayout = SMALL) -> Path:
    """A closed store of ours with transactions that were committed, rolled back, left in doubt."""
    store = open_writer(str(path), Disk(), layout, sync="os")
    fill(store, 0, count)
    store.close()
    return path


def store_with_a_wrong_queue_id(path: Path) -> int:
    """A store of two queues, in which a message of queue 0 names queue 1 by a flipped bit; its CommitLog offset."""
    with broker.open(path, sync="os") as store:
        store.create_topic("orders", queues=2)
        sent = [store.append(broker.Message("orders", b"body"), queue_id=number % 2) for number in range(4)]
    with open(path / "commitlog" / f"{0:020}", "r+b") as file:
        file.seek(sent[2].commitlog_offset + 15)  # the last byte of its queue_id
        file.write(b"\x01")
    return sent[2].commitlog_offset


def store_with_a_topic_made_again(
    path: Path, units: Sequence[int] = (0, 1), directory: str = "consumequeue"
) -> list[int]:
    """A store of a broker that deleted a topic of two queues and made it again, with two messages in queue 0 since.

    `units` says which of these two queue 0 holds, in one of the two kinds of directories. Returns the records' places.
    """
    log = Log(4096)
    before = [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2)]
    for queue_id, number in (*before, (0, 0), (0, 1)):
        log.append(Numbered(queue_offset=number, queue_id=queue_id))
    log.write(path)
    queue, kind = path / directory / "OrderTopic" / "0", "BatchCQ" if directory == "batchconsumequeue" else "SimpleCQ"
    queue.mkdir(parents=True)
    (path / "config").mkdir()
    topic = {"topicName": "OrderTopic", "attributes": {"queue.type": kind}}
    (path / "config" / "topics.json").write_text(json.dumps({"topicConfigTable": {"OrderTopic": topic}}))
    places, rows = list(log.records), []
    for number in units:
        place, raw = places[5 + number], log.records[places[5 + number]]
        batch = BatchUnit(place, len(raw), 0, int.from_bytes(raw[56:64], "big"), number, 1, -1, 0)
        rows.append((Unit(place, len(raw), 0) if kind == "SimpleCQ" else batch).pack())
    (queue / f"{0:020}").write_bytes(b"".join(rows).ljust(10 * len(rows[0]), b"\0"))
    return places


@dataclass(frozen=True)
class Numbered(Wanted):
    """A record of any queue."""

    queue_id: int = 0

    def at(self, offset: int, segment_end: int) -> bytes:
        raw = super().at(offset, segment_end)
        return raw[:12] + self.queue_id.to_bytes(4, "big") + raw[16:]


def prepared(number: int, slot: int, commitlog_offset: int, kind: int = 4, half: int = 0) -> bytes:
    text = encode_properties({"PGROUP": "shop", "TRAN_MSG": "true", "KEYS": f"k{number}"})
    return encode(
        make_record("orders", b"body" if kind != 12 else b"", text, born_host=HOST, store_host=HOST,
                    born_timestamp_ms=number, store_timestamp_ms=1_700_000_000_000, queue_offset=slot,
                    commitlog_offset=commitlog_offset, sys_flag=kind, prepared_transaction_offset=half)
    )  # fmt: skip


def on_disk(path: Path) -> dict[str, str]:
    """Every directory and file of a store, with the digest of what it holds."""
    return {
        str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else ""
        for file in path.rglob("*")
    }
