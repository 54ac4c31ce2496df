"""Clusters that a client of `broker.connect` sees through a proxy: a store that is served, and a real RocketMQ."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

import pytest

import broker
from broker.ledger import Ledger
from broker.remoting.codes import RequestCode
from broker.remoting.command import RemotingCommand
from recovery.answering.group_answering import answering
from recovery.transactions.in_doubt import Pending
from tests.backends.backend import Client
from tests.backends.embedded import LAYOUT
from tests.cluster.network import Proxy
from tests.cluster.waiting import awaited, wait_less
from tests.compat import rocketmq
from tests.producer.delivered import delivered
from tests.server.wire_client import WireClient

OFTEN = {"check_interval_s": 0.05, "transaction_timeout_s": 0.1, "check_max": 1_000_000}
LEVELS = " ".join(["1s"] * 18)
ENDS_LATE_S = 2.0  # a broker of 5.x collects ends for `transactionOpBatchInterval` before they are in its log
REAL = {
    "messageDelayLevel": LEVELS,
    "transactionCheckInterval": 500,
    "transactionTimeOut": 500,
    "transactionCheckMax": 1_000_000,
    "transactionOpBatchInterval": 100,
}
REGISTERED_S, QUEUES = 60.0, 16
CALL_S = 0.3  # a call whose answer is lost on purpose
OK = 0


class Place(Protocol):
    """A name server and a broker behind it."""

    name: str
    soon_s: float
    is_real: bool

    @property
    def namesrv(self) -> str: ...

    def delivered(self, topic: str) -> list[bytes]: ...

    def in_doubt(self) -> int: ...


class Connected:
    """`broker.connect` to a place, through a proxy that can lose what is sent to its broker."""

    is_cluster = True

    def __init__(self, place: Place, proxy: Proxy) -> None:
        self._place, self.proxy = place, proxy
        self.name, self.soon_s, self.is_real = place.name, place.soon_s, place.is_real
        self.client: broker.LiveCluster = broker.connect(f"rocketmq://{place.namesrv}")

    def close(self) -> None:
        self.client.close()

    @contextmanager
    def another(self) -> Iterator[broker.LiveCluster]:
        with broker.connect(f"rocketmq://{self._place.namesrv}") as other:
            yield other

    def delivered(self, topic: str = "orders") -> list[bytes]:
        return self._place.delivered(topic)

    def in_doubt(self) -> int:
        return self._place.in_doubt()

    @contextmanager
    def lost_ends(self) -> Iterator[None]:
        """An end is a call that waits for its answer."""
        with pytest.MonkeyPatch.context() as patch:
            wait_less(patch, CALL_S, lambda _, code: code == RequestCode.END_TRANSACTION)
            patch.setattr(self.proxy, "request", _lose_ends)
            yield

    def check_back(self, ledgers: Sequence[Ledger], group: str = "shop", client: Client | None = None) -> None:
        """The broker has its own clock: wait until it has no doubt any more."""
        asked = self.client if client is None else client
        assert isinstance(asked, broker.LiveCluster)
        with answering(asked, group, ledgers):
            awaited(lambda: not self.in_doubt(), self.soon_s)

    def is_running(self, ledgers: Sequence[Ledger], group: str = "shop") -> bool:
        with answering(self.client, group, ledgers) as answerer:
            return awaited(lambda: answerer.report.running, self.soon_s)


def _lose_ends(command: RemotingCommand) -> RemotingCommand | None:
    return None if command.code == RequestCode.END_TRANSACTION else command


class Served:
    """A store of ours with a server, in this process."""

    name, soon_s, is_real = "served", 20.0, False

    def __init__(self, path: Path, proxy: Proxy) -> None:
        self.store = broker.open(path, sync="group", layout=LAYOUT)
        self._server = broker.serve(
            self.store, "127.0.0.1:0", advertise=proxy.address, delay_levels=LEVELS, **OFTEN  # type: ignore[arg-type]
        )  # fmt: skip
        proxy.target = self.namesrv

    @property
    def namesrv(self) -> str:
        return self._server.address

    def close(self) -> None:
        self._server.close()
        self.store.close()

    def delivered(self, topic: str) -> list[bytes]:
        return delivered(self.store, topic)

    def in_doubt(self) -> int:
        return len(self.store.transactions.in_doubt_slots())


class Real:
    """A name server and a broker of RocketMQ. What is asked about it, it is asked itself, or its files."""

    soon_s, is_real = 60.0, True

    def __init__(self, cluster: rocketmq.Cluster, names: Proxy) -> None:
        self._cluster, self._names = cluster, names
        self.name = cluster.installation.version

    @property
    def namesrv(self) -> str:
        return self._names.address

    def delivered(self, topic: str) -> list[bytes]:
        found: list[bytes] = []
        with WireClient(f"127.0.0.1:{self._cluster.broker_port}") as client:
            assert awaited(lambda: _is_dispatched(client), self.soon_s)  # queues lag behind the log
            for queue_id in range(QUEUES):
                asked = {"topic": topic, "queueId": queue_id}
                known = client.request(RequestCode.GET_MAX_OFFSET, asked)
                end, at = int(known.ext["offset"]) if known.code == OK else 0, 0
                while at < end:
                    code, records = client.pulled("auditor", topic, at, queue_id=queue_id)
                    assert code == OK, (topic, queue_id, at, code)
                    found += [record.body for record in records]
                    at += len(records)
        return found

    def in_doubt(self) -> int:
        awaited(lambda: not self._pending(), ENDS_LATE_S)
        return self._pending()

    def _pending(self) -> int:
        return sum(1 for _ in Pending(str(self._cluster.store), time.time_ns() // 1_000_000, parked=True))


def _is_dispatched(client: WireClient) -> bool:
    """Brokers answer with an error now and then, in the first seconds: they count what is not there yet."""
    answer = client.request(RequestCode.GET_BROKER_RUNTIME_INFO)
    return answer.code == OK and json.loads(answer.body)["table"]["dispatchBehindBytes"] == "0"


@contextmanager
def served(path: Path) -> Iterator[Connected]:
    with ExitStack() as stack:
        proxy = stack.enter_context(Proxy())
        place = Served(path, proxy)
        stack.callback(place.close)
        connected = Connected(place, proxy)
        stack.callback(connected.close)
        yield connected


@contextmanager
def real(version: str, path: Path) -> Iterator[Connected]:
    """Raises `rocketmq.NotToBeHad`."""
    installation = rocketmq.install(version)
    with ExitStack() as stack:
        cluster = stack.enter_context(rocketmq.running(installation, path, **REAL))
        proxy, names = stack.enter_context(Proxy()), stack.enter_context(Proxy())
        proxy.target, names.target = f"127.0.0.1:{cluster.broker_port}", cluster.namesrv
        told, through = proxy.target.encode(), proxy.address.encode()

        def renamed(command: RemotingCommand) -> RemotingCommand:
            command.body = command.body.replace(told, through)
            return command

        names.answer = renamed
        assert awaited(lambda: _is_registered(names), REGISTERED_S)
        connected = Connected(Real(cluster, names), proxy)
        stack.callback(connected.close)
        yield connected


def _is_registered(names: Proxy) -> bool:
    try:
        broker.connect(f"rocketmq://{names.address}").close()
    except broker.ClusterError:
        return False
    return True
