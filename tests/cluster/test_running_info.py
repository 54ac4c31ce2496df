"""What `mqadmin consumerStatus` and the dashboard hear from a consumer of ours, through its broker."""

from __future__ import annotations

import json
import re

import broker
from broker.remoting.bodies import decode_consumer_list
from broker.remoting.codes import RequestCode as Code
from broker.remoting.codes import ResponseCode
from tests.backends.clusters import Connected
from tests.cluster.conftest import ONE_ENGINE
from tests.server.wire_client import WireClient

GROUP = {"consumerGroup": "billing"}
_OBJECT_KEY = re.compile(rb'(\{"brokerName":"[^"]*","queueId":(\d+),"topic":"([^"]*)"\}):')


@ONE_ENGINE
def test_a_consumer_tells_which_queues_it_has(backend: Connected) -> None:
    producer = backend.client.producer("plain")
    for number in range(3):
        producer.send(broker.Message("carts", b"%d" % number), sharding_key="one")
    with backend.client.consumer("billing", "carts") as consumer, WireClient(backend.proxy.target) as operator:
        message = consumer.receive(backend.soon_s)
        assert message is not None
        (client_id,) = decode_consumer_list(operator.request(Code.GET_CONSUMER_LIST_BY_GROUP, GROUP).body)
        asked = operator.request(Code.GET_CONSUMER_RUNNING_INFO, {**GROUP, "clientId": client_id})
        assert asked.code == ResponseCode.SUCCESS, asked.remark
        info = json.loads(_OBJECT_KEY.sub(rb'"\3-\2":', asked.body))  # RocketMQ writes objects as keys
        names = {f"{topic}-{queue_id}" for topic, queue_id, _ in consumer.queues}
        assert set(info["mqTable"]) == names
        mine = info["mqTable"][f"carts-{message.queue_id}"]
        assert (mine["cachedMsgCount"], mine["cachedMsgMinOffset"], mine["cachedMsgMaxOffset"]) == (3, 0, 2)
        assert mine["lastConsumeTimestamp"] >= mine["lastPullTimestamp"] > 1_700_000_000_000
        assert not mine["locked"]
        assert sorted(one["topic"] for one in info["subscriptionSet"]) == ["%RETRY%billing", "carts"]
        assert info["properties"]["PROP_CONSUMEORDERLY"] == "false"
