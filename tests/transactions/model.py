"""What became of each transaction, by decisions 0001 to 0003 and 0005: it judges the engine and shares no code.

A log is a list of dicts, one for each record that says something, in log order:

    {"says": "prepared", "offset", "slot", "group", "topic", "crc", "born"}
    {"says": "half", "offset", "queue", "place", "group", "topic", "crc", "born", "key"}      key "" is none
    {"says": "commit" | "rollback", "offset", "names", "group", "topic", "crc", "born"}
    {"says": "op", "offset", "queue", "numbers"}
    {"says": "park", "offset", "names", "on"}      ours, of a prepared record
    {"says": "park half", "offset", "names", "on"} ours, of a half message
    {"says": "parked", "offset", "key"}            RocketMQ's, of a half message
    {"says": "diverted", "offset"}                 a half message with a delay
"""

from __future__ import annotations

import hashlib
import struct
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

STATE_TABLE, GAP, HALF_OP = 1, 2, 3
IN_DOUBT, COMMITTED, ROLLED_BACK, PARKED = 4, 8, 12, 16
STATE_OF = {"commit": COMMITTED, "rollback": ROLLED_BACK}

Entry = dict[str, Any]


@dataclass
class Judgement:
    """The answer: transactions by the offset of their first half, and findings as (kind, offset)."""

    generation: str = "none"
    transactions: dict[int, Entry] = field(default_factory=dict)
    findings: Counter[tuple[str, int]] = field(default_factory=Counter)

    @property
    def states(self) -> dict[int, tuple[int, list[int]]]:
        return {lowest: (told["state"], told["delivered"]) for lowest, told in self.transactions.items()}

    @property
    def counts(self) -> dict[str, int]:
        found = Counter(told["state"] for told in self.transactions.values())
        words = {"committed": COMMITTED, "rolled_back": ROLLED_BACK, "in_doubt": IN_DOUBT, "parked": PARKED}
        return {"total": len(self.transactions), **{word: found[state] for word, state in words.items()}}

    @property
    def digest(self) -> str:
        total = 0
        for lowest, told in self.transactions.items():
            total += int.from_bytes(hashlib.sha256(encoded(lowest, told)).digest()[:16], "big")
        return f"{total % 2**128:032x}"


def encoded(lowest: int, told: Entry) -> bytes:
    """What the digest hashes of one transaction."""
    delivered = sorted(told["delivered"])
    head = struct.pack(">BB16sq", told["generation"], told["state"], identity(lowest, told["key"]), lowest)
    return head + struct.pack(f">{len(delivered)}q", *delivered)


def identity(offset: int, key: str) -> bytes:
    """16 bytes that tell one transaction from another."""
    if not key:
        return struct.pack(">QQ", 0, offset)
    if len(key) == 32 and set(key) <= set("0123456789ABCDEF"):
        return bytes(int(key[at : at + 2], 16) for at in range(0, 32, 2))
    return hashlib.sha256(key.encode()).digest()[:16]


def judge(whole: list[Entry], begin: int) -> Judgement:
    """Judge what is left of a log that begins at an offset."""
    log = [entry for entry in whole if entry["offset"] >= begin]
    answer = Judgement()
    prepared, halves = _of(log, "prepared"), _of(log, "half")
    slots = [entry["slot"] for entry in prepared]
    gap = any(pair == (0, 0) for pair in pairwise(slots))
    words = ["state-table"] if any(slots) or (slots and not gap) else []
    words += ["gap"] if gap else []
    words += ["half-op"] if halves or any(entry["says"] == "op" or entry.get("odd_op") for entry in log) else []
    answer.generation = words[0] if len(words) == 1 else "mixed" if words else "none"
    ends = _ends_by_half(log, begin, answer)
    for half in prepared:
        parks = [entry for entry in log if entry["says"] == "park" and entry["names"] == half["offset"]]
        generation = GAP if gap and not any(slots) else STATE_TABLE
        _judge_prepared(generation, half, ends.get(half["offset"], []), parks, answer)
    _judge_halves(log, halves, ends, answer)
    for entry in _of(log, "diverted"):
        answer.findings["half-diverted", entry["offset"]] += 1
    return answer


def _of(log: list[Entry], says: str) -> list[Entry]:
    return [entry for entry in log if entry["says"] == says]


def _ends_by_half(log: list[Entry], begin: int, answer: Judgement) -> dict[int, list[Entry]]:
    """Decision 0001: an end names an earlier half with its group and topic, a commit also its body and born time."""
    halves = {entry["offset"]: entry for entry in log if entry["says"] in ("prepared", "half")}
    found: dict[int, list[Entry]] = {}
    for end in log:
        if end["says"] not in STATE_OF:
            continue
        half = halves.get(end["names"])
        if half is not None and _fits(half, end):
            found.setdefault(half["offset"], []).append(end)
        elif end["says"] == "commit" and end["names"] == 0:
            pass  # a redelivery
        elif end["names"] >= begin:
            answer.findings["end-without-half", end["offset"]] += 1
    return found


def _fits(half: Entry, end: Entry) -> bool:
    shared = ["group", "topic"] + (["crc", "born"] if end["says"] == "commit" else [])
    settled_by_record = half["says"] == "prepared" or end["says"] == "commit"
    return settled_by_record and end["offset"] > half["offset"] and all(half[name] == end[name] for name in shared)


def _judge_prepared(generation: int, half: Entry, ends: list[Entry], parks: list[Entry], answer: Judgement) -> None:
    """decision 0002: the first end in log order."""
    state = IN_DOUBT
    if parks:
        state = PARKED if parks[-1]["on"] else IN_DOUBT
    if ends:
        state = STATE_OF[ends[0]["says"]]
    for end in ends[1:]:
        kind = "double-end" if STATE_OF[end["says"]] == state else "decision-conflict"
        answer.findings[kind, end["offset"]] += 1
    delivered = [end["offset"] for end in ends if end["says"] == "commit"]
    _tell(answer, half["offset"], half["offset"], generation, state, delivered, "")


def _judge_halves(log: list[Entry], halves: list[Entry], ends: dict[int, list[Entry]], answer: Judgement) -> None:
    """decision 0002: delivered, else its last half named by an op, else parked, else in doubt."""
    ops: Counter[tuple[int, int]] = Counter()
    least: dict[int, int] = {}
    places = {(half["queue"], half["place"]) for half in halves}
    for half in halves:
        least[half["queue"]] = min(half["place"], least.get(half["queue"], half["place"]))
    for op in _of(log, "op"):
        for number in op["numbers"]:
            ops[op["queue"], number] += 1
            known = op["queue"] in least and number >= least[op["queue"]]
            if known and (op["queue"], number) not in places:
                answer.findings["end-without-half", op["offset"]] += 1
    by_key: dict[Any, list[Entry]] = {}
    for half in halves:
        by_key.setdefault(half["key"] or half["offset"], []).append(half)
    for key, generations in by_key.items():
        offsets = {half["offset"] for half in generations}
        parks = [
            entry for entry in log
            if (entry["says"] == "parked" and entry["key"] and entry["key"] == key)
            or (entry["says"] == "park half" and entry["names"] in offsets)
        ]  # fmt: skip
        _judge_key(parks[-1:], generations, ends, ops, answer)


def _judge_key(
    parks: list[Entry],
    halves: list[Entry],
    ends: dict[int, list[Entry]],
    ops: Counter[tuple[int, int]],
    answer: Judgement,
) -> None:
    """One transaction: the generations of one half message, in log order."""
    delivered: list[int] = []
    for half in halves:
        named = ops[half["queue"], half["place"]]
        commits = [end["offset"] for end in ends.get(half["offset"], [])]
        delivered += commits
        if named > 1:
            answer.findings["double-end", half["offset"]] += 1
    last = halves[-1]
    given_up = any(park["says"] == "parked" for park in parks)
    if delivered and not given_up and not any(ops[half["queue"], half["place"]] for half in halves):
        answer.findings["committed-without-op", last["offset"]] += 1
    state = IN_DOUBT
    if any(park.get("on", True) for park in parks):
        state = PARKED
    if ops[last["queue"], last["place"]]:
        state = ROLLED_BACK
    if delivered:
        state = COMMITTED
        if given_up:
            answer.findings["decision-conflict", last["offset"]] += 1
    _tell(answer, halves[0]["offset"], last["offset"], HALF_OP, state, sorted(delivered), last["key"])


def _tell(
    answer: Judgement, lowest: int, last: int, generation: int, state: int, delivered: list[int], key: str
) -> None:
    if len(delivered) > 1:
        answer.findings["delivered-twice", last] += 1
    answer.transactions[lowest] = {"generation": generation, "state": state, "delivered": delivered, "key": key}
