"""LiveCluster: a connection to a cluster, with the producers and consumers that a store on this machine has.

    with broker.connect("rocketmq://127.0.0.1:9876") as cluster:
        producer = cluster.producer("shop", topics=["orders"], ledger=ledger)
        consumer = cluster.consumer("billing", "orders")

Threads share it; a forked child connects again. What only a store has raises NotInCluster.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self

from broker import observing
from broker.cluster.cluster_consumer import ClusterConsumer
from broker.cluster.membership.newest import read_newest
from broker.cluster.network.client import ClusterClient
from broker.cluster.network.event_loop import LoopThread
from broker.cluster.network.settings import ClientSettings, credentials_of, parse_url, tls_of
from broker.cluster.publishing.cluster_destination import ClusterDestination
from broker.cluster.publishing.topics import QUEUES, TopicAdmin
from broker.cluster.publishing.transactions import ClusterTransactions
from broker.errors import BrokerError, NotInCluster
from broker.message import ReceivedMessage
from broker.producer import Producer
from broker.producing.send_arguments import check_group
from broker.remoting.routes import TopicRoute

if TYPE_CHECKING:
    import ssl
    from datetime import datetime

    from broker.database.bound_ledger import BoundLedger
    from broker.database.dedup import Processed

_OF_A_STORE = {
    "append": "send with cluster.producer(group)",
    "append_batch": "send with cluster.producer(group).send_batch(messages)",
    "transactions": "its brokers keep the transactions: cluster.producer(group, topics=[...], ledger=...)",
    "retain": "its brokers remove old messages, by fileReservedTime",
    "retention": "its brokers remove old messages, by fileReservedTime",
    "queue_range": "read with cluster.consumer(group, topic)",
    "message": "read with cluster.consumer(group, topic)",
    "record": "read with cluster.consumer(group, topic)",
    "records": "read with cluster.consumer(group, topic), or `checkback verify` the store of a broker",
    "sync_now": "a broker flushes as its flushDiskType says",
    "writer": "its files belong to its brokers",
    "delete_topic": "use mqadmin deleteTopic",
    "pause_group": "use mqadmin updateSubGroup -c CLUSTER -g GROUP -s false",
    "resume_group": "use mqadmin updateSubGroup -c CLUSTER -g GROUP -s true",
    "offset_at_time": "use cluster.consumer(group, topic, start=TIME)",
}


class LiveCluster:
    """A client of a cluster. Close it, or use it in a `with` statement; threads may share it.

    `broker.connect` makes it, and has the errors. After `close`, and in a forked child, each call raises ClusterError.
    What only a store has (`append`, `retain`, ...) raises NotInCluster.
    """

    def __init__(self, settings: ClientSettings) -> None:
        """See `broker.connect`."""
        self._settings = settings
        self._loop = LoopThread("checkback-cluster")
        self._consumers: list[ClusterConsumer] = []
        self._transactional: dict[str, bool] = {}
        self._client = ClusterClient(settings, self._loop)
        try:
            self.half_messages: ClusterTransactions = ClusterTransactions(self._client)
            """What ends half messages, and answers the brokers' checks."""
            self._loop.run(self._client.routes.cluster())
            self._loop.run(self._client.start())
        except BaseException:
            self._loop.run(self._client.close())
            self._loop.close()
            raise

    def __repr__(self) -> str:
        return f"<broker.LiveCluster {self.path}>"

    def __getattr__(self, name: str) -> NoReturn:
        if name in _OF_A_STORE:
            text = f"{name} is of a store on this machine, and {self.path} is a cluster"
            raise NotInCluster(f"{text}: {_OF_A_STORE[name]}")
        raise AttributeError(f"'LiveCluster' object has no attribute {name!r}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def path(self) -> str:
        """The URL of the name servers, with their ports."""
        return self._settings.url

    @property
    def store_id(self) -> str:
        """What a ledger's rows name the cluster by: its name, up to 32 characters; of a longer one a hash.

        Raises ClusterError.
        """
        return self.destination("").store_id

    def close(self) -> None:
        """Leave all groups and close every connection. A second call does nothing."""
        if self._loop.is_closed:
            return
        for consumer in list(self._consumers):
            consumer.close()
        with contextlib.suppress(BrokerError):  # in a forked child there is nothing to close
            self._loop.run(self._client.close())
        self._loop.close()

    # Doors

    def producer(
        self, group: str, *, topics: Sequence[str] = (), ledger: BoundLedger | None = None, resolver: Any = None
    ) -> Producer:
        """Make what an application sends with; with a ledger or a resolver, together with its local transactions.

        The arguments and the errors are those of Producer.
        """
        return Producer(self, group, topics=topics, ledger=ledger, resolver=resolver)

    def destination(self, group: str) -> ClusterDestination:
        """Where the messages of a producer group go. Producer calls it."""
        return ClusterDestination(self._client, self.half_messages, group, self._transactional)

    def consumer(
        self,
        group: str,
        topic: str | Sequence[str],
        *,
        tags: str = "*",
        ordered: bool = False,
        start: str | int | datetime = "first",
        max_retries: int = 16,
        retry_delay_level: int | None = None,
        retries_first: bool = False,
        ack_timeout_s: float = 900.0,
        processed: Processed | None = None,
    ) -> ClusterConsumer:
        """Make what an application receives with: one member of a consumer group, which shares the topics' queues.

        The arguments are those of `LiveStore.consumer`. Raises MessageRejected for a bad name or tags that select
        nothing, NotInCluster for `retry_delay_level=0` unless it is ordered, BrokerError for other arguments out of
        range, NotPermitted when a broker does not let the account, or these topics, into the group, ClusterError when
        no name server or broker answers.
        """
        made = observing.receiver(ClusterConsumer)(
            self._settings, self._loop, group, topic, tags=tags, ordered=ordered, start=start, max_retries=max_retries,
            retry_delay_level=retry_delay_level, retries_first=retries_first, ack_timeout_s=ack_timeout_s,
            processed=processed,
            on_close=self._consumers.remove,
        )  # fmt: skip
        self._consumers.append(made)
        return made

    # Topics

    def topic(self, name: str) -> TopicRoute | None:
        """Where a topic is: `queues` and `brokers`, asked now; None when no broker has it. Raises ClusterError."""
        return self._loop.run(self._client.routes.route(name, max_age_s=0.0))

    def create_topic(self, name: str, *, queues: int = QUEUES, message_type: str = "") -> None:
        """Make a topic with so many queues at each master, or change it.

        `message_type` is as of `WritableStore.create_topic`; empty: none. Raises MessageRejected for a name, a number
        or a type that is not one, NotPermitted when the account may not, ClusterError when a broker refuses or does not
        answer.
        RocketMQ: UpdateTopicSubCommand (5.3.3).
        """
        self._loop.run(TopicAdmin(self._client).create(name, queues=queues, message_type=message_type))

    def newest(self, topic: str, limit: int = 32, *, partial: bool = False) -> list[ReceivedMessage]:
        """The last messages of each queue of a topic, oldest first, at most `limit` of each; fewer where their bodies
        have more than 16 MiB together.

        No group's position moves. Empty for a topic that is not there. Raises NotPermitted when the account may not
        read it, ClusterError when a broker does not answer; with `partial` only when none does.
        """
        return self._loop.run(read_newest(self._client, topic, limit, partial=partial))

    def join(self, group: str) -> None:
        """Be a member of a producer group at every broker, without sending: its checks come here, too.

        Raises MessageRejected for an impossible name, ClusterError when no name server answers.
        """
        check_group(group)
        self._loop.run(self._join(group))

    async def _join(self, group: str) -> None:
        self._client.producer_groups.add(group)
        await self._client.beat()


def connect(
    url: str,
    *,
    acl: Any = None,
    tls: bool | str | ssl.SSLContext | None = None,
    cluster: str | None = None,
    **limits: Any,
) -> LiveCluster:
    """See `broker.connect`."""
    settings = ClientSettings(parse_url(url), credentials_of(acl), tls_of(tls), cluster, **limits)
    return LiveCluster(settings)
