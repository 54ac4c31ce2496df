"""checkback: an embedded transactional-message broker, byte-compatible with Apache RocketMQ's store.

    import broker

    with broker.open("shop.store") as store:
        store.append(broker.Message("orders", b"paid", keys=["4711"]))
        half = store.transactions.prepare(broker.Message("stock", b"locked"), "shop")
        store.transactions.commit(half)

What is not named here is plumbing. Everything but the errors loads at its first use.
"""

from __future__ import annotations

import importlib
import os
import typing
from typing import TYPE_CHECKING

from broker.errors import (
    AlreadyEnded,
    BrokerError,
    ClusterError,
    CorruptRecord,
    CorruptStore,
    MessageRejected,
    NotAStore,
    NotInCluster,
    NotPermitted,
    StoreError,
    StoreFull,
    StoreLocked,
    SyncFailed,
    TransactionError,
    UnknownOutcome,
)

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable
    from typing import Any, Unpack

    from broker.app.application import App
    from broker.app.bodies import BodyCodec
    from broker.app.retry import Retry
    from broker.cluster.cluster_consumer import ClusterConsumer
    from broker.cluster.live_cluster import LiveCluster
    from broker.consumer import Consumer
    from broker.database.dedup import Processed
    from broker.enlisting.connection_ledger import ConnectionLedger
    from broker.ledger import Ledger
    from broker.live import LiveStore
    from broker.message import Message, ReceivedMessage
    from broker.producer import Producer
    from broker.producing.destination import SendResult
    from broker.retainer import RetentionReport
    from broker.server.running import Server
    from broker.server.settings import ServeOptions
    from broker.store.maintain.retention import Retention
    from broker.store.read.layout import StoreLayout
    from broker.store.read.store import Store
    from broker.transaction.events import TransactionState
    from broker.transaction.service import (
        CheckListener,
        Ended,
        Half,
        HalfReference,
        LocalTransactionState,
        TransactionalMessageService,
    )

__all__ = [
    "AlreadyEnded",
    "App",
    "BodyCodec",
    "BrokerError",
    "CheckListener",
    "ClusterConsumer",
    "ClusterError",
    "ConnectionLedger",
    "Consumer",
    "CorruptRecord",
    "CorruptStore",
    "Ended",
    "Half",
    "HalfReference",
    "Ledger",
    "LiveCluster",
    "LiveStore",
    "LocalTransactionState",
    "Message",
    "MessageRejected",
    "NotAStore",
    "NotInCluster",
    "NotPermitted",
    "Processed",
    "Producer",
    "ReceivedMessage",
    "Retention",
    "RetentionReport",
    "Retry",
    "SendResult",
    "Server",
    "Store",
    "StoreError",
    "StoreFull",
    "StoreLayout",
    "StoreLocked",
    "SyncFailed",
    "TransactionError",
    "TransactionState",
    "TransactionalMessageService",
    "UnknownOutcome",
    "connect",
    "open",
    "serve",
]

_HOMES = {
    "App": "broker.app.application",
    "BodyCodec": "broker.app.bodies",
    "CheckListener": "broker.transaction.service",
    "ClusterConsumer": "broker.cluster.cluster_consumer",
    "ConnectionLedger": "broker.enlisting.connection_ledger",
    "Consumer": "broker.consumer",
    "Ended": "broker.transaction.service",
    "Half": "broker.transaction.service",
    "HalfReference": "broker.transaction.service",
    "Ledger": "broker.ledger",
    "LiveCluster": "broker.cluster.live_cluster",
    "LiveStore": "broker.live",
    "LocalTransactionState": "broker.transaction.service",
    "Message": "broker.message",
    "Processed": "broker.database.dedup",
    "Producer": "broker.producer",
    "ReceivedMessage": "broker.message",
    "Retention": "broker.store.maintain.retention",
    "RetentionReport": "broker.retainer",
    "Retry": "broker.app.retry",
    "SendResult": "broker.producing.destination",
    "Server": "broker.server.running",
    "Store": "broker.store.read.store",
    "StoreLayout": "broker.store.read.layout",
    "TransactionState": "broker.transaction.events",
    "TransactionalMessageService": "broker.transaction.service",
}


@typing.overload
def open(path: str | os.PathLike[str], *, read_only: typing.Literal[True]) -> Store: ...


@typing.overload
def open(
    path: str | os.PathLike[str],
    *,
    read_only: typing.Literal[False] = False,
    sync: typing.Literal["each", "group", "os"] = "group",
    layout: StoreLayout | None = None,
    role: typing.Literal["master", "slave"] = "master",
    reject_transactions: bool = False,
    transactions: str | None = None,
    create: bool = True,
    retention: Retention | None = None,
    in_doubt_max: int | None = None,
) -> LiveStore: ...


@typing.overload
def open(path: str | os.PathLike[str], *, read_only: bool) -> Store: ...


def open(
    path: str | os.PathLike[str],
    *,
    read_only: bool = False,
    sync: typing.Literal["each", "group", "os"] = "group",
    layout: StoreLayout | None = None,
    role: typing.Literal["master", "slave"] = "master",
    reject_transactions: bool = False,
    transactions: str | None = None,
    create: bool = True,
    retention: Retention | None = None,
    in_doubt_max: int | None = None,
) -> Store:
    """Open the store in a directory; one that is not there, or an empty one, becomes a new store.

    A relative path is that of the process's directory now: it may change its directory later.

    With `create=False` it is not made: NotAStore says that there is none. The directory above it must be there in any
    case, since a typing error or a volume that is not mounted would become a new, empty store.

    `sync` says what a send waits for: `each` fsyncs every record, `group` fsyncs once for all that wait, `os`
    leaves it to the operating system (a power cut loses the last seconds). `layout` are the file sizes of a new store:
    `StoreLayout.default()` (as None), `.small()` or `.rocketmq()`. `retention` says when old messages may go; None:
    this process removes nothing. While `in_doubt_max` transactions are in doubt, half messages are refused; None: no
    limit. A store of role `slave` refuses sends and ends; `reject_transactions` refuses half messages. `transactions`
    says how a new store records them: "state-table" (the default), which RocketMQ 3.0 to 3.1.4 reads on, or "half-op",
    which 4.3 and later do; an old store keeps what it has, as with None. Any other name is that of an implementation in
    the entry point group `checkback.transaction_service`.

    With `read_only` nothing on disk changes and no permission to write is needed; another program, a live RocketMQ
    broker included, may be writing to the store at the same time. Opening is cheap: nothing is scanned. What is damaged
    inside raises CorruptStore when it is read.

    Raises NotAStore when there is no store at the path, or none can be made there; BrokerError for arguments out of
    range. For writing also StoreError for a store that checkback does not write, that is on a network file system or
    that keeps its transactions in another way; StoreLocked when another process recovers it or holds its append lock
    for 10 s; CorruptStore when no crash explains the damage; NotUnderstood when a recovery would replace what checkback
    cannot make; StoreFull.
    """
    from broker.store.read.store import open_store

    if not isinstance(path, (str, os.PathLike)):
        raise BrokerError(f"the path of a store is text or a pathlib.Path, not {path!r:.60}")
    if not isinstance(read_only, bool):
        raise BrokerError(f"read_only is True or False, not {read_only!r:.60}")
    if read_only:
        return open_store(path)
    from broker.live import open_live

    return open_live(
        path, sync=sync, layout=layout, role=role, reject_transactions=reject_transactions, transactions=transactions,
        create=create, retention=retention, in_doubt_max=in_doubt_max,
    )  # fmt: skip


def connect(
    url: str,
    *,
    acl: Any = None,
    tls: bool | str | ssl.SSLContext | None = None,
    cluster: str | None = None,
) -> LiveCluster:
    """Connect to a RocketMQ cluster by its name servers: `rocketmq://HOST:9876;HOST:9876`.

        with broker.connect("rocketmq://127.0.0.1:9876") as cluster:
            producer = cluster.producer("shop", topics=["orders"], ledger=broker.Ledger(engine))

    Producers and consumers are those of a store, with the same ledger, sessions and errors; what a cluster cannot
    promise is in `docs/cluster.md`, and what it does not have raises NotInCluster. Brokers from 3.1.4 to 5.5.0 and
    `checkback serve` speak the protocol.

    `acl` is an account, ("access key", "secret key"), of ACL 1.0 or 2.0; None: none. `tls` is True, the path of a file
    with the authority's certificate, or an SSLContext; None: plain. `cluster` says which one, where the name servers
    have several; None: the only one. Raises BrokerError for an address, an account or a certificate that is not one,
    ClusterError when no name server answers, no broker is registered, or it is not clear which cluster is meant.
    """
    from broker.cluster.live_cluster import connect as connect_to

    return connect_to(url, acl=acl, tls=tls, cluster=cluster)


def serve(
    store: LiveStore,
    listen: str = "127.0.0.1:10911",
    *,
    resolver: Callable[[Half, ReceivedMessage], LocalTransactionState] | None = None,
    **options: Unpack[ServeOptions],
) -> Server:
    """Serve an open store to RocketMQ clients in any language: a name server and a broker on one port.

        with broker.open("shop.store") as store, broker.serve(store) as server:
            print(server.address)

    The server has threads of its own; it ends with the `with` statement or `close()`, and answers first what it
    accepted. Other processes, and producers and consumers of this one, may use the store at the same time; a consumer
    group may have remote clients and their consumers, if all ask for the same topics and the server is not a broker of
    `name_servers`.

    It listens on this machine only, unless there is an `acl` file or `insecure` says that everyone may connect. Clients
    reach it at `advertise`, when that is not the address it listens on. `resolver(half, message)` may say how a local
    transaction ended; where it says UNKNOW, and without it (None), a connected producer of the group is asked. The
    other options are those of ServeOptions. Raises BrokerError for options that cannot be or are not safe, and when it
    cannot listen or reach a name server of `name_servers`; StoreError for a store that was closed.
    """
    from broker.errors import shown
    from broker.live import LiveStore
    from broker.server.running import start
    from broker.server.settings import ServeOptions, ServerSettings

    if not isinstance(store, LiveStore):
        raise BrokerError(f"broker.serve takes an open store, with broker.open(path) as store, not {shown(store)}")
    if unknown := options.keys() - ServeOptions.__annotations__.keys():
        raise BrokerError(f"serve has no option {min(unknown)!r}; it takes {', '.join(ServeOptions.__annotations__)}")
    if not isinstance(listen, str):
        raise BrokerError(f"listen is an address, as '127.0.0.1:10911', not {shown(listen)}")
    if resolver is not None and not callable(resolver):
        raise BrokerError(f"resolver= takes a function resolver(half, message), not {shown(resolver)}")
    return start(store, ServerSettings(listen, **options), resolver)


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'broker' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(home), name)
    return value


def __dir__() -> list[str]:
    return __all__
