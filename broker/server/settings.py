"""What a server is started with, checked before it listens: safe by default, one sentence for what is not."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypedDict

from broker.errors import BrokerError, shown
from broker.format.java import Host, split_address
from broker.format.topics import DELAY_LEVELS, DELAYS_MS, parse_delay_levels
from broker.server.acl import AccessControl
from broker.server.event_loop import LOOPS
from broker.server.tls import server_context
from broker.store.write.admission import LOCAL_TIMER_MAX_MS

PORT = 10911
_NAME_SIZE_MAX = 127
_TEXTS = ("listen", "advertise", "broker_name", "cluster", "delay_levels", "loop", "ha")
_FILES = ("acl", "certificate", "private_key")
_SWITCHES = ("insecure", "tls_only", "admin", "sql92", "ha_sync")
_COUNTS, _SECONDS = ("check_max", "connections_max"), ("check_interval_s", "transaction_timeout_s", "idle_s")


class ServeOptions(TypedDict, total=False):
    """The options of `broker.serve` by name; their defaults are those of ServerSettings."""

    advertise: str
    """HOST:PORT that clients reach, with an IPv4 address; by default what it listens on."""
    broker_name: str
    """By default broker-a: up to 127 characters without blanks."""
    cluster: str
    """By default DefaultCluster: up to 127 characters without blanks."""
    acl: str | os.PathLike[str] | None
    """Path of a file in the format of RocketMQ's plain_acl.yml. None: everyone who may connect may do everything."""
    insecure: bool
    """Whether it may listen beyond this machine without an ACL. By default not."""
    certificate: str | os.PathLike[str] | None
    """Path of a PEM file: with it and `private_key`, TLS is spoken on the same port. None: it is not."""
    private_key: str | os.PathLike[str] | None
    """Path of the PEM file with the certificate's key."""
    tls_only: bool
    """Whether connections without TLS are refused. By default not."""
    admin: bool
    """Whether it answers what changes the broker or reaches into clients. By default not."""
    auto_create: bool | None
    """Whether a first message makes its topic. None: only where it listens on this machine."""
    sql92: bool
    """Whether clients may subscribe by SQL expressions, as by default. RocketMQ: enablePropertyFilter."""
    delay_levels: str
    """18 delays with s, m, h or d, by default RocketMQ's: 1s 5s 10s 30s 1m … 2h. RocketMQ: messageDelayLevel."""
    check_interval_s: float
    """Seconds between two rounds of check-back; by default 30. RocketMQ: transactionCheckInterval."""
    transaction_timeout_s: float
    """Seconds after which a half message is first checked; by default 6. RocketMQ: transactionTimeOut."""
    check_max: int
    """How often a half message is checked before it is parked; by default 15. RocketMQ: transactionCheckMax."""
    connections_max: int
    """How many connections it has at once; by default 1,000."""
    idle_s: float
    """Seconds without a request after which a connection is closed; by default 120."""
    loop: str
    """Its event loop: asyncio, uvloop, or auto, as by default: uvloop where it is installed."""
    metrics_port: int | None
    """Port of /metrics (Prometheus) and /healthz on 127.0.0.1; 0: one that is free. None: they are not served."""
    ha: str
    """HOST:PORT where RocketMQ slaves copy the log. Empty: nowhere. RocketMQ: haListenPort."""
    ha_sync: bool
    """Whether a send waits for a slave. By default not. RocketMQ: brokerRole=SYNC_MASTER."""
    name_servers: Sequence[str]
    """HOST:PORT of other name servers, where this broker registers itself. By default none."""


@dataclass(frozen=True)
class ServerSettings:
    """Arguments of `broker.serve`. Raises BrokerError for what cannot be, or would not be safe."""

    listen: str = f"127.0.0.1:{PORT}"
    advertise: str = ""  # HOST:PORT that clients reach; else what it listens on
    broker_name: str = "broker-a"
    cluster: str = "DefaultCluster"
    acl: str | os.PathLike[str] | None = None  # a file in the format of RocketMQ's plain_acl.yml
    insecure: bool = False  # listens beyond this machine without an ACL
    certificate: str | os.PathLike[str] | None = None  # PEM files: then TLS is spoken on the same port
    private_key: str | os.PathLike[str] | None = None
    tls_only: bool = False
    admin: bool = False  # answers what changes the broker or reaches into clients
    auto_create: bool | None = None  # topics by their first message; else only where it listens on this machine
    sql92: bool = True  # subscriptions by SQL expression. RocketMQ: enablePropertyFilter
    delay_levels: str = DELAY_LEVELS
    check_interval_s: float = 30.0  # RocketMQ: transactionCheckInterval
    transaction_timeout_s: float = 6.0  # RocketMQ: transactionTimeOut
    check_max: int = 15  # RocketMQ: transactionCheckMax
    connections_max: int = 1000
    idle_s: float = 120.0
    loop: str = "auto"
    metrics_port: int | None = None  # on 127.0.0.1: /metrics for Prometheus, and /healthz
    ha: str = ""  # HOST:PORT where RocketMQ slaves copy the log. RocketMQ: haListenPort
    ha_sync: bool = False  # a send waits for a slave. RocketMQ: brokerRole=SYNC_MASTER
    name_servers: Sequence[str] = ()  # HOST:PORT of others, where this broker registers itself
    delays_ms: Sequence[int] = field(init=False)

    def __post_init__(self) -> None:
        self._check_types()
        host, _ = host_and_port("listen", self.listen)
        if not (self.is_local or self.acl or self.insecure):
            text = f"listening on {host} lets everyone in that network read and write the store"
            raise BrokerError(f"{text}: give an ACL file (--acl FILE), or accept that with --insecure")
        if host == "0.0.0.0" and not self.advertise:  # noqa: S104 - refused here
            raise BrokerError(
                f"{self.listen} is not an address that clients can reach: say which one is, --advertise HOST:PORT"
            )
        if self.advertise:
            _check_reachable(self.advertise)
        if (self.certificate is None) != (self.private_key is None):
            raise BrokerError("TLS needs both: a certificate (--cert) and its private key (--key)")
        if self.tls_only and self.certificate is None:
            raise BrokerError("--tls-only needs a certificate (--cert) and its private key (--key)")
        for what, name in (("broker_name", self.broker_name), ("cluster", self.cluster)):
            if not name or len(name) > _NAME_SIZE_MAX or not name.isprintable() or set(name) & set(' "\\@:;'):
                raise BrokerError(
                    f"{what} is a name of at most {_NAME_SIZE_MAX} characters without blanks, not {name!r:.60}"
                )
        if self.loop not in LOOPS:
            raise BrokerError(f"loop is one of {', '.join(LOOPS)}, not {self.loop!r:.60}")
        self._check_replication()
        self._check_numbers()
        self._check_files()
        object.__setattr__(self, "delays_ms", tuple(_delays_ms(self.delay_levels)))

    def _check_types(self) -> None:
        """First of all: a number would be taken for an open file, and a text such as "no" for True."""
        for what in _TEXTS:
            if not isinstance(value := getattr(self, what), str):
                raise BrokerError(f"{what} is text, not {shown(value)}")
        for what in _FILES:
            value = getattr(self, what)
            if value is not None and not isinstance(value, str | os.PathLike):
                raise BrokerError(f"{what} is the path of a file, or None, not {shown(value)}")
        for what in _SWITCHES:
            if not isinstance(value := getattr(self, what), bool):
                raise BrokerError(f"{what} is True or False, not {shown(value)}")
        if not isinstance(self.auto_create, bool | None):
            raise BrokerError(f"auto_create is True, False or None, not {shown(self.auto_create)}")
        names: object = self.name_servers
        if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
            raise BrokerError(f"name_servers is a list of HOST:PORT, such as ['192.0.2.5:9876'], not {shown(names)}")

    def _check_replication(self) -> None:
        for address in self.name_servers:
            name, port = split_address(address) or ("", 0)
            if not (name and port):
                raise BrokerError(f"a name server is HOST:PORT, such as 192.0.2.5:9876, not {address!r:.60}")
        if self.ha_sync and not self.ha:
            raise BrokerError("sends can wait for a slave (--ha-sync) only where slaves may connect: give --ha PORT")
        host = host_and_port("ha", self.ha)[0] if self.ha else ""
        if host and not (ipaddress.ip_address(host).is_loopback or self.insecure):
            text = f"the HA protocol has neither accounts nor TLS: who reaches {host} could copy the whole store"
            raise BrokerError(f"{text}. Listen on 127.0.0.1 behind a tunnel, or accept that with --insecure")

    def _check_files(self) -> None:
        """The server reads them again: here they are looked at before a store is made for it."""
        for what, path in (("acl", self.acl), ("cert", self.certificate), ("key", self.private_key)):
            if path is not None and not os.path.isfile(path):
                raise BrokerError(f"--{what} {path}: there is no such file")
        if self.acl is not None:
            AccessControl.read(self.acl)
        if self.certificate is not None and self.private_key is not None:
            server_context(self.certificate, self.private_key)

    def _check_numbers(self) -> None:
        for what in _COUNTS:
            count = getattr(self, what)
            if type(count) is not int or not 0 < count < 1 << 31:
                raise BrokerError(f"{what} is a whole number from 1 on, not {shown(count)}")
        for what in _SECONDS:
            seconds = getattr(self, what)
            if type(seconds) not in (int, float) or not 0 < seconds < 1 << 31:
                raise BrokerError(f"{what} is a number above 0, not {shown(seconds)}")
        port: object = self.metrics_port
        if port is not None and (type(port) is not int or not 0 <= port <= 65_535):
            raise BrokerError(f"metrics_port is a port, or None, not {shown(port)}")

    @property
    def is_local(self) -> bool:
        """Whether only this machine can connect."""
        return ipaddress.ip_address(host_and_port("listen", self.listen)[0]).is_loopback

    @property
    def creates_topics(self) -> bool:
        return self.is_local if self.auto_create is None else self.auto_create


def host_and_port(what: str, value: str) -> tuple[str, int]:
    """An IPv4 address and a port. Raises BrokerError for anything else.

    Records and offset message ids hold IPv4 addresses; a name could mean another machine tomorrow.
    """
    name, port = split_address(value) or ("", 0)
    try:
        ipaddress.IPv4Address(name)
    except ValueError:
        text = f"{what} is an IPv4 address and a port, such as 127.0.0.1:{PORT}, not {value!r:.60}"
        raise BrokerError(text) from None
    return name, port


def _check_reachable(advertise: str) -> None:
    host, port = host_and_port("advertise", advertise)
    address = ipaddress.ip_address(host)
    if not port or address.is_unspecified or address.is_multicast:
        raise BrokerError(f"advertise is the address and port that clients connect to, not {advertise}")


def store_host(address: str) -> Host:
    """The address as records hold it."""
    name, port = host_and_port("advertise", address)
    return Host(ipaddress.IPv4Address(name).packed, port)


def _delays_ms(levels: str) -> list[int]:
    try:
        found = parse_delay_levels(levels)
    except (ValueError, AttributeError):
        found = []
    if len(found) != len(DELAYS_MS) or max(found) > LOCAL_TIMER_MAX_MS:
        text = f"delay_levels is {len(DELAYS_MS)} delays of up to 366 days, such as {DELAY_LEVELS!r}"
        raise BrokerError(f"{text}: numbers with s, m, h or d, not {levels!r:.80}")
    return found
