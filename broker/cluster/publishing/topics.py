"""Make topics at the brokers of a cluster. RocketMQ: MQClientAPIImpl.createTopic, UpdateTopicSubCommand (5.3.3)."""

from __future__ import annotations

from broker.cluster.network.channels import checked
from broker.cluster.network.client import ClusterClient
from broker.errors import ClusterError
from broker.format.config import MESSAGE_TYPE_ATTRIBUTE, PERM_READ, PERM_WRITE, new_topic
from broker.format.topics import AUTO_CREATE_TOPIC
from broker.remoting.admin_headers import CreateTopicRequestHeader
from broker.remoting.codes import RequestCode

QUEUES = 4


class TopicAdmin:
    """Changes topics. Runs in the event loop."""

    def __init__(self, client: ClusterClient) -> None:
        self._client = client

    async def create(self, topic: str, *, queues: int = QUEUES, message_type: str = "") -> None:
        """Make a topic at each master of the cluster, or change it. Raises MessageRejected, ClusterError, NotPermitted.

        Brokers before 5.0 know no message types, and ignore them.
        """
        new_topic(topic, queues, message_type)  # a broker takes 0 queues, and the topic is lost for everyone
        name, brokers = await self._client.routes.cluster()
        masters = [one.master for one in brokers if one.master is not None]
        if not masters:
            raise ClusterError(f"the cluster {name} has no master now: no topic can be made")
        attributes = f"+{MESSAGE_TYPE_ATTRIBUTE}={message_type}" if message_type else ""
        header = CreateTopicRequestHeader(
            topic, queues, queues, PERM_READ | PERM_WRITE, AUTO_CREATE_TOPIC, "SINGLE_TAG", attributes=attributes
        )
        for address in masters:
            code = RequestCode.UPDATE_AND_CREATE_TOPIC
            checked(await self._client.channels.request(address, code, header), code, address)
