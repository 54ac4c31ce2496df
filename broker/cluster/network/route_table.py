"""Where topics and brokers are, by the name servers; kept, and asked again when it is old.

RocketMQ: MQClientInstance.updateTopicRouteInfoFromNameServer, MQClientAPIImpl.getTopicRouteInfoFromNameServer (5.3.3).
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Iterator

from broker.cluster.network.channels import Channels, checked
from broker.cluster.network.settings import ClientSettings
from broker.errors import ClusterError, ProtocolError
from broker.remoting.admin_headers import TopicRequestHeader
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand
from broker.remoting.header import Header
from broker.remoting.routes import BrokerData, TopicRoute, decode_clusters, decode_route

_PATIENCE_S = 1.0  # for a name server that hangs, where an old route would do
_AGAIN_S = 5.0  # after none answered: until then old routes do


class RouteTable:
    """The routes that this client uses. All of it runs in the client's event loop."""

    def __init__(self, settings: ClientSettings, channels: Channels) -> None:
        self._settings, self._channels = settings, channels
        self._routes: dict[str, tuple[float, TopicRoute]] = {}
        self._members: tuple[BrokerData, ...] = ()  # of the cluster, where it was asked for
        self._brokers: dict[str, BrokerData] = {}  # those of all routes, and of the cluster
        self._first = 0  # the name server that answered last
        self._again_s = -math.inf  # until then the known routes do
        self._cluster = settings.cluster or ""

    async def route(self, topic: str, *, max_age_s: float | None = None) -> TopicRoute | None:
        """Where a topic is; None where it is nowhere. An old route stays while no name server answers.

        It also stays where a name server does not know the topic, until nothing of it can be reached: one that was just
        started knows nothing yet. With a `max_age_s` of 0 the answer is what it says now. Raises ClusterError when none
        answers and there is no old route.
        """
        now_s = asyncio.get_running_loop().time()
        held = self._routes.get(topic)
        if held is not None and (
            now_s - held[0] < (self._settings.route_s if max_age_s is None else max_age_s)
            or (max_age_s is None and now_s < self._again_s)
        ):
            return held[1]
        try:
            answer = await self._ask(
                RequestCode.GET_ROUTEINFO_BY_TOPIC, TopicRequestHeader(topic, accept_standard_json_only=True),
                timeout_s=None if held is None else min(_PATIENCE_S, self._settings.call_timeout_s),
            )  # fmt: skip
        except ClusterError:
            if held is None:
                raise
            self._again_s = asyncio.get_running_loop().time() + _AGAIN_S
            return held[1]
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            kept = self._kept(topic, now_s)
            return None if max_age_s == 0 else kept
        found = decode_route(checked(answer, RequestCode.GET_ROUTEINFO_BY_TOPIC, "the name server").body)
        self._routes[topic] = (now_s, found)
        self._collect()
        return found

    def _kept(self, topic: str, now_s: float) -> TopicRoute | None:
        """The old route of a topic that a name server does not know; forgotten where nothing was reached by it.

        RocketMQ: MQClientInstance.updateTopicRouteInfoFromNameServer keeps it without end (5.3.3).
        """
        held = self._routes.get(topic)
        if held is not None and held[0] > -math.inf:
            self._routes[topic] = (now_s, held[1])
            return held[1]
        self._routes.pop(topic, None)
        self._collect()
        return None

    def expire(self, topic: str) -> None:
        """Nothing that its route names could be reached: the next use asks a name server."""
        held = self._routes.get(topic)
        if held is not None:
            self._routes[topic] = (-math.inf, held[1])

    def _collect(self) -> None:
        """The brokers that are named now; those that left are forgotten."""
        found = {one.name: one for one in self._members}
        for _, route in sorted(self._routes.values(), key=lambda held: held[0]):  # the newest counts
            found.update(route.brokers)
        self._brokers = found

    async def refresh(self) -> None:
        """Ask again about every topic whose route is old; what does not answer stays as it is."""
        for topic in list(self._routes):
            with contextlib.suppress(ClusterError, ProtocolError):
                await self.route(topic)
        if self._members:
            with contextlib.suppress(ClusterError, ProtocolError):
                await self.cluster()

    async def look_again(self) -> None:
        """As `refresh`, for every topic now: a broker may have another address."""
        old_s = asyncio.get_running_loop().time() - self._settings.route_s
        self._routes = {topic: (min(old_s, at_s), route) for topic, (at_s, route) in self._routes.items()}
        await self.refresh()

    async def cluster(self) -> tuple[str, tuple[BrokerData, ...]]:
        """The name of the cluster and its brokers.

        Raises ClusterError when the name server has several and none was chosen, or not the one that was.
        """
        answer = checked(
            await self._ask(RequestCode.GET_BROKER_CLUSTER_INFO), RequestCode.GET_BROKER_CLUSTER_INFO,
            "the name server",
        )  # fmt: skip
        clusters = decode_clusters(answer.body)
        if not any(clusters.values()):
            raise ClusterError(f"no broker is registered at {self._settings.url}")
        name = self._cluster or (next(iter(clusters)) if len(clusters) == 1 else "")
        if name not in clusters:
            wanted = f"there is no cluster {name!r}" if name else "which one is meant is not said"
            text = f"{self._settings.url} has the clusters {', '.join(sorted(clusters))}, and {wanted}"
            raise ClusterError(f"{text}: broker.connect(..., cluster=NAME)")
        self._cluster, self._members = name, clusters[name]
        self._collect()
        return name, clusters[name]

    def broker(self, name: str) -> BrokerData:
        """A broker by its name. Raises ClusterError for one that no route names."""
        found = self._brokers.get(name)
        if found is None:
            raise ClusterError(f"no route names the broker {name!r}")
        return found

    def master(self, name: str) -> str:
        """The address of a broker's master. Raises ClusterError."""
        address = self.broker(name).master
        if address is None:
            raise ClusterError(f"the broker {name!r} has no master now")
        return address

    @property
    def masters(self) -> list[str]:
        """The addresses of all masters that routes name: who gets heartbeats."""
        return sorted({one.master for one in self._brokers.values() if one.master is not None})

    async def _ask(
        self, code: RequestCode, header: Header | None = None, *, timeout_s: float | None = None
    ) -> RemotingCommand:
        """The answer of the first name server that gives one; each has `timeout_s` for it. Raises ClusterError."""
        failures = []
        for number, place in self._by_turns():
            try:
                answer = await self._channels.request(place, code, header, timeout_s=timeout_s)
            except ClusterError as error:
                failures.append(str(error))
            else:
                self._first = number
                return answer
        raise ClusterError(f"no name server answers: {'; '.join(failures)}")

    def _by_turns(self) -> Iterator[tuple[int, str]]:
        places = self._settings.name_servers
        for step in range(len(places)):
            number = (self._first + step) % len(places)
            yield number, places[number]
