"""Half messages of a cluster: their ends, and the answers to what its brokers check.

    half ──► END_TRANSACTION of the client ──► delivered, or discarded
     └─────► CHECK_TRANSACTION_STATE ──► decided here? ──► the ledger's row ──► the resolver ──► END_TRANSACTION

RocketMQ: DefaultMQProducerImpl.endTransaction, checkTransactionState, ClientRemotingProcessor (5.3.3).
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass

from broker import observing
from broker.cluster.network.channels import checked
from broker.cluster.network.client import ClusterClient
from broker.cluster.network.connection import ClientConnection
from broker.errors import BrokerError, CorruptRecord, ProtocolError, TransactionError
from broker.format import properties as names
from broker.format.commitlog import decode
from broker.format.sysflag import TransactionType
from broker.log_fields import event, fields_of_half
from broker.message import ReceivedMessage
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand
from broker.remoting.message_headers import CheckTransactionStateRequestHeader, EndTransactionRequestHeader
from broker.transaction.events import TransactionState
from broker.transaction.service import Ended, Half, HalfMessageService, LocalTransactionState

_REMEMBERED = 10_000
_KINDS = {
    LocalTransactionState.COMMIT_MESSAGE: int(TransactionType.COMMIT),
    LocalTransactionState.ROLLBACK_MESSAGE: int(TransactionType.ROLLBACK),
    LocalTransactionState.UNKNOW: int(TransactionType.NONE),
}
DECISIONS = {
    TransactionState.COMMITTED: LocalTransactionState.COMMIT_MESSAGE,
    TransactionState.ROLLED_BACK: LocalTransactionState.ROLLBACK_MESSAGE,
}
"""What a producer says for each state that a transaction ends in."""
_log = logging.getLogger("broker")

ReadMessage = Callable[[], ReceivedMessage]
Check = Callable[[Half, ReadMessage], LocalTransactionState | Future[LocalTransactionState]]
"""Says how a local transaction ended: called in a thread, may take its time, or answer later."""


@dataclass(frozen=True)
class ClusterHalf(Half):
    """A half message at one broker of a cluster."""

    broker_name: str = ""


class ClusterTransactions(HalfMessageService):
    """Ends half messages at their brokers, and answers for those that the brokers check."""

    def __init__(self, client: ClusterClient) -> None:
        self._client = client
        self._checks: dict[str, Check] = {}  # by producer group
        self._decided: OrderedDict[str, LocalTransactionState] = OrderedDict()  # by unique key
        client.answers(RequestCode.CHECK_TRANSACTION_STATE, self._checked)

    # Ends

    def wait_durable(self, half: Half) -> None:
        """Nothing to wait for: a send returns when its broker keeps its promise."""

    def commit(self, half: Half, *, extra_properties: Mapping[str, str] | None = None) -> Ended:  # noqa: ARG002
        return self._end(half, TransactionState.COMMITTED)

    def rollback(self, half: Half, *, extra_properties: Mapping[str, str] | None = None) -> Ended:  # noqa: ARG002
        return self._end(half, TransactionState.ROLLED_BACK)

    def park(self, half: Half, why: str) -> bool:
        """A client cannot park: it says "unknown" to every check, and the broker parks at its limit."""
        self._remember(half, LocalTransactionState.UNKNOW)
        _log.error(
            "%s is left to its broker, which parks it at its limit of checks: %s",
            half.message_id,
            why,
            extra=event("parked", **fields_of_half(half)),
        )
        return False

    def _end(self, half: Half, state: TransactionState) -> Ended:
        decision = DECISIONS[state]
        self._remember(half, decision)  # first: if the end is lost, a check gets the same answer
        if not isinstance(half, ClusterHalf):
            raise TransactionError(f"{half.message_id} is not a half message of a cluster", message_id=half.message_id)
        self._client.loop.run(self.end(half, decision))
        return Ended(state, None, None)

    async def end(self, half: ClusterHalf, decision: LocalTransactionState) -> None:
        """END_TRANSACTION to the broker that has the half message. Raises BrokerError."""
        header = end_of(half, decision, half.broker_name)
        address = self._client.routes.master(half.broker_name)
        answer = await self._client.channels.request(address, RequestCode.END_TRANSACTION, header)
        checked(answer, RequestCode.END_TRANSACTION, address)

    def _remember(self, half: Half, decision: LocalTransactionState) -> None:
        if half.unique_key is not None:
            self._decided[half.unique_key] = decision
            if len(self._decided) > _REMEMBERED:
                self._decided.popitem(last=False)

    # Checks

    def answer_for(self, producer_group: str, check: Check | None) -> Check | None:
        """Name what answers for a producer group, None for nothing; what answered before."""
        before = self._checks.pop(producer_group, None)
        if check is not None:
            self._checks[producer_group] = check
        return before

    async def _checked(self, connection: ClientConnection, command: RemotingCommand) -> None:
        """CHECK_TRANSACTION_STATE: answered on the connection that it came by, as Java does."""
        header = CheckTransactionStateRequestHeader.decode(command.ext)
        try:
            half, read = half_of_check(header, command.body)
        except CorruptRecord as error:
            raise ProtocolError(f"the message of a check is damaged: {error}") from None
        decision = self._decided.get(half.unique_key or "")
        check = self._checks.get(half.producer_group)
        if decision is None and check is None:  # as Java: another member of the group may answer
            return
        if decision is None and check is not None:
            try:
                found = await self._client.loop.apart(check, half, read)
                decision = await asyncio.wrap_future(found) if isinstance(found, Future) else found
            except BrokerError as error:
                _log.warning(
                    "%s: nobody could say how it ended: %s",
                    half.message_id,
                    error,
                    extra=event("check-unanswered", **fields_of_half(half)),
                )
            except asyncio.CancelledError:
                raise
            except BaseException as error:  # noqa: BLE001 - an exit of its own would end this client's event loop
                _log.warning(
                    "%s: the resolver failed with %s: %s",
                    half.message_id,
                    type(error).__name__,
                    error,
                    extra=event("resolver-failed", **fields_of_half(half)),
                )
        decision = decision or LocalTransactionState.UNKNOW
        with observing.answering(half, decision):
            header_back = end_of(half, decision, header.bname, from_check=True)
            self._client.channels.oneway_on(connection, RequestCode.END_TRANSACTION, header_back)
        if not command.is_oneway:
            connection.send(command.answer(ResponseCode.SUCCESS))


def end_of(
    half: Half, decision: LocalTransactionState, broker_name: str | None, *, from_check: bool = False
) -> EndTransactionRequestHeader:
    """The fields of END_TRANSACTION. Pure."""
    return EndTransactionRequestHeader(
        half.producer_group, half.slot, half.commitlog_offset, _KINDS[decision], from_check, half.unique_key,
        half.unique_key, half.topic, broker_name or None,
    )  # fmt: skip


def half_of_check(header: CheckTransactionStateRequestHeader, body: bytes) -> tuple[ClusterHalf, ReadMessage]:
    """The half message that a broker checks, and what reads it: its place is in the fields.

    Raises CorruptRecord. A broker of 4.3 and later appended the half message again; the fields name the newest copy.
    """
    record = decode(body)
    properties = record.property_map
    half = ClusterHalf(
        header.commit_log_offset, header.tran_state_table_offset, properties.get(names.PGROUP, ""), record.topic,
        record.queue_id, properties.get(names.UNIQ_KEY) or header.transaction_id or header.msg_id,
        tuple(names.keys(properties)), record.born_timestamp_ms, record.store_timestamp_ms, record.total_size,
        properties, record.store_host, broker_name=header.bname or "",
    )  # fmt: skip
    return half, lambda: ReceivedMessage.of(record)
