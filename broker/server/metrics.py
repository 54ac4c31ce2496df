"""`/metrics` for Prometheus and `/healthz`, on a port of their own on this machine.

Names are those of RocketMQ's exporter where it has one (rocketmq-exporter: RMQMetricsCollector); others begin with
`checkback_`. No label holds a body, a key or an address of a client.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from broker.consuming.group.offset_export import SCHEDULE_GROUP
from broker.errors import BrokerError
from broker.server.counters import GET, PUT
from broker.server.event_loop import close_soon, write_all
from broker.server.requests.queues import queue_range

if TYPE_CHECKING:
    from broker.server.context import ServerContext

_REQUEST_BYTES, _REQUEST_S = 8192, 5.0
Labels = dict[str, str]
Ranges = dict[str, dict[int, tuple[int, int]]]  # (first, end) of each queue, by topic and queue id
Sample = tuple[str, str, Labels, float]  # name, type, labels, value


def samples(context: ServerContext) -> Iterator[Sample]:
    """Everything that is measured, of topics, groups and transactions."""
    settings, counters, store = context.settings, context.counters, context.store
    base = {"cluster": settings.cluster, "broker": settings.broker_name}
    yield "rocketmq_broker_tps", "gauge", base, counters.recent(PUT)[1]
    yield "rocketmq_broker_qps", "gauge", base, counters.recent(GET)[1]
    yield "checkback_messages_in_total", "counter", base, counters.total(PUT)
    yield "checkback_messages_out_total", "counter", base, counters.total(GET)
    producers, consumers = context.clients.counts()
    yield "checkback_producer_groups", "gauge", base, producers
    yield "checkback_consumer_groups", "gauge", base, consumers
    yield "checkback_transactions_in_doubt", "gauge", base, len(store.transactions.in_doubt_slots())
    yield "checkback_transactions_parked", "gauge", base, len(store.transactions.parked())
    ranges: Ranges = {}
    for topic in store.topics():
        ranges[topic] = {queue_id: queue_range(store, topic, queue_id) for queue_id in store.queues(topic)}
        labels = {**base, "topic": topic}
        yield "rocketmq_producer_offset", "gauge", labels, sum(end for _, end in ranges[topic].values())
        yield "rocketmq_producer_tps", "gauge", labels, counters.recent(PUT, topic)[1]
    subscribed = context.clients.clustered()
    for group in sorted(context.groups.all().groups):
        yield from _of_group(context, base, group, subscribed.get(group, set()), ranges)


def _of_group(
    context: ServerContext, base: Labels, group: str, subscribed: set[str], ranges: Ranges
) -> Iterator[Sample]:
    """How far a group is in its topics. Of a queue in which it has no position everything is before it: a topic may
    have got more queues, and a group may have failed before its first message.
    """
    if group == SCHEDULE_GROUP:
        return
    online = str(len(context.client_ids(group)))
    positions = context.positions.of_group(group)
    for topic in sorted({topic for topic, _ in positions} | subscribed & ranges.keys()):
        queues = {queue_id: at for (name, queue_id), at in positions.items() if name == topic}
        labels = {**base, "group": group, "topic": topic}
        there = ranges.get(topic, {}).items()
        lag = sum(max(0, end - queues.get(queue_id, first)) for queue_id, (first, end) in there)
        yield "rocketmq_consumer_offset", "gauge", labels, sum(queues.values())
        yield "rocketmq_group_diff", "gauge", {**labels, "countOfOnlineConsumers": online}, lag
        yield "rocketmq_consumer_tps", "gauge", labels, context.counters.recent(GET, f"{topic}@{group}")[1]


def exposition(found: Iterator[Sample]) -> str:
    """The text format of Prometheus: samples of one name together, those of a histogram below the name they share."""
    lines: dict[str, list[str]] = {}
    for name, kind, labels, value in found:
        family = name.rpartition("_")[0] if kind == "histogram" else name
        block = lines.setdefault(family, [f"# TYPE {family} {kind}"])
        shown = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
        block.append(f"{name}{{{shown}}} {_number(value)}")
    return "".join(f"{line}\n" for block in lines.values() for line in block)


def _number(value: float) -> str:
    """Whole numbers whole: a rounded offset would hide the messages of the last minutes."""
    return str(int(value)) if value == int(value) else repr(float(value))


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class MetricsPage:
    """Answers GET requests, one for each connection."""

    def __init__(
        self,
        context: ServerContext,
        run: Callable[[Callable[[], str]], asyncio.Future[str]],
        own: Callable[[], list[Sample]],
    ) -> None:
        """`run` works in a thread; `own()` has what the server itself counts."""
        self._context, self._run, self._own = context, run, own

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request, and its end."""
        expected = OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError
        with contextlib.suppress(*expected, asyncio.CancelledError):  # the last: the server stops
            async with asyncio.timeout(_REQUEST_S):
                line = (await reader.readuntil(b"\r\n\r\n"))[:_REQUEST_BYTES].split(b"\r\n")[0].decode("latin-1")
                status, kind, body = await self._page(line)
                size = f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
                await write_all(writer, f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\n{size}".encode() + body)
        await close_soon(writer)

    async def _page(self, line: str) -> tuple[str, str, bytes]:
        method, _, rest = line.partition(" ")
        path = rest.split(" ")[0].split("?")[0]
        if method != "GET" or path not in ("/metrics", "/healthz"):
            return "404 Not Found", "text/plain", b"GET /metrics or /healthz\n"
        try:
            if path == "/healthz":
                await self._run(lambda: str(self._context.store.visible_end))
                return "200 OK", "text/plain", b"ok\n"
            text = await self._run(lambda: exposition(self._all()))
        except (BrokerError, OSError, ValueError) as error:
            return "503 Service Unavailable", "text/plain", f"{error}\n".encode()
        return "200 OK", "text/plain; version=0.0.4", text.encode()

    def _all(self) -> Iterator[Any]:
        yield from self._own()
        yield from samples(self._context)
