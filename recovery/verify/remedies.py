"""What to do about each kind of finding: one step that works today, with RocketMQ's tools or with ours.

`recovery.findings.KINDS` says what a kind means; docs/operations.md prints both side by side.
"""

from __future__ import annotations

_SALVAGE = (
    "do not start a broker on it, which would cut the log there; copy what can be read: checkback salvage STORE OUT"
)
_REDISPATCH = (
    "stop the broker, move {folder} and checkpoint away and create an empty file abort: its next start builds {folder} "
    "anew"
)
_QUEUES = _REDISPATCH.format(folder="consumequeue/")
_INDEX = _REDISPATCH.format(folder="index/")
_SETTLE = (
    "believe the CommitLog, and keep a 3.x broker from recovering this store, which would compact the table; ask the "
    "producers about what checkback pending STORE lists"
)
_SEEN_TWICE = "see that the consumers of this topic know a message again by its key"
_LOOK = "look at the record: checkback dump STORE --from OFFSET --limit 1"

NEXT_STEPS: dict[str, str] = {
    "segment-missing": "put the segment back from a backup or a replica; without one: checkback salvage STORE OUT",
    "segment-overlap": "find out which of the files belongs to this store, and move the other one away",
    "segment-size": "put the file back from a backup or a replica. Without one, a segment of the CommitLog: checkback "
    "salvage STORE OUT; any other file: treat it as missing",
    "corrupt-region": _SALVAGE,
    "torn-tail": "nothing: the broker cuts it when it starts; where every write is forced it was never acknowledged",
    "crc-mismatch": _SALVAGE,
    "record-implausible": f"the byte is one that no CRC covers, or no broker wrote the record: {_LOOK}",
    "files-missing": "start a broker with an empty file abort in the store: it builds the folder anew",
    "file-damaged": "stop the broker. Under config/: move the file away, and the broker takes the .bak beside it. The "
    "checkpoint: move it away, and the broker reads the whole log once",
    "slot-missing": _SETTLE,
    "slot-wrong-state": _SETTLE,
    "slot-wrong-field": _SETTLE,
    "slot-orphan": "nothing in the log is affected; a 3.x broker may ask a producer about it in vain",
    "slot-moved": _SETTLE,
    "table-compacted": _SETTLE,
    "redo-missing": _SETTLE,
    "redo-orphan": "nothing in the log is affected; a 3.x broker that recovers may take it for a transaction",
    "queue-missing": _QUEUES,
    "queue-orphan": _QUEUES,
    "index-missing": _INDEX,
    "index-orphan": _INDEX,
    "index-damaged": _INDEX,
    "end-without-half": f"if its half message was lost, the message itself was not; {_LOOK}",
    "end-differs": f"consumers get what the end says; {_LOOK}, and the half message that it names",
    "double-end": "nothing; where a commit was repeated, delivered-twice names the messages",
    "decision-conflict": "ask the producer what its local transaction did; the first decision in the log counts here",
    "delivered-twice": _SEEN_TWICE,
    "committed-without-op": "expect a check-back: the producer must answer COMMIT again, and the message comes twice; "
    f"{_SEEN_TWICE}",
    "half-diverted": "send the message again without a delay: nobody can settle or deliver this one",
}


_COMPACTS = "With 3.x such a start compacts the state table as well: first settle what checkback pending STORE lists"

# What holds besides for stores with a state table.
WITH_STATE_TABLE: dict[str, str] = {
    **dict.fromkeys(("queue-missing", "queue-orphan", "index-missing", "index-orphan", "index-damaged"), _COMPACTS),
    "files-missing": "No version of 3.x builds a right state table or redo log: keep a copy of the CommitLog",
}


def next_step(kind: str, generation: str | None = None) -> str:
    """What to do about a kind of finding, in a store of a generation (any, when it is None)."""
    step = NEXT_STEPS.get(kind, _LOOK)
    more = WITH_STATE_TABLE.get(kind) if generation in (None, "state-table", "mixed") else None
    return f"{step}. {more}" if more else step
