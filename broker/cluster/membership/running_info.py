"""What a consumer tells an operator about itself, by `mqadmin consumerStatus`, `consumerProgress`, or the dashboard.

Its answer to GET_CONSUMER_RUNNING_INFO has no stack of its threads.
RocketMQ: DefaultMQPushConsumerImpl.consumerRunningInfo, ConsumerRunningInfo, ProcessQueueInfo (5.3.3).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from broker.cluster.membership.holdings import HeldQueue
from broker.remoting.bodies import ConsumerData
from broker.remoting.codes import VERSION_NAME
from broker.remoting.fastjson import ObjectMap, dumps

_MIB = 1 << 20
_UNCOUNTED = ("consumeFailedMsgs", "consumeFailedTPS", "consumeOKTPS", "consumeRT", "pullRT", "pullTPS")


def encode_running_info(
    data: ConsumerData, held: Iterable[HeldQueue], *, name_servers: str, ordered: bool, started_ms: int
) -> bytes:
    """The body of the answer: the subscriptions, and the queues that are ours with what was pulled of each.

    What RocketMQ's client counts for each topic (rates, times in ms) is not counted here, and 0.
    """
    properties = {
        "PROP_NAMESERVER_ADDR": name_servers, "PROP_CONSUME_TYPE": data.consume_type,
        "PROP_CLIENT_VERSION": VERSION_NAME, "PROP_CONSUMEORDERLY": str(ordered).lower(),
        "PROP_THREADPOOL_CORE_SIZE": "1", "PROP_CONSUMER_START_TIMESTAMP": str(started_ms),
        "consumerGroup": data.group, "consumeFromWhere": data.consume_from_where, "messageModel": data.message_model,
    }  # fmt: skip
    queues = [(one.queue.as_json(one.queue.broker_name), _queue_info(one, ordered=ordered)) for one in held]
    root = {
        "properties": properties,
        "subscriptionSet": [one.as_json() for one in data.subscriptions],
        "mqTable": ObjectMap(queues),
        "mqPopTable": {},
        "statusTable": {one.topic: dict.fromkeys(_UNCOUNTED, 0) for one in data.subscriptions},
        "userConsumerInfo": {},
    }
    return dumps(root, quote_numbers=True)


def _queue_info(held: HeldQueue, *, ordered: bool) -> dict[str, Any]:
    """One queue: "cached" is what was pulled and not acknowledged, "transaction" what an ordered one handed out."""
    window, ready = held.window, list(held.ready)
    handed_out = held.in_hand if ordered else 0
    return {
        "commitOffset": held.committed if held.committed >= 0 else window.position,
        "cachedMsgMinOffset": window.position if len(window) else 0,
        "cachedMsgMaxOffset": window.next - 1 if len(window) else 0,
        "cachedMsgCount": len(window),
        "cachedMsgSizeInMiB": sum(len(message.body) for _, message in ready) // _MIB,
        "transactionMsgMinOffset": window.position if handed_out else 0,
        "transactionMsgMaxOffset": window.position if handed_out else 0,
        "transactionMsgCount": handed_out,
        "locked": ordered,
        "tryUnlockTimes": 0,
        "lastLockTimestamp": 0,
        "droped": held.is_dropped,
        "lastPullTimestamp": held.pulled_ms,
        "lastConsumeTimestamp": held.handed_out_ms,
    }
