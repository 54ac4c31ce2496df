"""Lets a topic start a DAG through Airflow's own MessageQueueTrigger (apache-airflow-providers-common-messaging).

As in:

    trigger = MessageQueueTrigger(scheme="checkback", path="/srv/shop.store", topic="orders")
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit

if TYPE_CHECKING:
    from airflow.triggers.base import BaseEventTrigger


class CheckbackMessageQueueProvider:
    """What the provider entry `queues` names. Its methods are BaseMessageQueueProvider's, which need not be there."""

    scheme = "checkback"

    def scheme_matches(self, scheme: str) -> bool:
        """Whether `MessageQueueTrigger(scheme=...)` means us."""
        return scheme == self.scheme

    def queue_matches(self, queue: str) -> bool:
        """Whether an older `MessageQueueTrigger(queue=...)` means us: checkback:///srv/shop.store?topic=orders."""
        return urlsplit(queue).scheme == self.scheme

    def trigger_class(self) -> type[BaseEventTrigger]:
        """The trigger that does the work."""
        from recovery.airflow.triggers import MessageTrigger

        return MessageTrigger

    def trigger_kwargs(self, queue: str, **kwargs: Any) -> dict[str, Any]:
        """The trigger's arguments that a queue's URI says; what the caller gives goes before it."""
        parts = urlsplit(queue)
        topic = parse_qs(parts.query).get("topic", [""])[0]
        found = {"path": unquote(parts.path), "topic": topic}
        return {name: value for name, value in found.items() if value and name not in kwargs}
