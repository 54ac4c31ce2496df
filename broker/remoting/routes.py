"""The name server's answers, as values: where a topic is, and which clusters there are.

RocketMQ: TopicRouteData, BrokerData, QueueData, ClusterInfo (5.3.3).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from broker.errors import ProtocolError
from broker.format.config import PERM_READ, PERM_WRITE
from broker.remoting.bodies import MessageQueue
from broker.remoting.fastjson import loads_object

MASTER = 0
"""The broker id of a master; slaves have higher ones."""
_QUEUES_MAX = 65_536


@dataclass(frozen=True)
class BrokerData:
    """A master and its slaves: their addresses, HOST:PORT, by broker id."""

    name: str
    cluster: str
    addresses: Mapping[int, str]

    @property
    def master(self) -> str | None:
        return self.addresses.get(MASTER)

    @property
    def readable(self) -> str | None:
        """The master's address; without one that of the slave with the lowest id."""
        return self.addresses[min(self.addresses)] if self.addresses else None


@dataclass(frozen=True)
class QueueData:
    """How many queues of a topic one broker has."""

    broker_name: str
    read_count: int
    write_count: int
    perm: int


@dataclass(frozen=True)
class TopicRoute:
    """Where one topic is."""

    queues: tuple[QueueData, ...]
    brokers: Mapping[str, BrokerData]

    def writable(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues to send to: those of brokers with a master. RocketMQ: topicRouteData2TopicPublishInfo (5.3.3)."""
        return tuple(
            MessageQueue(topic, queue_id, one.broker_name)
            for one in sorted(self.queues, key=lambda one: one.broker_name)
            if one.perm & PERM_WRITE and (held := self.brokers.get(one.broker_name)) and held.master
            for queue_id in range(one.write_count)
        )

    def readable(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues to consume. RocketMQ: topicRouteData2TopicSubscribeInfo (5.3.3)."""
        return tuple(
            MessageQueue(topic, queue_id, one.broker_name)
            for one in sorted(self.queues, key=lambda one: one.broker_name)
            if one.perm & PERM_READ and one.broker_name in self.brokers
            for queue_id in range(one.read_count)
        )


def decode_route(body: bytes) -> TopicRoute:
    """The body of the answer to GET_ROUTEINFO_BY_TOPIC. Raises ProtocolError."""
    root = loads_object(body)
    brokers = [_broker(one) for one in _list(root, "brokerDatas")]
    queues = tuple(
        QueueData(
            _text(one, "brokerName"), _count(one, "readQueueNums"), _count(one, "writeQueueNums"), _count(one, "perm")
        )
        for one in _list(root, "queueDatas")
    )
    return TopicRoute(queues, {one.name: one for one in brokers})


def decode_clusters(body: bytes) -> dict[str, tuple[BrokerData, ...]]:
    """The brokers of each cluster: the body of the answer to GET_BROKER_CLUSTER_INFO. Raises ProtocolError."""
    root = loads_object(body)
    brokers, clusters = root.get("brokerAddrTable"), root.get("clusterAddrTable")
    if not isinstance(brokers, dict) or not isinstance(clusters, dict):
        raise ProtocolError("the name server's answer lacks brokerAddrTable or clusterAddrTable")
    return {
        str(cluster): tuple(
            _broker(brokers[name]) for name in names if isinstance(name, str) and isinstance(brokers.get(name), dict)
        )
        for cluster, names in clusters.items()
        if isinstance(names, list)
    }


def _broker(root: dict[str, Any]) -> BrokerData:
    addresses = root.get("brokerAddrs")
    if not isinstance(addresses, dict) or not all(isinstance(one, str) for one in addresses.values()):
        raise ProtocolError("brokerAddrs is not a table of addresses")
    try:
        by_id = {int(number): address for number, address in addresses.items()}
    except ValueError:
        raise ProtocolError("a broker id in brokerAddrs is not a number") from None
    cluster = root.get("cluster")
    return BrokerData(_text(root, "brokerName"), cluster if isinstance(cluster, str) else "", by_id)


def _list(root: dict[str, Any], name: str) -> list[dict[str, Any]]:
    found = root.get(name) or []
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise ProtocolError(f"{name} is not a list of objects")
    return found


def _text(root: dict[str, Any], name: str) -> str:
    value = root.get(name)
    if not isinstance(value, str) or not value:
        raise ProtocolError(f"{name} is not text")
    return value


def _count(root: dict[str, Any], name: str) -> int:
    value = root.get(name)
    if type(value) is not int or not 0 <= value <= _QUEUES_MAX:
        raise ProtocolError(f"{name} is not a number of queues")
    return int(value)
