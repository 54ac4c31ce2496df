"""What the customers of the tests ask of a shop, and what every shop answers with."""

from __future__ import annotations

import json


class OutOfStock(Exception):
    """The business says no after the message was sent; the shop answers 409."""


def order_body(order_id: int, item: str) -> bytes:
    """The body of the message that announces an order."""
    return json.dumps({"id": order_id, "item": item}).encode()
