"""Random histories of transactions: moves become records of a real CommitLog, and entries for the model.

A move is (verb, a, b): what happens, and two numbers that choose to whom and how. Whatever they are, the move can be
made, so Hypothesis can leave out any of them when it looks for the shortest history that fails.
"""

# ruff: noqa: ARG002 - every move takes both numbers, whether it has a choice or not

from __future__ import annotations

import zlib
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import strategies as st

from broker.format.commitlog import Record, encode, make_record
from tests.scan.logs import V4, Log
from tests.transactions.model import Entry

HALF, OP, PARK, SCHEDULE = (
    "RMQ_SYS_TRANS_HALF_TOPIC",
    "RMQ_SYS_TRANS_OP_HALF_TOPIC",
    "TRANS_CHECK_MAX_TIME_TOPIC",
    "SCHEDULE_TOPIC_XXXX",
)
PREPARED, COMMIT, ROLLBACK = 4, 8, 12
GROUPS, TOPICS = ("payer", "shop", ""), ("Orders", "Pays")
FLAWS = (
    "",
    "",
    "",
    "",
    "group",
    "topic",
    "body",
    "born",
    "near",
    "plain",
    "zero",
    "negative",
    "itself",
    "later",
    "next",
)
BORN_MS = 1_700_000_000_000
FIRST_PLACE = 4090  # queue offsets go over 4096, where the engine deals them to another partition


@dataclass(frozen=True)
class Placed:
    """A record that takes the offset that it is given."""

    record: Record

    def at(self, offset: int, segment_end: int) -> bytes:
        return encode(replace(self.record, commitlog_offset=offset))


@dataclass
class History:
    """A log as it is told, for the disk and for the model."""

    log: Log
    slots: bool  # prepared records have slots, or are all at 0
    entries: list[Entry] = field(default_factory=list)
    plains: list[int] = field(default_factory=list)
    slot: int = 0
    places: dict[int, int] = field(default_factory=dict)

    def tell(self, verb: str, a: int, b: int) -> None:
        """Make one move; one that needs a half where there is none yet makes it."""
        getattr(self, f"_{verb}")(a, b)

    def _put(self, topic: str, properties: dict[str, str], **fields: Any) -> int:
        text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items() if value)
        body = fields.pop("body", b"")
        fields.setdefault("born_timestamp_ms", BORN_MS)
        made = make_record(
            topic, body, text.encode(), born_host=V4, store_host=V4, store_timestamp_ms=BORN_MS, **fields
        )
        return self.log.append(Placed(made))

    def _say(self, says: str, offset: int, **facts: Any) -> None:
        self.entries.append({"says": says, "offset": offset, **facts})

    def _of(self, says: str) -> list[Entry]:
        return [entry for entry in self.entries if entry["says"] == says]

    def _plain(self, a: int, b: int) -> None:
        self.plains.append(self._put(TOPICS[a % 2], {"KEYS": f"k{b}"}, body=b"plain" * b))

    def _message(self, a: int, b: int) -> tuple[bytes, Entry]:
        """The message of a half: few different ones, so that many halves look alike."""
        body = b"body %d" % (b % 2)
        facts = {"group": GROUPS[a % 3 if a % 7 == 2 else a % 2], "topic": TOPICS[b % 2], "born": BORN_MS + a % 2}
        return body, {**facts, "crc": _crc(body)}

    def _prepared(self, a: int, b: int) -> None:
        body, facts = self._message(a, b)
        self._store_prepared({**facts, "body": body}, f"{a % 2:032X}")

    def _store_prepared(self, facts: Entry, key: str) -> None:
        slot = self.slot if self.slots else 0
        self.slot += 1
        said = {"PGROUP": facts["group"], "TRAN_MSG": "true", "UNIQ_KEY": key}
        flags = {"sys_flag": PREPARED, "queue_offset": slot, "born_timestamp_ms": facts["born"]}
        offset = self._put(facts["topic"], said, body=facts["body"], **flags)
        self._say("prepared", offset, slot=slot, **facts)

    def _half(self, a: int, b: int) -> None:
        body, facts = self._message(a, b)
        number = len(self._of("half"))
        keys = (
            f"{number + 1:032X}",
            f"{b % 3 + 1:032X}",
            f"{number:032x}f"[:32],
            "",
            f"key-{number}",
            f"{number:031X}",
        )
        self._store_half(
            {**facts, "key": keys[a % len(keys)], "queue": int(b % 5 == 4), "body": body}, sys_flag=(a % 4) * 4
        )

    def _store_half(self, facts: Entry, **fields: Any) -> None:
        """Type bits mean nothing in the half topic."""
        facts = {name: value for name, value in facts.items() if name not in ("says", "offset", "place")}
        place = self.places.get(facts["queue"], FIRST_PLACE)
        self.places[facts["queue"]] = place + 1
        where = {"queue_id": facts["queue"], "queue_offset": place, "born_timestamp_ms": facts["born"]}
        offset = self._put(HALF, _half_properties(facts), body=facts["body"], **where, **fields)
        self._say("half", offset, place=place, **facts)

    def _renew(self, a: int, b: int) -> None:
        self._store_half(self._some("half", a))

    def _some(self, says: str, number: int) -> Entry:
        """One of the halves there are, mostly a late one."""
        if not self._of(says):
            self.tell(says, number, number)
        known = self._of(says)
        return known[-1 - number % len(known)]

    def _commit(self, a: int, b: int) -> None:
        self._end("commit", self._some("half", a), FLAWS[b % len(FLAWS)])

    def _end_prepared(self, a: int, b: int) -> None:
        self._end("rollback" if b % 3 == 2 else "commit", self._some("prepared", a), FLAWS[b % len(FLAWS)])

    def _rollback_record(self, a: int, b: int) -> None:
        """What no broker of this generation writes: it ends nothing."""
        self._end("rollback", self._some("half", a), "")

    def _end(self, says: str, half: Entry, flaw: str) -> None:
        end = self.log.end
        names = {
            "near": half["offset"] + 1,
            "plain": self.plains[-1] if self.plains else 1,
            "zero": 0,
            "negative": -5,
            "itself": end,
            "later": end + 700,
        }.get(flaw, half["offset"])
        group = GROUPS[(GROUPS.index(half["group"]) + 1) % 3] if flaw == "group" else half["group"]
        topic = "Others" if flaw == "topic" else half["topic"]
        body = b"" if says == "rollback" else half["body"] + (b"!" if flaw == "body" else b"")
        born = half["born"] + (flaw == "born")
        self._store_end(says, topic, topic, group, body, born, names)
        if flaw == "next":
            self._end_before(says, half)

    def _end_before(self, says: str, half: Entry) -> None:
        """An end names the record after it, and that is the same half again: no end comes before its half."""
        size = self.log.end - max(self.log.records)
        self._store_end(
            says, half["topic"], half["topic"], half["group"], half["body"], half["born"], self.log.end + size
        )
        if half["says"] == "half":
            self._store_half(half)
        else:
            self._store_prepared({name: half[name] for name in ("group", "topic", "born", "crc", "body")}, "")

    def _store_end(self, says: str, home: str, topic: str, group: str, body: bytes, born: int, names: int) -> None:
        said = {"PGROUP": group, "REAL_TOPIC": topic if home == SCHEDULE else TOPICS[0], "TRAN_MSG": "true"}
        kind = COMMIT if says == "commit" else ROLLBACK
        facts = {"sys_flag": kind, "prepared_transaction_offset": names, "born_timestamp_ms": born}
        offset = self._put(home, said, body=body, **facts)
        self._say(says, offset, names=names, group=group, topic=topic, crc=_crc(body), born=born)

    def _delayed_commit(self, a: int, b: int) -> None:
        """Ours: the end stands in the schedule topic, its delivery comes later and says nothing."""
        half = self._some("prepared", a)
        self._store_end("commit", SCHEDULE, half["topic"], half["group"], half["body"], half["born"], half["offset"])
        if b % 2:
            self._put(half["topic"], {"PGROUP": half["group"]}, body=half["body"], born_timestamp_ms=half["born"])

    def _redeliver(self, a: int, b: int) -> None:
        """A consumer sent a committed message back: the flag stays, the prepared offset is 0."""
        says = "prepared" if self._of("prepared") and (b % 2 or not self._of("half")) else "half"
        half = self._some(says, a)
        home, topic = (("%RETRY%c", "%RETRY%c"), ("%DLQ%c", "%DLQ%c"), (SCHEDULE, "%RETRY%c"))[b % 3]
        self._store_end("commit", home, topic, half["group"], half["body"], half["born"], 0)

    def _divert(self, a: int, b: int) -> None:
        self._say("diverted", self._put(SCHEDULE, {"PGROUP": GROUPS[a % 2], "REAL_TOPIC": HALF}, body=b"never"))

    def _op(self, a: int, b: int) -> None:
        queue = self._some("half", a)["queue"]
        known = [half["place"] for half in self._of("half") if half["queue"] == queue]
        numbers = [known[-1 - (a + step) % len(known)] for step in range(b % 3 + 1)]
        if b % 7 == 3:
            numbers += [1, 100_000 + b]  # long gone; never there
        style = b % 5
        body = "".join(f"{number}," for number in numbers)
        if style == 1:
            body, numbers = str(numbers[0]), numbers[:1]
        if style == 2:
            body = "".join(f"{number:09}," for number in numbers)
        self._store_op(queue, body.encode(), numbers)

    def _store_op(self, queue: int, body: bytes, numbers: list[int], tag: str = "d") -> None:
        offset = self._put(OP, {"WAIT": "true", "TAGS": tag}, body=body, queue_id=queue)
        self._say("op", offset, queue=queue, numbers=numbers)

    def _odd_op(self, a: int, b: int) -> None:
        """What RocketMQ passes over: another tag, a body that holds no number."""
        half = self._some("half", a)
        body, tag = ((b"%d," % half["place"], "x"), (b"", "d"), (b"none", "d"), (b"-1", "d"), (b"1.5,", "d"))[b % 5]
        self._store_op(half["queue"], body, [], tag)

    def _parked(self, a: int, b: int) -> None:
        half = self._some("half", a)
        offset = self._put(PARK, _half_properties(half), body=half["body"], born_timestamp_ms=half["born"])
        self._say("parked", offset, key=half["key"])

    def _park_half(self, a: int, b: int) -> None:
        half, on = self._some("half", a), b % 3 > 0
        names = half["offset"] + (b % 5 == 4)
        said = {**_half_properties(half), "PARKED_OFFSET": str(names), "PARKED": str(on).lower()}
        self._say("park half", self._put(PARK, said), names=names, on=on)

    def _park(self, a: int, b: int) -> None:
        half, on = self._some("prepared", a), b % 3 > 0
        names = half["offset"] + (b % 5 == 4)
        said = {"PARKED_OFFSET": str(names), "PARKED": str(on).lower(), "PGROUP": half["group"]}
        self._say("park", self._put(PARK, said), names=names, on=on)


def _crc(body: bytes) -> int:
    return zlib.crc32(body) & 0x7FFFFFFF


def _half_properties(facts: Entry) -> dict[str, str]:
    said = {"REAL_TOPIC": facts["topic"], "REAL_QID": "0", "TRAN_MSG": "true"}
    return {"UNIQ_KEY": facts["key"], "PGROUP": facts["group"], **said}


COMMON = ["plain", "redeliver"]
OF_PREPARED = ["prepared"] * 3 + ["end_prepared"] * 4 + ["delayed_commit", "park"]
OF_HALVES = ["half"] * 4 + [
    "renew",
    "renew",
    "commit",
    "commit",
    "commit",
    "op",
    "op",
    "op",
    "odd_op",
    "parked",
    "park_half",
]
OF_HALVES += ["rollback_record", "divert"]
STORIES = {
    "state-table": (True, COMMON + OF_PREPARED),
    "gap": (False, COMMON + [verb for verb in OF_PREPARED if verb != "park"]),
    "half-op": (True, COMMON + OF_HALVES),
    "upgraded": (True, COMMON + OF_PREPARED + OF_HALVES),
    "upgraded from the gap": (False, COMMON + OF_PREPARED + OF_HALVES),
}


@st.composite
def histories(draw: st.DrawFn) -> History:
    """A history of any generation; sometimes its first segments have expired."""
    slots, verbs = STORIES[draw(st.sampled_from(list(STORIES)))]
    history = History(Log(4096, draw(st.sampled_from((0, 0, 0, 8192)))), slots)
    numbers = st.integers(0, 41)
    moves = st.tuples(st.sampled_from(verbs), numbers, numbers)
    for verb, a, b in draw(st.lists(moves, min_size=draw(st.sampled_from((0, 8, 20))), max_size=60)):
        history.tell(verb, a, b)
    history.log.preallocate(not history.log.segments)
    expired = draw(st.sampled_from((0, 0, 0, 1, 2)))
    for base in list(history.log.segments)[: min(expired, len(history.log.segments) - 1)]:
        del history.log.segments[base]
    return history
