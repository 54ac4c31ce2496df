"""Half messages with one unique key in a half-op store: which one counts, and what became of each by itself.

A broker stores a half message again at each check, and says so in it (TRANSACTION_CHECK_TIMES): the later one counts,
the earlier are RENEWED. A client whose send timed out sends the same half message again, which says nothing of the
kind: then there are several, each is checked and ended by itself, and a commit of each is delivered.

RocketMQ: TransactionalMessageServiceImpl.check (5.3.3); rocketmq-client-go: defaultProducer.sendSync (2.1.2).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from broker.transaction.events import EventKind, TransactionState
from recovery.transactions.events import Rows

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


class HalfCopies(NamedTuple):
    """Of rows that are sorted by group and offset: what each half message is by itself."""

    states: Ints  # shape (rows,): TransactionState of a half message, 0 of another row
    is_shared: Flags  # shape (groups,): more than one half message counts


def ops_of_halves(rows: Rows, is_half: Flags) -> Ints:
    """For each row that is a half, how many op messages name it."""
    ops = np.zeros(len(rows), np.int64)
    named = np.flatnonzero(rows["kind"] == EventKind.OP)
    halves = np.flatnonzero(is_half)
    order = halves[np.argsort(rows["offset"][halves], kind="stable")]
    at = np.searchsorted(rows["offset"][order], rows["half"][named])
    ops[order[at]] = rows["checks"][named]
    return ops


def half_copies(rows: Rows, group: Ints, count: int, ops: Ints) -> HalfCopies:
    """Tell the half messages that count from those that were renewed; one that is alone has its group's state."""
    indices, is_half = np.arange(len(rows)), rows["kind"] == EventKind.HALF
    has_several = np.bincount(group[is_half], minlength=count) > 1
    if not has_several.any():  # as nearly always, and what follows takes longer than all the rest
        return HalfCopies(np.zeros(len(rows), np.int64), has_several)
    checked = is_half & (rows["checks"] > 0)
    renewed_before = np.full(count, -1, np.int64)
    np.maximum.at(renewed_before, group[checked], indices[checked])
    counts = is_half & (indices >= renewed_before[group])
    delivered = np.isin(rows["offset"], rows["half"][rows["kind"] == EventKind.COMMITTED])
    ended = np.where(delivered, TransactionState.COMMITTED, TransactionState.ROLLED_BACK)
    states = np.where(delivered | (ops > 0), ended, TransactionState.PREPARED)
    states = np.where(counts, states, TransactionState.RENEWED)
    is_shared = np.bincount(group[counts], minlength=count) > 1
    return HalfCopies(np.where(is_half, states, 0).astype(np.int64), is_shared)
