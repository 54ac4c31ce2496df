"""How a master sends its CommitLog to a slave: the bytes of RocketMQ's HA protocol. Pure.

    slave  ──► master    8 bytes: up to where it has the log; the first report is where it wants the log from
    master ──► slave     12 bytes (`TransferHeader`), then bytes of the log; none in a heartbeat

There is no handshake, no version, no identity and no end: a report is the only thing that a slave ever sends. A slave
that reports 0 gets the log from the last segment on. RocketMQ: HAService, HAConnection, HAClient (3.1.4, 4.9.7);
DefaultHAConnection, DefaultHAClient (5.3.3). A master in controller mode speaks another protocol
(RocketMQ: AutoSwitchHAConnection), whose bytes raise ProtocolError here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from broker.errors import ProtocolError
from broker.format.layout import Layout, i32, i64

HEARTBEAT_S = 5.0  # RocketMQ: haSendHeartbeatInterval
SILENCE_S = 20.0  # after which either side gives the other up. RocketMQ: haHousekeepingInterval
TRANSFER_BYTES = 32 << 10  # of log in one transfer. RocketMQ: haTransferBatchSize
TRANSFER_BYTES_MAX = (4 << 20) - 12  # what a slave can take. RocketMQ: HAClient.READ_MAX_BUFFER_SIZE
BEHIND_BYTES_MAX = 256 << 20  # a slave further behind does not count. RocketMQ: haMaxGapNotInSync
SLAVE_TIMEOUT_S = 3.0  # for a report that covers a record. RocketMQ: slaveTimeout


@dataclass(frozen=True)
class TransferHeader(Layout, size=12):
    """What stands before the bytes of a transfer."""

    commitlog_offset: i64  # of the first byte; in a heartbeat, of the first byte to come
    size: i32  # of what follows, in bytes; 0 in a heartbeat


@dataclass(frozen=True)
class OffsetReport(Layout, size=8):
    """What a slave sends."""

    commitlog_offset: i64  # up to here it has the log


class Transfer(NamedTuple):
    """Some bytes of the master's log, and where they belong; no bytes in a heartbeat."""

    commitlog_offset: int
    data: bytes


class TransferSplitter:
    """From the stream of a master to transfers. Nothing is allocated that has not arrived."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> list[Transfer]:
        """The transfers that are whole now. Raises ProtocolError for a header that no master sends."""
        held = self._held
        held += data
        transfers, at = [], 0
        while len(held) - at >= TransferHeader.SIZE:
            header = TransferHeader.unpack_from(held, at)
            if header.commitlog_offset < 0 or not 0 <= header.size <= TRANSFER_BYTES_MAX:
                text = f"a transfer of {header.size} bytes at CommitLog offset {header.commitlog_offset}"
                raise ProtocolError(f"{text} is not RocketMQ's HA protocol: is that the HA port (haListenPort), of a "
                                    "master that is not in controller mode?")  # fmt: skip
            end = at + TransferHeader.SIZE + header.size
            if end > len(held):
                break
            transfers.append(Transfer(header.commitlog_offset, bytes(held[at + TransferHeader.SIZE : end])))
            at = end
        if at:
            del held[:at]
        return transfers


def transfer_from(requested: int, end: int, segment_bytes: int) -> int:
    """Where a master begins to send: a slave without a log gets the last segment.

    RocketMQ: DefaultHAConnection.WriteSocketService.run (5.3.3).
    """
    return end - end % segment_bytes if requested == 0 else requested
