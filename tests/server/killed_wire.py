"""Servers of one store, producers and consumers over the wire, in processes of their own that are killed at random.

One more consumer of the group has the store open.

`kill` runs them and tallies from the clients' own records:

    ledger/KEY    one byte, made once: c or r. Whoever makes it decides; a check of what nobody decided makes it r
    acked         keys whose plain send was answered with SUCCESS
    ended         keys whose END_TRANSACTION was answered with SUCCESS
    contrary      keys whose contrary END_TRANSACTION was answered with SUCCESS: there must be none
    delivered     keys that a consumer got

A key is the message's own, or else its unique key. Programs in other languages keep the same records: see
tests/compat/killed_clients.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import broker
from broker.consuming.group.membership import share
from broker.format.commitlog import decode
from broker.remoting.codes import RequestCode as Code
from broker.remoting.codes import ResponseCode as Answer
from broker.remoting.command import RemotingCommand
from recovery.verify.verifier import verify
from tests.server.wire_client import WireClient, sending
from tests.server.wire_tally import Records, WireTally, expected, read_records, tally

TOPIC, GROUP, QUEUES = "orders", "shop", 8
COMMIT, ROLLBACK = 8, 12
DONE_S, PROGRESS_S, STOPPED_S = 180.0, 15.0, 60.0


def key_of(message: broker.ReceivedMessage) -> str:
    return message.keys[0] if message.keys else str(message.unique_key)


def decide(directory: Path, key: str, wanted: str) -> str:
    """Decide a transaction, unless it was decided: the first file counts. A name with a content appears at once."""
    place, beside = directory / "ledger" / key, directory / f"draft-{uuid.uuid4().hex}"
    beside.write_text(wanted)
    with contextlib.suppress(FileExistsError):
        os.link(beside, place)
    beside.unlink()
    return place.read_text()


class Program:
    """What a producer and a consumer share: a connection to any server, until the file `stop` is there."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.name = directory, f"{os.getpid()}@probe"
        self.addresses = json.loads((directory / "servers").read_text())
        self.is_over: Callable[[], bool] = (directory / "stop").exists

    def run(self, work: Callable[[WireClient], None]) -> None:
        while not self.is_over():
            with contextlib.suppress(OSError), WireClient(random.choice(self.addresses), client_id=self.name) as client:
                work(client)
            time.sleep(0.05)


class Producing(Program):
    """Sends plain messages and transactions; answers checks from the ledger."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.acked, self.ended, self.contrary, self.checked = (
            Records(directory, kind) for kind in ("acked", "ended", "contrary", "checked")
        )

    def work(self, client: WireClient) -> None:
        beaten_s = 0.0
        while not self.is_over():
            if time.monotonic() - beaten_s > 1:
                beaten_s = time.monotonic()
                client.heartbeat(producer=GROUP)
            if (self.directory / "quiet").exists():
                time.sleep(0.05)
            else:
                self.send(client, random.randrange(QUEUES))
            self.answer_checks(client)

    def send(self, client: WireClient, queue_id: int) -> None:
        key = uuid.uuid4().hex.upper()
        if random.random() < 0.3:
            if client.request(Code.SEND_MESSAGE_V2, sending(TOPIC, queue_id, UNIQ_KEY=key), bytes(200)).code == 0:
                self.acked.add(key)
            return
        fields = sending(TOPIC, queue_id, UNIQ_KEY=key, TRAN_MSG="true", PGROUP=GROUP)
        half = client.request(Code.SEND_MESSAGE_V2, fields, bytes(200))
        if half.code != Answer.SUCCESS or random.random() < 0.1:
            return  # as a producer that dies before it decides
        decided = decide(self.directory, key, random.choice("ccr"))
        if random.random() < 0.2:
            return  # and after it did
        offset, slot = int(half.ext["msgId"][16:], 16), half.ext["queueOffset"]
        if self.end(client, offset, slot, decided):
            self.ended.add(key)
            if random.random() < 0.1 and self.end(client, offset, slot, "r" if decided == "c" else "c"):
                self.contrary.add(key)

    def end(self, client: WireClient, offset: int, slot: str, decided: str, *, is_check: bool = False) -> bool:
        fields = {
            "producerGroup": GROUP, "tranStateTableOffset": slot, "commitLogOffset": offset,
            "commitOrRollback": COMMIT if decided == "c" else ROLLBACK, "fromTransactionCheck": str(is_check).lower(),
        }  # fmt: skip
        return client.request(Code.END_TRANSACTION, fields).code == Answer.SUCCESS

    def answer_checks(self, client: WireClient) -> None:
        with contextlib.suppress(TimeoutError):
            client.receive(time.monotonic())
        checks: list[RemotingCommand] = [one for one in client.asked if one.code == Code.CHECK_TRANSACTION_STATE]
        client.asked.clear()
        for check in checks:
            key = key_of(broker.ReceivedMessage.of(decode(check.body)))
            decided = decide(self.directory, key, "r")
            offset, slot = int(check.ext["commitLogOffset"]), check.ext["tranStateTableOffset"]
            if self.end(client, offset, slot, decided, is_check=True):
                self.checked.add(key)


class Consuming(Program):
    """Pulls its share of the queues, as the list of the group's clients gives it."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.delivered = Records(directory, "delivered")

    def work(self, client: WireClient) -> None:
        mine: list[int] = []
        looked_s = 0.0
        while not self.is_over():
            if time.monotonic() - looked_s > 0.5 or client.asked:
                looked_s = time.monotonic()
                client.asked.clear()
                client.heartbeat(consumer="billing", topics={TOPIC: "*", "%RETRY%billing": "*"})
                listed = client.request(Code.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "billing"})
                ids = json.loads(listed.body)["consumerIdList"] if listed.code == Answer.SUCCESS else []
                mine = share(range(QUEUES), ids, self.name) if self.name in ids else []
            for queue_id in mine:
                self.pull(client, queue_id)
            time.sleep(0.02)

    def pull(self, client: WireClient, queue_id: int) -> None:
        place = {"consumerGroup": "billing", "topic": TOPIC, "queueId": queue_id}
        known = client.request(Code.QUERY_CONSUMER_OFFSET, {**place, "setZeroIfNotFound": "true"})
        at = int(known.ext["offset"]) if known.code == Answer.SUCCESS else 0
        _, records = client.pulled("billing", TOPIC, at, queue_id=queue_id)
        for record in records:
            self.delivered.add(key_of(broker.ReceivedMessage.of(record)))
        if records:
            client.oneway(Code.UPDATE_CONSUMER_OFFSET, {**place, "commitOffset": records[-1].queue_offset + 1})


def consume_locally(directory: Path) -> None:
    """A consumer of the same group that has the store open."""
    delivered = Records(directory, "delivered")
    while not (directory / "stop").exists():
        with (
            contextlib.suppress(broker.BrokerError),
            broker.open(directory / "store") as store,
            store.consumer("billing", TOPIC) as consumer,
        ):
            while not (directory / "stop").exists():
                message = consumer.receive(timeout_s=0.2)
                if message is not None:
                    delivered.add(key_of(message))
                    consumer.ack(message)
        time.sleep(0.05)


class Crowd:
    """The processes of one run: who is killed comes back."""

    def __init__(self, directory: Path, servers: int) -> None:
        self.directory, self.kills = directory, Counter[str]()
        self._processes: dict[str, subprocess.Popen[str]] = {}
        addresses = [self.start(f"server-{number}") for number in range(servers)]
        (directory / "servers").write_text(json.dumps(addresses))
        self._ports = {f"server-{number}": address for number, address in enumerate(addresses)}

    def words(self, name: str) -> list[str]:
        """The command of a process that is not a server."""
        return [sys.executable, "-m", "tests.server.killed_wire", name.split("-", maxsplit=1)[0], str(self.directory)]

    def start(self, name: str) -> str:
        """Start a process; a server's address."""
        if not name.startswith("server"):
            self._processes[name] = subprocess.Popen(self.words(name))
            return ""
        address = self._ports[name] if hasattr(self, "_ports") else "127.0.0.1:0"
        words = [sys.executable, "-m", "recovery.cli", "serve", str(self.directory / "store"), "--listen", address,
                 "--check-every", "1", "--check-after", "1", "--check-max", "1000"]  # fmt: skip
        self._processes[name] = process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"on (\S+): name server", line)
        assert found, line
        return found[1]

    def kill_one(self, chance: random.Random) -> None:
        name = chance.choice(sorted(self._processes))
        self._end(self._processes[name])
        self.kills[name.split("-")[0]] += 1
        self.start(name)

    def hang(self, name: str, seconds: float) -> None:
        """A process that stands still, as on a machine that swaps: its connections stay open."""
        self._processes[name].send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        self._processes[name].send_signal(signal.SIGCONT)

    def restart(self, name: str, seconds: float) -> None:
        """A clean shutdown, and the same again after so long."""
        process = self._processes[name]
        process.terminate()
        assert process.wait(STOPPED_S) == 0
        self._end(process)
        time.sleep(seconds)
        self.start(name)

    def end(self) -> None:
        for process in self._processes.values():
            self._end(process)

    @staticmethod
    def _end(process: subprocess.Popen[str]) -> None:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


NAMES = ("produce-0", "produce-1", "consume-0", "consume-1", "local-0")


def kill(
    directory: Path,
    kills: int,
    *,
    engine: str = "state-table",
    servers: int = 2,
    seed: int = 1,
    kind: type[Crowd] = Crowd,
    names: Sequence[str] = NAMES,
) -> WireTally:
    """Kill at random so many times, let the living settle everything, and add up."""
    chance = random.Random(seed)

    def disturb(crowd: Crowd) -> None:
        for _ in range(kills):
            if chance.random() < 0.6:
                _await_progress(directory)
            time.sleep(chance.uniform(0.0, 0.6))
            crowd.kill_one(chance)

    return _reconcile(directory, disturb, engine=engine, servers=servers, kind=kind, names=names)


def stop_the_server(
    directory: Path,
    seconds: float,
    *,
    engine: str = "state-table",
    kind: type[Crowd] = Crowd,
    names: Sequence[str] = NAMES,
    are_at_work: Callable[[], bool] = lambda: True,
) -> WireTally:
    """Once all are at work the only server hangs for so long, is ended by SIGTERM, and so long away; add up."""

    def disturb(crowd: Crowd) -> None:
        deadline = time.monotonic() + DONE_S
        while not are_at_work() and time.monotonic() < deadline:
            time.sleep(0.1)
        _await_progress(directory)
        crowd.hang("server-0", seconds)
        _await_progress(directory)
        crowd.restart("server-0", seconds)

    return _reconcile(directory, disturb, engine=engine, servers=1, kind=kind, names=names)


def _reconcile(
    directory: Path,
    disturb: Callable[[Crowd], None],
    *,
    engine: str,
    servers: int,
    kind: type[Crowd],
    names: Sequence[str],
) -> WireTally:
    store = directory / "store"
    (directory / "ledger").mkdir()
    with broker.open(store, layout=broker.StoreLayout.small(), transactions=engine) as made:
        made.create_topic(TOPIC, queues=QUEUES, message_type="")
    crowd = kind(directory, servers)
    try:
        for name in names:
            crowd.start(name)
        disturb(crowd)
        _await_progress(directory)
        (directory / "quiet").touch()
        _await_settled(directory, store)
        (directory / "stop").touch()
        time.sleep(0.5)
    finally:
        crowd.end()
    return tally(directory, crowd.kills)


def _await_progress(directory: Path) -> None:
    """Until producers and consumers did something, or for so long: processes that start take their time."""
    deadline, kinds = time.monotonic() + PROGRESS_S, ("ended", "delivered")
    before = [len(read_records(directory, kind)) for kind in kinds]
    while time.monotonic() < deadline:
        now = [len(read_records(directory, kind)) for kind in kinds]
        if all(count > was + 5 for count, was in zip(now, before, strict=True)):
            return
        time.sleep(0.05)


def _await_settled(directory: Path, store: Path) -> None:
    """Until nothing is in doubt and consumers have everything, or for so long."""
    deadline = time.monotonic() + DONE_S
    while time.monotonic() < deadline:
        time.sleep(1.0)
        if not verify(store).transactions["in_doubt"] and expected(directory) <= read_records(directory, "delivered"):
            return


if __name__ == "__main__":
    role, directory_of_run = sys.argv[1], Path(sys.argv[2])
    if role == "local":
        consume_locally(directory_of_run)
    else:
        program = Producing(directory_of_run) if role == "produce" else Consuming(directory_of_run)
        program.run(program.work)
