"""Extension fields of what clients, mqadmin and the dashboard ask of a broker or a name server besides messages.

RocketMQ: the classes of the same names (5.3.3); those with one field share a declaration.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from broker.remoting.codes import RequestCode
from broker.remoting.header import Header, Wire, boolean, i32, i64, text


@dataclass(frozen=True)
class UnregisterClientRequestHeader(Header, codes=(RequestCode.UNREGISTER_CLIENT,)):
    """A client that leaves its groups."""

    client_id: Annotated[text, Wire("clientID")]
    producer_group: text | None = None
    consumer_group: text | None = None


@dataclass(frozen=True)
class ConsumerGroupRequestHeader(
    Header,
    codes=(
        RequestCode.GET_CONSUMER_LIST_BY_GROUP,
        RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
        RequestCode.GET_CONSUMER_CONNECTION_LIST,
    ),
):
    """A consumer group."""

    consumer_group: text


@dataclass(frozen=True)
class ProducerGroupRequestHeader(Header, codes=(RequestCode.GET_PRODUCER_CONNECTION_LIST,)):
    """A producer group."""

    producer_group: text


@dataclass(frozen=True)
class TopicRequestHeader(
    Header,
    codes=(
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        RequestCode.GET_TOPIC_STATS_INFO,
        RequestCode.GET_TOPIC_CONFIG,
        RequestCode.QUERY_TOPIC_CONSUME_BY_WHO,
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.DELETE_TOPIC_IN_NAMESRV,
    ),
):
    """A topic; `accept_standard_json_only` asks for routes with quoted integer keys."""

    topic: text
    accept_standard_json_only: boolean = False


@dataclass(frozen=True)
class GetConsumeStatsRequestHeader(
    Header, codes=(RequestCode.GET_CONSUME_STATS, RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER)
):
    """How far a group is behind, in one topic or in all."""

    consumer_group: text = ""
    topic: text | None = None
    group: text | None = None


@dataclass(frozen=True)
class GroupRequestHeader(
    Header, codes=(RequestCode.QUERY_TOPICS_BY_CONSUMER, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG)
):
    """A consumer group, under another name."""

    group: text


@dataclass(frozen=True)
class QueryConsumeTimeSpanRequestHeader(Header, codes=(RequestCode.QUERY_CONSUME_TIME_SPAN,)):
    """A group at a topic."""

    topic: text
    group: text


@dataclass(frozen=True)
class CreateTopicRequestHeader(Header, codes=(RequestCode.UPDATE_AND_CREATE_TOPIC,)):
    """A topic to be created or changed; `attributes` is `+name=value,-name`."""

    topic: text
    read_queue_nums: i32
    write_queue_nums: i32
    perm: i32
    default_topic: text | None = None
    topic_filter_type: text | None = None
    topic_sys_flag: i32 = 0
    order: boolean = False
    attributes: text | None = None
    force: boolean = False


@dataclass(frozen=True)
class DeleteSubscriptionGroupRequestHeader(Header, codes=(RequestCode.DELETE_SUBSCRIPTIONGROUP,)):
    """A group to be deleted."""

    group_name: text
    clean_offset: boolean = False


@dataclass(frozen=True)
class ResetOffsetRequestHeader(
    Header, codes=(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, RequestCode.RESET_CONSUMER_CLIENT_OFFSET)
):
    """Where a group is to consume again: from a time (-1: the end), or from a queue offset in one queue."""

    topic: text
    group: text
    timestamp_ms: Annotated[i64, Wire("timestamp")] = -1
    is_force: boolean = False
    queue_id: i32 = -1
    queue_offset: Annotated[i64, Wire("offset")] = -1


@dataclass(frozen=True)
class CloneGroupOffsetRequestHeader(Header, codes=(RequestCode.CLONE_GROUP_OFFSET,)):
    """Give one group the positions of another."""

    src_group: text
    dest_group: text
    topic: text | None = None


@dataclass(frozen=True)
class ConsumerClientRequestHeader(
    Header, codes=(RequestCode.GET_CONSUMER_RUNNING_INFO, RequestCode.CONSUME_MESSAGE_DIRECTLY)
):
    """One client of a group, to which the request is passed on."""

    consumer_group: text
    client_id: text | None = None
    jstack_enable: boolean = False
    msg_id: text | None = None


@dataclass(frozen=True)
class ViewBrokerStatsDataRequestHeader(Header, codes=(RequestCode.VIEW_BROKER_STATS_DATA,)):
    """One counter of a broker."""

    stats_name: text
    stats_key: text


@dataclass(frozen=True)
class KvConfigRequestHeader(
    Header, codes=(RequestCode.PUT_KV_CONFIG, RequestCode.GET_KV_CONFIG, RequestCode.DELETE_KV_CONFIG)
):
    """A key of the name server's table."""

    namespace: text
    key: text
    value: text | None = None


@dataclass(frozen=True)
class NamespaceRequestHeader(Header, codes=(RequestCode.GET_KVLIST_BY_NAMESPACE,)):
    """A namespace of the name server's table."""

    namespace: text


@dataclass(frozen=True)
class ClusterRequestHeader(Header, codes=(RequestCode.GET_TOPICS_BY_CLUSTER,)):
    """A cluster."""

    cluster: text


@dataclass(frozen=True)
class BrokerNameRequestHeader(
    Header, codes=(RequestCode.WIPE_WRITE_PERM_OF_BROKER, RequestCode.ADD_WRITE_PERM_OF_BROKER)
):
    """A broker by its name."""

    broker_name: text


@dataclass(frozen=True)
class RegisterBrokerRequestHeader(Header, codes=(RequestCode.REGISTER_BROKER,)):
    """A broker that tells a name server of itself; the body has its topics."""

    broker_name: text
    broker_addr: text
    cluster_name: text
    ha_server_addr: text  # where its slaves connect
    broker_id: i64  # 0 for a master
    compressed: boolean = False


@dataclass(frozen=True)
class UnregisterBrokerRequestHeader(Header, codes=(RequestCode.UNREGISTER_BROKER,)):
    """A broker that leaves a name server."""

    broker_name: text
    broker_addr: text
    cluster_name: text
    broker_id: i64
