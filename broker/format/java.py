"""What Java did for RocketMQ: String.hashCode, the order of a HashMap, addresses, message ids.

Ids are upper-case hexadecimal. An *offset message id* (`msgId` of a send response) is a place in the CommitLog of one
broker. A *unique key* (property UNIQ_KEY) is made by the client; nothing parses it for correctness.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address

from broker.errors import CorruptRecord

REMEMBERED = 256
"""Characters of a text that is remembered: clients choose it, and thousands of longer ones would take much memory."""
_PORT_AND_OFFSET = struct.Struct(">iq")
_UNIQUE_TAIL = struct.Struct(">HIIH")  # pid, loader hash, ms of the month, counter


def string_hash(text: str) -> int:
    """Java's `String.hashCode`: h = 31 * h + c over the UTF-16 code units, as a signed 32-bit int."""
    code = 0
    if text.isascii():
        for unit in text.encode():
            code = (31 * code + unit) & 0xFFFFFFFF
    else:
        wide = text.encode("utf-16-be", "surrogatepass")
        for (unit,) in struct.iter_unpack(">H", wide):
            code = (31 * code + unit) & 0xFFFFFFFF
    return code - 0x100000000 if code & 0x80000000 else code


_remembered_hash = lru_cache(maxsize=4096)(string_hash)


def short_hash(text: str) -> int:
    """The same of a text that comes again and again, such as a tag."""
    return _remembered_hash(text) if len(text) <= REMEMBERED else string_hash(text)


def properties_bucket_order(names: Iterable[str], capacity: int = 128) -> list[str]:
    """Names in the order in which a Java HashMap of that initial capacity, filled in the order given, lists them.

    RocketMQ writes properties in that order: a parsed map has capacity 128, one made from scratch 16. A HashMap
    doubles when it is more than three quarters full; within a bucket the order of insertion stays. (Eight and more
    names in one bucket would become a tree with an order of its own; no such properties are known.)
    """
    listed = list(names)
    size = 1
    while size < capacity:
        size *= 2
    while len(listed) > size * 3 // 4:
        size *= 2
    return sorted(listed, key=lambda name: _map_hash(name) & (size - 1))


@lru_cache(maxsize=4096)  # the same few names come with every message
def _map_hash(name: str) -> int:
    """What a HashMap chooses the bucket by: java.util.HashMap.hash."""
    code = string_hash(name)
    return code ^ ((code & 0xFFFFFFFF) >> 16)


@dataclass(frozen=True, slots=True)
class Host:
    """An address and a port, as records and message ids hold them: 4 or 16 bytes, then an i32."""

    address: bytes
    port: int

    @classmethod
    def parse(cls, text: str) -> Host:
        """`127.0.0.1:10911` or `[::1]:10911`. Raises ValueError for anything else."""
        name, colon, port = text.rpartition(":")
        if not colon or not port.isdecimal():
            raise ValueError(f"{text!r} is not HOST:PORT")
        return cls(ip_address(name.removeprefix("[").removesuffix("]")).packed, int(port))

    @property
    def is_ipv6(self) -> bool:
        return len(self.address) == 16

    def __str__(self) -> str:
        if len(self.address) == 4:
            return f"{IPv4Address(self.address)}:{self.port}"
        if len(self.address) == 16:
            return f"[{IPv6Address(self.address)}]:{self.port}"
        return f"{self.address.hex()}:{self.port}"


def split_address(text: str) -> tuple[str, int] | None:
    """(host, port) of HOST:PORT, the host as it stands there, empty for a port alone; None where the port is none."""
    host, _, digits = text.rpartition(":")
    is_number = digits.isascii() and digits.isdigit() and len(digits) <= len("65535")
    return (host, port) if is_number and (port := int(digits)) <= 65_535 else None


def encode_message_id(store_host: Host, commitlog_offset: int) -> str:
    """The offset message id: 32 hexadecimal digits, 56 when the broker's address is IPv6.

    RocketMQ: MessageDecoder.createMessageId (5.3.3).
    """
    _check_address(store_host.address)
    return (store_host.address + _PORT_AND_OFFSET.pack(store_host.port, commitlog_offset)).hex().upper()


def decode_message_id(text: str) -> tuple[Host, int]:
    """The broker's host and the CommitLog offset that an offset message id names.

    RocketMQ: MessageDecoder.decodeMessageId (5.3.3).
    """
    raw = _unhex(text, 12, "an offset message id")
    port, commitlog_offset = _PORT_AND_OFFSET.unpack(raw[-12:])
    return Host(raw[:-12], port), commitlog_offset


@dataclass(frozen=True, slots=True)
class UniqueKey:
    """The parts of a UNIQ_KEY; every number is unsigned, as the digits show it."""

    address: bytes
    pid: int  # the low 16 bits
    loader_hash: int  # identity hash of a Java class loader: any 32 bits that differ between processes
    ms_of_month: int  # since the start of the month, in the client's time zone; wraps at 2^32
    counter: int  # wraps at 2^16


def make_unique_key(address: bytes, pid: int, loader_hash: int, ms_of_month: int, counter: int) -> str:
    """A UNIQ_KEY; numbers too large for their place wrap, as in Java. RocketMQ: MessageClientIDSetter (5.3.3)."""
    _check_address(address)
    tail = _UNIQUE_TAIL.pack(pid & 0xFFFF, loader_hash & 0xFFFFFFFF, ms_of_month & 0xFFFFFFFF, counter & 0xFFFF)
    return (address + tail).hex().upper()


def parse_unique_key(text: str) -> UniqueKey:
    """The parts of a UNIQ_KEY that a Java client (or we) made. RocketMQ: MessageClientIDSetter.getIPFromID (5.3.3)."""
    raw = _unhex(text, _UNIQUE_TAIL.size, "a unique key")
    return UniqueKey(raw[: -_UNIQUE_TAIL.size], *_UNIQUE_TAIL.unpack(raw[-_UNIQUE_TAIL.size :]))


def _check_address(address: bytes) -> None:
    if len(address) not in (4, 16):
        raise ValueError(f"an address has 4 or 16 bytes, not {len(address)}")


def _unhex(text: str, tail: int, what: str) -> bytes:
    if len(text) not in (2 * (4 + tail), 2 * (16 + tail)) or not text.isascii() or not text.isalnum():
        raise CorruptRecord(f"{text[:64]!r} is not {what}: {8 + 2 * tail} or {32 + 2 * tail} hexadecimal digits")
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise CorruptRecord(f"{text!r} is not {what}: not all of it is hexadecimal") from None
