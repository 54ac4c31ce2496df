"""What answers for transactions without a database: a resolver, and a listener as RocketMQ's clients have it."""

from __future__ import annotations

import broker
from broker.transaction.service import LocalTransactionState


def was_saved(_message: object) -> LocalTransactionState:
    return LocalTransactionState.COMMIT_MESSAGE


def is_unknown(_message: object) -> LocalTransactionState:
    return LocalTransactionState.UNKNOW


class Listener:
    """Its local transaction ends with `result`; asked later, it does not know."""

    def __init__(self, result: object) -> None:
        self.result, self.seen = result, []

    def execute_local_transaction(self, message: broker.Message, arg: object) -> object:
        self.seen.append((message.body, arg))
        if isinstance(self.result, Exception):
            raise self.result
        return self.result

    check_local_transaction = staticmethod(is_unknown)


class AsyncListener(Listener):
    """Nobody would await what it returns."""

    async def execute_local_transaction(self, message: broker.Message, arg: object) -> object:
        return super().execute_local_transaction(message, arg)
