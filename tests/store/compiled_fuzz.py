"""Call the C module with hostile arguments: `python -m tests.store.compiled_fuzz LIBRARY SECONDS SEED`.

It must raise an exception or return; a crash of the interpreter, or what a sanitizer finds, ends the process. Prints
how many calls were made, and how many of them stored something.
"""

from __future__ import annotations

import contextlib
import os
import random
import struct
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from types import MappingProxyType, ModuleType, SimpleNamespace
from typing import Any

from broker.format.java import Host
from broker.format.properties import RESERVED
from broker.store.write.pending_record import Appended, PendingRecord
from tests.compiled_module import load

TEXTS = ["", "t", "orders", "k 1", "grün", "a\x01b", "x" * 130, "y" * 40_000, "\ud800", "SCHEDULE_TOPIC_XXXX"]
NUMBERS = [0, 1, -1, 4, 8, 12, 20, 24, 63, 1 << 31, -(1 << 31), 1 << 40, (1 << 63) - 1, -(1 << 63), 1 << 64]
SIZES = [0, 1, 8, 20, 40, 88, 107, 108, 109, 150, 176, 400, 4096]


class Chance(random.Random):
    """Arguments by chance. Now and then one of them is anything; the others are of the right kind, so that calls come
    far.
    """

    def one_in(self, count: int) -> bool:
        return self.randrange(count) == 0

    def text(self) -> Any:
        return self.thing() if self.one_in(20) else self.choice(TEXTS)

    def number(self) -> Any:
        return self.choice(NUMBERS) if self.one_in(5) else self.randrange(-3, 300)

    def raw(self) -> bytes:
        return self.randbytes(self.choice(SIZES))

    def thing(self) -> Any:
        """Anything."""
        return self.choice([None, True, 1.5, "x", b"y", (), (1, 2), [3], {"a": "b"}, object(), memoryview(b"ro"), len])

    def view(self, size: int) -> Any:
        """A map's bytes; now and then released, read-only, or of another size."""
        if self.one_in(300):
            return memoryview(bytes(size))
        made = memoryview(bytearray(size if self.randrange(100) else self.choice(SIZES)))
        if self.one_in(300):
            made.release()
        return made

    def pull(self, log: int) -> list[Any]:
        """Units, and a file of the records that they name, nearly; now and then of anything."""
        units, at = b"", 0
        for _ in range(self.choice([1, 2, 5, 2000] if self.one_in(50) else [1, 2, 5])):
            size = self.choice([*SIZES, 120, 200, 1000])
            head = struct.pack(">iIiiiqqi", size, 0xDAA320A7, 0, 0, 0, 0, at, self.choice([0, 0, 0, 0x10]))
            body = bytes(44) + struct.pack(">i", self.choice([0, 0, 5, size - 120, self.randrange(1 << 31)]))
            topic = bytes([self.choice([1, 5, 255])]) + b"t" * 20
            crc = b"__CRC32#\x01" + b"0" * 10 + b"\x02" if self.one_in(2) else b""
            raw = (head + body + topic + bytes(size))[: max(size - len(crc), 0)] + crc
            os.pwrite(log, raw if self.randrange(9) else self.randbytes(len(raw)), at)
            units += struct.pack(">qiq", at if self.randrange(30) else self.randrange(-9, 9999), size, 0)
            at += size
        given = [log, 0, 1 << 20, units, 1 << 20]
        if self.one_in(5):
            given[self.choice([0, 1, 2, 4])] = self.number()
        return given

    def origin(self) -> Any:
        """Who sent a message; mostly what it should be."""
        hosts = [Host(self.choice([bytes(4), bytes(4), b"x"]), self.choice([10911, self.number()])) for _ in range(2)]
        whole = (1, *hosts, self.choice([0, self.number()]), self.choice([0, 1, 0x701]), self.number())
        return None if self.one_in(2) else self.thing() if self.one_in(20) else whole

    def message(self, properties: Any) -> Any:
        """The fields of a message; mostly what they should be."""
        view = MappingProxyType(properties) if isinstance(properties, dict) else properties
        topic, tag = self.choice(["orders", self.text()]), self.choice(["new", self.text()])
        fields = {"topic": topic, "body": self.raw(), "tag": tag, "keys": ("k",), "properties": view}
        if self.one_in(5):
            fields[self.choice([*fields, "other"])] = self.thing()
        if self.one_in(20):
            del fields[self.choice([*fields])]
        return fields

    def queue(self, size: int) -> Any:
        """A queue of files, by what it touched last."""
        base = self.choice([-(1 << 62), -(1 << 63), 1 << 62]) if self.one_in(100) else 0
        last = self.thing() if self.one_in(300) else (base, self.view(size))
        return SimpleNamespace(last=last, generation=0)

    def record(self) -> Any:
        """A record to append."""
        topic, queue_id = self.choice([("orders", 0), ("t", 1)])
        raw = bytearray(self.randbytes(self.choice([109, 150, 176, 400])))
        raw[84:88] = self.choice([0, 1, 0, 0xFFFFFFFF, 1 << 31] if self.one_in(5) else [0, 1]).to_bytes(4, "big")
        codes = tuple(self.randrange(1 << 32) for _ in range(self.choice([0, 1, 3])))
        made = PendingRecord(bytes(raw), topic, queue_id, self.choice([0, 4, 4]), self.number(), 0, codes)  # type: ignore[arg-type]
        if self.one_in(3):
            made.target = ("t", 1, codes, 0)  # type: ignore[assignment]
        if self.one_in(4):
            made.kind = self.choice([8, 12, 12, 5])  # type: ignore[assignment]
            made.prepared_offset, made.slot = self.choice([5, self.number()]), self.choice([0, self.number()])
        if self.one_in(10):
            made.ended = tuple(self.number() for _ in range(self.choice([1, 66])))
        if self.one_in(10):
            bad = self.choice([self.thing(), self.text(), self.number(), self.raw(), ("t", self.number(), codes)])
            setattr(made, self.choice(list(PendingRecord.__slots__)), bad)
        return self.thing() if self.one_in(50) else made

    def letters(self) -> dict[Any, Any]:
        """The fields of a send, now and then with nonsense."""
        items = [f"{self.choice(TEXTS)}\x01{self.choice(TEXTS)}" for _ in range(self.choice([0, 1, 5]))]
        made: dict[Any, Any] = dict.fromkeys("abcdefghijklmn", "0")
        made["i"] = self.choice(["\x02", "\x02\x02", "\x01"]).join(["UNIQ_KEY\x01k", *items])
        for _ in range(self.choice([0, 0, 1, 3])):
            made[self.choice("abcdefghijklmnz")] = self.choice([self.thing(), self.text(), "9" * self.randrange(30)])
        if self.one_in(4):
            made.pop(self.choice("abcdefghijklmn"))
        return made

    def end(self) -> dict[Any, Any]:
        """The fields of the end of a transaction, now and then with nonsense."""
        made: dict[Any, Any] = {
            "commitLogOffset": "5", "tranStateTableOffset": "0", "producerGroup": "g", "commitOrRollback": "8",
        }  # fmt: skip
        if self.one_in(2):
            made[self.choice(list(made))] = self.choice([self.thing(), self.text(), "12", "9" * self.randrange(30)])
        if self.one_in(8):
            made.pop(self.choice(list(made)))
        return made

    def appender(self, module: ModuleType, lock: Any) -> Any:
        """An appender on memory with a half message in slot 0, at CommitLog offset 5; now and then with nonsense."""
        words = memoryview(bytearray(8 * 30)).cast("Q")
        words[14], words[19] = 1, 1
        for _ in range(self.choice([0, 0, 0, 1, 3])):
            words[self.randrange(8, 22)] = self.choice([0, 1, 10, 1 << 50, 1 << 57, (1 << 64) - 1])
        slots, items, op = self.choice([1, 7, 16]), self.choice([1, 2, 24, 500]), bytearray(150)
        table, has_redo_log = self.queue(24_000), self.one_in(2)
        with contextlib.suppress(Exception):  # what was drawn may be anything
            table.last[1][:24] = bytes(7) + b"\5" + bytes(3) + b"\1" + bytes(8) + bytes(3) + b"\4"
        index = self.view(40 + 4 * slots + 20 * items)
        if self.one_in(4):
            with contextlib.suppress(Exception):
                index[: len(index)] = self.randbytes(len(index))
        return module.Append(
            lock=lock, control=self.view(8 * 10) if self.one_in(50) else words, cells=self.view(512 * 3),
            log=self.queue(100_000), dispatcher=SimpleNamespace(generation=0), redo=self.queue(20_000), table=table,
            queues={0: self.queue(20_000), 1: self.queue(20_000), 2: self.thing()},
            known={("orders", 0): 0, ("t", 1): 1, ("op", 0): self.choice([0, 0, 2, 1 << 40, -1]), ("", 0): 2},
            index=SimpleNamespace(newest=(1, index)), clock=SimpleNamespace(seen_ms=0),
            now_ns=self.choice([lambda: "x", lambda: -5]) if self.one_in(50) else time.time_ns, cached=[None] * 1024,
            result=Appended, schedule_topic="SCHEDULE_TOPIC_XXXX", half_key=("t", 1), op_key=("op", 0),
            op_model=bytes(op), op_tags=7,
            size_max=self.choice([100_000, 100_000, 1 << 40, -1]), table_bytes=self.choice([24_000, 1 << 40]),
            redo_bytes=20_000, queue_bytes=20_000, index_slots=slots, index_items=items, has_redo_log=has_redo_log,
        )  # fmt: skip


def calls(
    chance: Chance, module: ModuleType, made: Counter[str], lock: Any, flusher: object, file: int, log: int
) -> None:
    """One appender, and some calls of everything."""
    appender, flusher = chance.appender(module, lock), module.flusher() if chance.one_in(20) else flusher
    half = SimpleNamespace(commitlog_offset=5, slot=0, producer_group="shop")
    for _ in range(20):
        extra = [chance.thing() for _ in range(chance.choice([0, 0, 0, 1]))]
        place = [chance.choice([5, chance.number()]), chance.choice([0, chance.number()])]
        properties = (
            {chance.choice(TEXTS): chance.text() for _ in range(3)} if chance.random() < 0.9 else chance.thing()
        )
        decision = [chance.choice([8, 12, chance.number()]), 5, SimpleNamespace, "state"]
        given = {
            "append": [chance.record()],
            "end": [chance.record(), *place, *decision, *extra],
            "prepare": [
                SimpleNamespace, chance.message(chance.choice([{}, properties])), chance.choice([None, properties]),
                chance.choice(["U1", chance.text()]), chance.choice([0, chance.number()]), 1,
                chance.choice(["shop", *TEXTS]), chance.origin(), *extra,
            ],
            "send": [
                chance.message(chance.choice([{}, properties])), chance.choice([None, properties]),
                chance.choice(["U1", chance.text()]), chance.choice([0, chance.number()]), 1, chance.origin(), *extra,
            ],
            "end_kept": [half.commitlog_offset, half.slot, half.producer_group, *decision, *extra],
            "draft": [
                PendingRecord, chance.text(), chance.raw(), properties, chance.number(), 1, 4, None, chance.origin(),
                *extra,
            ],
            "index_codes": [chance.text(), chance.text(), chance.text(), *extra],
            "stored_properties": [
                properties, chance.text(), ("a", chance.text()), chance.text(), "g", chance.choice([None, properties]),
                *extra,
            ],
            "message": [{}, chance.text(), chance.raw(), chance.text(), [chance.text()], properties, len, RESERVED],
            "request_message": [chance.letters(), frozenset(("POP_CK",)), {"a": chance.text()}, *extra],
            "request_end": [chance.end(), *extra],
            "stand": [tuple((chance.raw(), chance.number(), chance.number()) for _ in range(chance.choice([1, 17])))],
            "sent_records": chance.pull(log),
            "flush_begin": [flusher, chance.choice([-1, file, chance.number()])],
            "flush_wait": [flusher],
            "start_write": [chance.choice([-1, file, chance.number()]), chance.number(), chance.number()],
            "crc32": [chance.view(chance.choice(SIZES))],
        }  # fmt: skip
        for name, arguments in given.items():
            made[name] += 1
            if chance.random() < 0.05:
                arguments[chance.randrange(len(arguments))] = chance.thing()
            with contextlib.suppress(Exception):
                if "properties" in name and chance.random() < 0.5:
                    arguments[0] = MappingProxyType(properties)
                call = getattr(appender if name in ("append", "send", "prepare", "end_kept", "end") else module, name)
                done = call(*arguments)
                made[f"{name} did"] += done is not None
                half = done if name == "prepare" and done is not None else half


def main(library: str, seconds: str, seed: str) -> None:
    """Call for so many seconds of processor time: on a busy machine as often as on an idle one."""
    module, chance, made = load(Path(library)), Chance(int(seed)), Counter[str]()
    deadline = time.process_time() + float(seconds)
    with open("/dev/null") as file, tempfile.TemporaryFile() as log:  # flock takes the first
        lock = SimpleNamespace(
            _threads=threading.RLock(), _held=False, _kept=False, _alone=None, _descriptor=file.fileno()
        )
        flusher = module.flusher()
        while time.process_time() < deadline:
            calls(chance, module, made, lock, flusher, file.fileno(), log.fileno())
    print(dict(made))


if __name__ == "__main__":
    main(*sys.argv[1:])
