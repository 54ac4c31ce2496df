"""The transaction redo log of 3.0: what happened to transactions, in log order, as ConsumeQueue units.

    STORE/transaction/redolog/TRANSACTION_REDOLOG_TOPIC_XXXX/0/00000000000000000000

A unit names a record of the CommitLog. Its `tags_code` is -1 for a prepared record; for a commit or a rollback, which
it does not tell apart, it is the CommitLog offset of the prepared record. RocketMQ: TransactionStateService (3.1.4).
"""

from __future__ import annotations

from broker.format.consumequeue import UNIT_SIZE, Unit
from broker.format.topics import REDOLOG_TOPIC

TOPIC = REDOLOG_TOPIC
QUEUE_ID = 0
FILE_SIZE = 2_000_000 * UNIT_SIZE  # by default
PREPARED_TAG = -1


def prepared_unit(commitlog_offset: int, size: int) -> Unit:
    """The unit of a prepared record."""
    return Unit(commitlog_offset, size, PREPARED_TAG)


def end_unit(commitlog_offset: int, size: int, prepared_offset: int) -> Unit:
    """The unit of a commit or rollback record of the transaction whose half message lies at `prepared_offset`."""
    return Unit(commitlog_offset, size, prepared_offset)


def is_prepared(unit: Unit) -> bool:
    return unit.tags_code == PREPARED_TAG
