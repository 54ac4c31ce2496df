"""The end of transactions: END_TRANSACTION, and CHECK_TRANSACTION_STATE to producers that live.

    half ──► no end in time ──► a resolver, if there is one ──► else a producer of the group, at random ──► its end

RocketMQ: EndTransactionProcessor, Broker2Client.checkProducerTransactionState, TransactionalMessageServiceImpl.check
(5.3.3). The first decision wins: a contrary one is refused, and the same one again changes nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from broker import compiled, observing
from broker.errors import BrokerError, CorruptStore, MessageRejected, TransactionError
from broker.format import properties as names
from broker.format.commitlog import encode
from broker.format.java import encode_message_id
from broker.format.record.recordcrc import RECORD_CRC_SIZE, record_crc_reserve
from broker.format.sysflag import TRANSACTION_MASK, TransactionType
from broker.format.topics import HALF_TOPIC
from broker.log_fields import event, fields_of_half
from broker.message import ReceivedMessage
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand
from broker.remoting.message_headers import CheckTransactionStateRequestHeader, EndTransactionRequestHeader
from broker.server.acl import PUB, may
from broker.server.clients import Peer
from broker.server.context import Refused, Request, ServerContext
from broker.transaction.rounds import is_due
from broker.transaction.service import Half, HalfReference, LocalTransactionState, TransactionalMessageService

NOT, COMMIT, ROLLBACK = 0, 8, 12
_DECISIONS = {COMMIT: TransactionType.COMMIT, ROLLBACK: TransactionType.ROLLBACK}
_PATIENCE_S, _PAUSE_S = 2.0, 0.01  # for a producer that does not read what it is sent
_read: Callable[[dict[str, str]], tuple[int, int, str, int] | None] | None = (
    compiled.fast.request_end if compiled.fast else None
)
Resolver = Callable[[Half, ReceivedMessage], LocalTransactionState]

log = logging.getLogger("broker.server")


def end_transaction(context: ServerContext, request: Request) -> RemotingCommand | None:
    """END_TRANSACTION; a producer that does not know gets no answer, as with RocketMQ."""
    header = EndTransactionRequestHeader.decode(request.command.ext)
    if header.commit_or_rollback not in (COMMIT, ROLLBACK):
        return None
    _check_right(context, request, header)
    try:
        _decide(context, header)
    except TransactionError as error:
        address, group = request.connection.address, header.producer_group[:255]
        log.warning("%s: END_TRANSACTION of %s: %s", address, group, error, extra=event("end-refused", group=group))
        raise Refused(ResponseCode.SYSTEM_ERROR, str(error)) from None
    context.checks.pop(header.commit_log_offset, None)
    return request.answer()


def _decide(context: ServerContext, header: EndTransactionRequestHeader) -> None:
    """Commit or roll back. Raises TransactionError."""
    service: Any = context.store.transactions
    half: Any = HalfReference(header.commit_log_offset, header.tran_state_table_offset, header.producer_group)
    extra = _checks(context, header.commit_log_offset)
    if observing.is_observed():  # its span says more than the request; what the request says is still what counts
        known = service.half(half.commitlog_offset)
        half = replace(known, slot=half.slot, producer_group=half.producer_group)
        service = observing.ending(service, for_client=True)
    (service.commit if header.commit_or_rollback == COMMIT else service.rollback)(half, extra_properties=extra)


def end_at_once(context: ServerContext, request: Request) -> RemotingCommand | None:
    """The same for the event loop, which waits for no lock; None where the thread of the store is to do it.

    A fast path: two switches of threads less for each end (decision 0045; in `make bench`: serving Java clients). Kept
    equal: tests/server/test_common_ends.py.
    """
    end = None if _read is None else _read(request.command.ext)
    if end is None or request.account is not None or context.checks.get(end[0]) or observing.is_observed():
        return None
    offset, slot, producer_group, decision = end
    reference = HalfReference(offset, slot, producer_group)
    if context.store.transactions.end_at_once(reference, _DECISIONS[decision]) is None:
        return None
    return request.answer()


def _checks(context: ServerContext, commitlog_offset: int) -> dict[str, str] | None:
    """How often a half message was checked here, for its end, unless the broker that checked it before says it."""
    times = context.checks.get(commitlog_offset)
    if not times or names.TRANSACTION_CHECK_TIMES in context.store.transactions.half(commitlog_offset).properties:
        return None
    return {names.TRANSACTION_CHECK_TIMES: str(times)}


def _check_right(context: ServerContext, request: Request, header: EndTransactionRequestHeader) -> None:
    """With an ACL, who may not send to a topic ends none of its transactions."""
    if request.account is not None and not request.account.is_admin:
        try:
            topic = context.store.transactions.half(header.commit_log_offset).topic
        except TransactionError as error:
            raise Refused(ResponseCode.SYSTEM_ERROR, str(error)) from None
        if not may(request.account, PUB, topic=topic):
            text = f"accessKey={request.account.access_key} has no {PUB} at topic {topic}"
            raise Refused(ResponseCode.NO_PERMISSION, text)


class ProducerChecks:
    """Rounds of check-back over the network."""

    def __init__(self, context: ServerContext, resolver: Resolver | None, is_stopping: Callable[[], bool]) -> None:
        self._context, self._resolver, self._is_stopping = context, resolver, is_stopping
        self._failed: set[int] = set()  # half messages that cannot be checked, by CommitLog offset
        self._damaged: set[str] = set()  # what was wrong with those that the last round could not read
        self._slow: set[Peer] = set()  # who takes no more checks in this round

    def round(self) -> int:
        """Ask once about each half message that is due; returns for how many a check was sent. A stop ends it early.

        One of whose group nobody is connected waits: it is not counted. What was checked too often is parked.
        Raises StoreError.
        """
        context, asked = self._context, 0
        service, timeout_ms = self._service(), int(context.settings.transaction_timeout_s * 1000)
        parked, in_doubt, damaged = service.parked(), set[int](), list[CorruptStore]()
        self._slow.clear()
        now_ms = context.store.writer.clock.now_ms()
        for half in service.in_doubt(damaged=damaged):
            if self._is_stopping():
                return asked
            in_doubt.add(half.commitlog_offset)
            if half.commitlog_offset not in parked and is_due(half, timeout_ms, now_ms):
                asked += self._checked(half)
        for ended in [at for at in list(context.checks) if at not in in_doubt]:
            context.checks.pop(ended, None)
        self._failed &= in_doubt
        self._report(damaged)
        return asked

    def _service(self) -> TransactionalMessageService:
        return observing.ending(self._context.store.transactions)

    def _report(self, damaged: list[CorruptStore]) -> None:
        """Log what cannot be read, once."""
        texts, store = [str(error) for error in damaged], self._context.store.path
        for text in texts:
            if text not in self._damaged:
                log.error(
                    "a half message cannot be read, and stays in doubt: %s",
                    text,
                    extra=event("check-failed", store=store),
                )
        self._damaged = set(texts)

    def _checked(self, half: Half) -> bool:
        """Whether a check of one half message was sent. What is wrong with it is said once, and the others go on."""
        try:
            return self._turn(half)
        except (MessageRejected, TransactionError, CorruptStore) as error:
            if half.commitlog_offset not in self._failed:
                self._failed.add(half.commitlog_offset)
                text = "the half message at %d cannot be checked, and waits for its end: %s"
                log.warning(text, half.commitlog_offset, error, extra=event("check-failed", **fields_of_half(half)))
            return False

    def _turn(self, half: Half) -> bool:
        before = self._context.checks.get(half.commitlog_offset, 0)
        if self._resolved(half):
            return False
        if before < self._context.settings.check_max:
            return self._ask(half, before + 1)
        self._service().park(half, f"{before} producers of the group were asked, and none knew")
        return False

    def _resolved(self, half: Half) -> bool:
        """Whether a resolver knows, and the transaction is ended by its word."""
        if self._resolver is None:
            return False
        service = self._service()
        try:
            decision = self._resolver(half, service.message(half))
        except Exception:
            log.warning(
                "the resolver failed for the half message at %d",
                half.commitlog_offset,
                exc_info=True,
                extra=event("resolver-failed", **fields_of_half(half)),
            )
            return False
        if decision is LocalTransactionState.UNKNOW:
            return False
        try:
            (service.commit if decision is LocalTransactionState.COMMIT_MESSAGE else service.rollback)(half)
        except BrokerError as error:  # ended a moment ago
            log.info("%s", error, extra=event("end-contradicted", **fields_of_half(half)))
        return True

    def _ask(self, half: Half, times: int) -> bool:
        """Send CHECK_TRANSACTION_STATE to one producer of the group; False when none is connected, or it takes none."""
        channel = self._context.clients.random_producer(
            half.producer_group, lambda account: may(account, PUB, topic=half.topic)
        )
        record = None
        if channel is not None and channel.peer not in self._slow:
            record = self._context.store.record(half.commitlog_offset)
        if channel is None or record is None:
            return False
        asked = replace(
            record, topic=half.topic, queue_id=half.queue_id, properties=_as_asked(record.properties, times),
            sys_flag=record.sys_flag & ~TRANSACTION_MASK,
        )  # fmt: skip
        header = CheckTransactionStateRequestHeader(
            half.slot, half.commitlog_offset, half.unique_key, half.unique_key,
            encode_message_id(half.store_host, half.commitlog_offset), self._context.settings.broker_name, HALF_TOPIC,
        )  # fmt: skip
        command = RemotingCommand(RequestCode.CHECK_TRANSACTION_STATE, ext=header.encode(), body=encode(asked))
        checks, at = self._context.checks, half.commitlog_offset
        checks[at] = times  # first: the answer may come at once
        if not self._is_taken(channel.peer, command):
            checks[at] = times - 1  # a producer that did not get it cannot know
            return False
        return True

    def _is_taken(self, peer: Peer, command: RemotingCommand) -> bool:
        """Whether a producer took a check, at its own pace. One that takes none for a while is left alone until the
        next round: no check is counted, and other producers need not wait for it.
        """
        until_s = time.monotonic() + _PATIENCE_S
        while not (is_taken := peer.offer(command, _PATIENCE_S)) and not peer.is_closed and time.monotonic() < until_s:
            time.sleep(_PAUSE_S)
        if not is_taken:
            self._slow.add(peer)
        return is_taken


def _as_asked(properties: bytes, times: int) -> bytes:
    """A half message's properties as a check has them: what is added is left out where there is no room for it."""
    properties = record_crc_reserve(properties)[:-RECORD_CRC_SIZE]
    added = [f"{names.TRANSACTION_CHECK_TIMES}\x01{times}\x02"]
    if b"WAIT\x01" not in properties:
        added.append(f"{names.WAIT}\x01false\x02")
    for item in added:
        if len(properties) + len(item) <= names.SIZE_MAX:
            properties += item.encode()
    return properties
