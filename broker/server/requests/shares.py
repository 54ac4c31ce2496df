"""What one connection may take of what all share: groups, places in the table of consumers, memory.

A heartbeat beyond that is refused. What a client was in before stays as it is, and is given back when it leaves.
"""

from __future__ import annotations

from broker.format.topics import retry_topic
from broker.remoting.bodies import GROUPS_MAX, HeartbeatData, LockBatch, SubscriptionData
from broker.remoting.codes import ResponseCode
from broker.remoting.fastjson import BODY_BYTES_MAX
from broker.server.clients import CLUSTERING, Peer
from broker.server.context import Refused, ServerContext

CELLS_MAX = 512  # of the 4,096 of the consumers' table, for groups and for the topics that they subscribe to
PLACES_MAX = 2048  # of these, for positions in queues that had none: they are kept when the client leaves
NAME_MAX = 255  # characters of a group or a client id. RocketMQ: Validators.CHARACTER_MAX_LENGTH (4.9.8)
STATED_MAX = BODY_BYTES_MAX  # characters of the names of producer groups and of subscriptions


def check_share(context: ServerContext, peer: Peer, data: HeartbeatData) -> None:
    """Raises Refused for a heartbeat after which a connection would have more than its share."""
    _check_name(data.client_id)
    producers, consumers = context.clients.groups_of(peer)
    producers |= set(data.producer_groups)
    consumers |= {one.group: (one.message_model, one.subscriptions) for one in data.consumers}
    for kind, number in (("producer", len(producers)), ("consumer", len(consumers))):
        if number > GROUPS_MAX:
            raise _refused(f"a connection is in at most {GROUPS_MAX} {kind} groups, and this one would be in {number}")
    size = sum(map(len, producers)) + sum(_size(one) for _, topics in consumers.values() for one in topics)
    if size > STATED_MAX:
        text = f"the producer groups and subscriptions of a connection have at most {STATED_MAX} characters"
        raise _refused(f"{text}, not {size}")
    cells = 0
    for group, (model, subscriptions) in consumers.items():
        if model == CLUSTERING:
            topics = {one.topic for one in subscriptions} - {retry_topic(group)}
            cells += 2 + sum(context.store.topic(topic) is not None for topic in topics)
    if cells > CELLS_MAX:
        text = f"a connection has at most {CELLS_MAX} consumer groups, retry topics and topics of them together"
        raise _refused(f"{text}, and this one would have {cells}: divide its groups among several clients")


def check_place(context: ServerContext, peer: Peer, group: str, topic: str, queue_id: int) -> None:
    """Raises Refused for a first position of a group in a queue, where its connection gave too many such ones."""
    if context.positions.table.cells.find(group, topic, queue_id) is not None:
        return
    taken = context.places.get(peer, 0)
    if taken >= PLACES_MAX:
        text = f"a connection gives at most {PLACES_MAX} queues of groups their first position"
        raise _refused(f"{text}: divide its groups among several clients, or connect again")
    context.places[peer] = taken + 1


def check_names(asked: LockBatch) -> None:
    """Raises Refused for names that are too long to be kept."""
    _check_name(asked.group)
    _check_name(asked.client_id)


def _check_name(name: str) -> None:
    if len(name) > NAME_MAX:
        raise _refused(f"a group or a client id has at most {NAME_MAX} characters, not {len(name)}")


def _size(one: SubscriptionData) -> int:
    return len(one.topic) + len(one.expression) + sum(map(len, one.tags)) + 8 * (len(one.tags) + len(one.codes))


def _refused(text: str) -> Refused:
    return Refused(ResponseCode.NO_PERMISSION, text)
