"""Requests with any fields, and damaged frames, for so many seconds: `python -m tests.server.fuzzing SECONDS [SEED]`.

A server in a process of its own answers or closes the connection. Meanwhile a client of good manners is answered; no
request meets a defect (an exception that no handler expects); the process neither ends nor grows.
"""

from __future__ import annotations

import contextlib
import json
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import broker
from broker.errors import ProtocolError
from broker.remoting.codes import RequestCode as Code
from broker.remoting.command import ONEWAY, RemotingCommand
from recovery.verify.verifier import verify
from tests.server.wire_client import WireClient, sending

AT_ONCE = 40  # requests on one connection
GROWS_BYTES = 96 << 20  # what caches and the allocator may still take after the first tenth
ANSWERED_S = 5.0
WARM = 0.1
NAMES = (
    "orders", "billing", "shop", "%RETRY%billing", "%DLQ%billing", "SCHEDULE_TOPIC_XXXX", "TBW102", "", "none", "a b",
)  # fmt: skip
NUMBERS = (0, 1, 2, 3, 4, 7, 8, 12, 31, 32, 255, -1, 1 << 15, 1 << 31, -(1 << 31), (1 << 63) - 1, -(1 << 63), 1 << 70)
TEXTS = ("", "*", "a || b", "a > 1 AND b IS NOT NULL", "TAGS IN ('x'", "true", "null", "\x01\x02", "ü", "TAG", "SQL92")
FIELDS = tuple(
    "topic consumerGroup producerGroup group queueId queueOffset maxMsgNums sysFlag commitOffset suspendTimeoutMillis"
    " subscription subVersion expressionType offset timestamp key maxNum beginTimestamp endTimestamp commitLogOffset"
    " tranStateTableOffset commitOrRollback fromTransactionCheck clientID clientId msgId originMsgId originTopic"
    " delayLevel unitMode maxReconsumeTimes perm readQueueNums writeQueueNums topicFilterType topicSysFlag order"
    " defaultTopic brokerName brokerAddr namespace value isForce timerange statsName statsKey srcGroup destGroup index"
    " count".split()
)


@dataclass
class FuzzTally:
    """What came of it."""

    requests: int = 0
    answers: Counter[int] = field(default_factory=Counter)  # by response code
    closed: int = 0  # connections that the server closed
    defects: list[str] = field(default_factory=list)
    slowest_s: float = 0.0  # of the client of good manners
    grown_bytes: int = 0  # from the end of the warm-up to the end
    is_alive: bool = True
    findings: dict[str, int] = field(default_factory=dict)

    @property
    def is_good(self) -> bool:
        is_small = self.grown_bytes < GROWS_BYTES and self.slowest_s < ANSWERED_S
        return self.is_alive and is_small and not (self.defects or self.findings)


def value(chance: random.Random) -> str:
    kind = chance.random()
    if kind < 0.4:
        return chance.choice(NAMES)
    if kind < 0.8:
        return str(chance.choice(NUMBERS))
    return chance.choice(TEXTS) if kind < 0.95 else "".join(chr(chance.randrange(1, 0x2FF)) for _ in range(20))


def body(chance: random.Random) -> bytes:
    """Nothing, any bytes, or one of the bodies that requests have."""
    names = [chance.choice(NAMES) for _ in range(3)]
    queues = [{"topic": names[0], "brokerName": "broker-a", "queueId": chance.choice(NUMBERS)}]
    subscriptions = [{"topic": names[0], "subString": value(chance), "subVersion": 1, "expressionType": value(chance)}]
    consumers = [
        {"groupName": names[1], "messageModel": chance.choice(("CLUSTERING", "BROADCASTING", "x")),
         "subscriptionDataSet": subscriptions, "consumeFromWhere": value(chance)}
    ]  # fmt: skip
    made = chance.choice((
        {"clientID": names[2], "producerDataSet": [{"groupName": names[1]}], "consumerDataSet": consumers},
        {"consumerGroup": names[1], "clientId": names[2], "mqSet": queues},
        {"subscriptionData": subscriptions[0]},
        {"groupName": names[1], "consumeEnable": True, "retryMaxTimes": chance.choice(NUMBERS)},
        {names[0]: value(chance), "x": [None, {}]},
    ))  # fmt: skip
    kind = chance.random()
    if kind < 0.3:
        return b""
    return json.dumps(made).encode() if kind < 0.8 else chance.randbytes(chance.randrange(300))


def request(chance: random.Random, opaque: int) -> bytes:
    """A frame of any request with any fields."""
    code = int(chance.choice(list(Code))) if chance.random() < 0.97 else chance.randrange(-(1 << 15), 1 << 15)
    fields = {name: value(chance) for name in chance.sample(FIELDS, chance.randrange(len(FIELDS)))}
    if code in (Code.SEND_MESSAGE_V2, Code.SEND_BATCH_MESSAGE) and chance.random() < 0.8:
        fields = {name: str(one) for name, one in sending(chance.choice(NAMES), chance.choice((0, 1, 9))).items()}
        fields[chance.choice("abcdefghijklmn")] = value(chance)
    elif chance.random() < 0.5:
        fields |= {"topic": "orders", "consumerGroup": "billing", "queueId": "0"}
    if "suspendTimeoutMillis" in fields:
        fields["suspendTimeoutMillis"] = str(chance.randrange(200))
    flag = ONEWAY if chance.random() < 0.1 else chance.choice((0, 0, 0, 1, 7))
    made = RemotingCommand(code, opaque, flag, fields, body(chance))
    return made.encode() if chance.random() < 0.7 else made.encode_binary()


def damaged(chance: random.Random, frame: bytes) -> bytes:
    """Other bytes behind the length, another length, or too few bytes."""
    raw, kind = bytearray(frame), chance.random()
    if kind < 0.7:
        for _ in range(chance.randrange(1, 4)):
            raw[chance.randrange(4, len(raw))] = chance.randrange(256)
    elif kind < 0.85:
        raw[chance.randrange(4)] = chance.randrange(256)
    else:
        del raw[chance.randrange(4, len(raw)) :]
    return bytes(raw)


def bombard(client: WireClient, chance: random.Random, tally: FuzzTally) -> None:
    """Requests at once on one connection, and what comes back."""
    frames = [request(chance, opaque) for opaque in range(1, AT_ONCE + 1)]
    if chance.random() < 0.4:  # the server closes the connection at the first that it cannot read
        frames = [damaged(chance, frame) if chance.random() < 0.2 else frame for frame in frames]
    tally.requests += len(frames)
    try:
        client.socket.settimeout(1.0)
        client.socket.sendall(b"".join(frames))
        with contextlib.suppress(TimeoutError):  # not all are answered
            for _ in range(AT_ONCE):
                client.receive(time.monotonic() + 0.1)
    except (OSError, ProtocolError):
        tally.closed += 1


def read_answers(client: WireClient, tally: FuzzTally) -> None:
    for answer in client.taken():
        tally.answers[answer.code] += 1
        if "has a defect here" in (answer.remark or ""):
            tally.defects.append(str(answer.remark))


def resident_bytes(pid: int) -> int:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found[1]) << 10


def fuzz(directory: Path, seconds: float, seed: int = 1) -> FuzzTally:
    """Bombard a server, and tally."""
    store, log, chance, tally = directory / "store", directory / "log", random.Random(seed), FuzzTally()
    with broker.open(store, layout=broker.StoreLayout(segment_bytes=16 << 20)) as made:
        made.create_topic("orders", queues=4, message_type="")
    words = [
        sys.executable,
        "-m",
        "recovery.cli",
        "serve",
        str(store),
        "--listen",
        "127.0.0.1:0",
        "--sync",
        "os",
        "--admin",
    ]
    with log.open("w") as errors, subprocess.Popen(words, stdout=subprocess.PIPE, stderr=errors, text=True) as server:
        assert server.stdout is not None
        found = re.search(r"on (\S+): name server", server.stdout.readline())
        assert found
        begun = time.monotonic()
        warm = 0
        try:
            with WireClient(found[1], client_id="polite") as polite:
                while (elapsed := time.monotonic() - begun) < seconds and server.poll() is None:
                    with WireClient(found[1]) as client:
                        bombard(client, chance, tally)
                        read_answers(client, tally)
                    asked = time.monotonic()
                    polite.request(Code.GET_BROKER_CLUSTER_INFO)
                    tally.slowest_s = max(tally.slowest_s, time.monotonic() - asked)
                    if not warm and elapsed > WARM * seconds:
                        warm = resident_bytes(server.pid)
            tally.grown_bytes = resident_bytes(server.pid) - warm if warm else 0
            server.terminate()
            tally.is_alive = server.wait(30) == 0
        finally:
            server.kill()
    tally.defects += re.findall(r"^\w*(?:Error|Exception)\b.*", log.read_text(), re.MULTILINE)[:10]
    tally.findings = dict(verify(store).findings.counts)
    return tally


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        print(fuzz(Path(place), float(sys.argv[1]), int(sys.argv[2]) if sys.argv[2:] else 1))
