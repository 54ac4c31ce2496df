"""Which messages a consumer asks for: `*`, or tags with `||` between them; pure.

RocketMQ: FilterAPI.buildSubscriptionData, ExpressionMessageFilter.isMatchedByConsumeQueue (5.3.3).
"""

from __future__ import annotations

from dataclasses import dataclass

from broker.errors import MessageRejected
from broker.format.consumequeue import tags_code


@dataclass(frozen=True)
class Selection:
    """The tags that are wanted, and their hashes as ConsumeQueues hold them; empty for all messages."""

    tags: frozenset[str] = frozenset()
    codes: frozenset[int] = frozenset()

    @classmethod
    def parse(cls, expression: str) -> Selection:
        """Raises MessageRejected for an expression that would select nothing."""
        if not isinstance(expression, str):
            raise MessageRejected(f"tags is text, '*' or 'A || B', not {expression!r:.60}")
        if expression.strip() in ("", "*"):
            return cls()
        tags = frozenset(tag.strip() for tag in expression.split("||") if tag.strip())
        if not tags:
            raise MessageRejected(f"the tags {expression!r} name none: write '*' or 'A || B'")
        return cls(tags, frozenset(tags_code(tag) for tag in tags))

    @property
    def takes_all(self) -> bool:
        return not self.tags

    def may_match(self, code: int) -> bool:
        """By the unit of the ConsumeQueue alone: no message that is wanted is passed over."""
        return not self.codes or code in self.codes

    def matches(self, tag: str) -> bool:
        """By the tag itself: two tags may share a hash."""
        return not self.tags or tag in self.tags
