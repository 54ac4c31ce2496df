"""What to do about each kind of finding: one step that works today, with RocketMQ's tools or with ours.

`recovery.findings.KINDS` says what a kind means; docs/operations.md prints both side by side.
"""

from __future__ import annotations

_SALVAGE = (
    "do not start a broker on it, which would cut the log there; copy what can be read: checkback salvage STORE OUT"
)
# Only `rebuild` may replace derived files: it refuses what it cannot make, and keeps what it replaced.
_REBUILD = "see what checkback rebuild STORE says. It replaces them with --apply"
_STOPPED = "; stop a RocketMQ broker first, and say so with --broker-is-stopped"
_DERIVED = f"{_REBUILD}{_STOPPED}. It refuses a store that it does not understand: leave that one to its broker"
_SETTLE = (
    "believe the CommitLog, and keep a 3.x broker from recovering this store, which would compact the table; ask the "
    "producers about what checkback pending STORE lists"
)
_SEEN_TWICE = "see that the consumers of this topic know a message again by its key"
_LOOK = "look at the record: checkback dump STORE --from OFFSET --limit 1"

NEXT_STEPS: dict[str, str] = {
    "segment-missing": "put the segment back from a backup or a replica; without one: checkback salvage STORE OUT",
    "segment-overlap": "stop the broker, copy both files elsewhere, find out which of them belongs to this store, and "
    "take the other one out",
    "segment-size": "put the file back from a backup or a replica. Without one, a segment of the CommitLog: checkback "
    "salvage STORE OUT; any other file is derived: checkback rebuild STORE",
    "corrupt-region": _SALVAGE,
    "torn-tail": "nothing, unless log-short is listed, too: then it held records that were acknowledged. The broker "
    "cuts it when it starts; where every write is flushed it was never acknowledged",
    "crc-mismatch": _SALVAGE,
    "record-implausible": f"the byte is one that no CRC covers, or no broker wrote the record: {_LOOK}",
    "files-missing": _DERIVED,
    "file-damaged": "stop the broker and copy the file elsewhere. Under config/: put a copy of the .bak beside it in "
    "its place, after a look into it. The checkpoint: checkback rebuild STORE --apply writes another. "
    "checkback/store.json: put it back from a copy of the store; no verb that writes opens the store without it",
    "slot-missing": _SETTLE,
    "slot-wrong-state": _SETTLE,
    "slot-wrong-field": _SETTLE,
    "slot-orphan": "nothing in the log is affected; a 3.x broker may ask a producer about it in vain",
    "slot-moved": _SETTLE,
    "table-compacted": _SETTLE,
    "redo-missing": _SETTLE,
    "redo-orphan": "nothing in the log is affected; a 3.x broker that recovers may take it for a transaction",
    "queue-missing": _DERIVED,
    "queue-orphan": _DERIVED,
    "rocksdb-end-wrong": "put the RocksDB back from a replica; one that a broker of 5.3 builds from the CommitLog may "
    "leave out the first message of a queue",
    "index-missing": _DERIVED,
    "index-orphan": _DERIVED,
    "index-damaged": _DERIVED,
    "timer-missing": "see whether timerwheel or timerlog of a replica has it; else send the message again, from what "
    "checkback dump STORE --from OFFSET --limit 1 shows",
    "timer-orphan": f"nothing in the log is affected; {_LOOK}",
    "end-without-half": f"if its half message was lost, the message itself was not; {_LOOK}",
    "end-differs": f"consumers get what the end says; {_LOOK}, and the half message that it names",
    "double-end": "nothing; where a commit was repeated, delivered-twice names the messages",
    "decision-conflict": "ask the producer what its local transaction did; the first decision in the log counts here",
    "delivered-twice": _SEEN_TWICE,
    "committed-without-op": "expect a check-back: the producer must answer COMMIT again, and the message comes twice; "
    f"{_SEEN_TWICE}",
    "half-diverted": "send the message again without a delay: nobody can settle or deliver this one",
}

# The same for causes that are not findings themselves.
NEXT_STEPS_OF_CAUSES: dict[str, str] = {
    "log-short": "where a segment is missing, put it back. A copy is made of a stopped broker, or with the queues "
    "first and the log last: take another one",
    "derived-late": "nothing where a broker starts on it, which writes the rest; else see what checkback rebuild STORE "
    "says",
}


# What holds besides for stores with a state table.
WITH_STATE_TABLE: dict[str, str] = {
    "files-missing": "No version of 3.x builds a right state table or redo log: let none recover the store",
}


def next_step(kind: str, generation: str | None = None) -> str:
    """What to do about a kind of finding, in a store of a generation (any, when it is None)."""
    step = NEXT_STEPS.get(kind) or NEXT_STEPS_OF_CAUSES.get(kind, _LOOK)
    more = WITH_STATE_TABLE.get(kind) if generation in (None, "state-table", "mixed") else None
    return f"{step}. {more}" if more else step
