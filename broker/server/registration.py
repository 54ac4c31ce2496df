"""A server as a broker of other name servers: it registers there, and again every 30 seconds, and leaves when it stops.

    checkback serve shop.store --advertise 192.0.2.7:10911 --register 192.0.2.5:9876

RocketMQ: BrokerController.doRegisterBrokerAll, BrokerOuterAPI.registerBroker (5.3.3). A name server forgets a broker
that it has not heard of for two minutes.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from contextlib import closing
from dataclasses import replace
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

from broker.errors import BrokerError
from broker.format.config import TopicConfig
from broker.format.config import as_json as config_json
from broker.log_fields import event
from broker.remoting.admin_headers import RegisterBrokerRequestHeader, UnregisterBrokerRequestHeader
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand, decode
from broker.remoting.fastjson import dumps
from broker.remoting.frames import FrameSplitter
from broker.remoting.routes import decode_clusters
from broker.server.requests.admin import topics_json

if TYPE_CHECKING:
    from broker.server.context import ServerContext

_EVERY_S, _TOPICS_EVERY_S = 30.0, 1.0  # RocketMQ: registerNameServerPeriod; a new topic registers sooner
_TIMEOUT_S, _FORGOTTEN_S, _LOOK_S = 3.0, 3.0, 0.2
_SELF_TEST_TOPIC = "SELF_TEST_TOPIC"  # which every broker of RocketMQ has
_VERSION = 479  # 5.3.3's, by which a name server knows what the body holds

log = logging.getLogger("broker.server")


class Registration:
    """Keeps a server registered with some name servers, in a thread of its own."""

    def __init__(self, context: ServerContext, ha_address: str) -> None:
        self._context, self._ha_address = context, ha_address
        self._links: dict[str, _Link] = {}
        self._failing: set[str] = set()
        self._topics: dict[str, Any] = {}  # at the last look at which they could be read
        self._are_readable = True
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="checkback-serve-register", daemon=True)

    def start(self) -> None:
        """Register with all. Raises BrokerError when none can be reached: a typing error shows at once; when one has
        another master of this name, whose clients it would send here; and when one is elsewhere, and its clients would
        be sent to their own machines."""
        self._check_address()
        self._check_name()
        self._topics = topics_json(self._context)
        if not self._register_all():
            names = ", ".join(self._context.settings.name_servers)
            raise BrokerError(f"none of the name servers takes it: {names}. Start them first, or leave out --register")
        self._thread.start()

    def close(self) -> None:
        """Leave them all."""
        self._is_over.set()
        if self._thread.is_alive():
            self._thread.join()
        settings = self._context.settings
        header = UnregisterBrokerRequestHeader(settings.broker_name, self._context.address, settings.cluster, 0)
        for address in settings.name_servers:
            self._tell(address, RemotingCommand(RequestCode.UNREGISTER_BROKER, ext=header.encode()))
        for link in self._links.values():
            link.close()

    def _check_address(self) -> None:
        """A loopback address is of use to clients of this machine only: unless it is stated it is a mistake."""
        settings, own = self._context.settings, self._context.address
        if settings.advertise or not ip_address(own.rpartition(":")[0]).is_loopback:
            return
        for address in settings.name_servers:
            with contextlib.suppress(OSError), closing(_Link(address)) as link:
                if is_elsewhere(link.own_host, link.peer_host):
                    text = f"the name server {address} would send its clients to {own}, each to its own machine"
                    raise BrokerError(f"{text}. Say where they reach this one: --listen HOST:PORT, or --advertise")

    def _check_name(self) -> None:
        """A name server puts the new address in place of the old one. It forgets a master that was killed in a moment,
        when the connection closes: so it is asked again for some seconds."""
        name, ends_s = self._context.settings.broker_name, time.monotonic() + _FORGOTTEN_S
        while (found := self._other_master(name)) is not None and time.monotonic() < ends_s:
            time.sleep(_LOOK_S)
        if found is not None:
            text = f"the name server {found[0]} has a broker {name} already, at {found[1]}"
            if self._context.siblings.has(found[1]):
                raise BrokerError(f"{text}: another server of this store. One registers: leave out --register")
            step = "Give this one a name of its own: --broker-name NAME"
            raise BrokerError(f"{text}, and its clients would come here. {step}")

    def _other_master(self, name: str) -> tuple[str, str] | None:
        """The name server that has another master of a name, and its address."""
        for address in self._context.settings.name_servers:
            try:
                with closing(_Link(address)) as link:
                    answer = link.ask(RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO))
                known = decode_clusters(answer.body) if answer.code == ResponseCode.SUCCESS else {}
            except (OSError, BrokerError):  # which the registration says
                continue
            for one in (broker for brokers in known.values() for broker in brokers):
                if one.name == name and one.master not in (None, self._context.address):
                    return address, str(one.master)
        return None

    def _keep(self) -> None:
        registered_s = time.monotonic()
        while not self._is_over.wait(_TOPICS_EVERY_S):
            now_s, before = time.monotonic(), self._topics
            self._read_topics()
            if now_s - registered_s >= _EVERY_S or self._topics != before:
                self._register_all()
                registered_s = now_s

    def _read_topics(self) -> None:
        """Where they cannot be read those known before stay: a name server that hears nothing forgets the broker."""
        try:
            self._topics, self._are_readable = topics_json(self._context), True
        except BrokerError as error:
            if self._are_readable:
                text = "the topics cannot be read for the name servers, which keep those known before: %s"
                log.warning(text, error, extra=event("topics-unreadable"))
            self._are_readable = False

    def _register_all(self) -> int:
        """Register with each; how many took it."""
        settings = self._context.settings
        header = RegisterBrokerRequestHeader(
            settings.broker_name, self._context.address, settings.cluster, self._ha_address, 0
        )
        table = self._topics["topicConfigTable"]
        if len(table) == 1:  # Quirk (5.x): a name server refuses a new broker that has one topic
            table = {**table, _SELF_TEST_TOPIC: config_json(TopicConfig(_SELF_TEST_TOPIC, 1, 1))}
        topics = {**self._topics, "topicConfigTable": table}
        body = dumps({"topicConfigSerializeWrapper": topics, "filterServerList": []})
        command = RemotingCommand(RequestCode.REGISTER_BROKER, ext=header.encode(), body=body)
        return sum(self._tell(address, command) for address in settings.name_servers)

    def _tell(self, address: str, command: RemotingCommand) -> bool:
        """Whether a name server answered with SUCCESS; only a change of that is logged."""
        try:
            answer = self._asked(address, command)
            text = "" if answer.code == ResponseCode.SUCCESS else f"it answered {answer.code}: {answer.remark}"
        except (OSError, BrokerError) as error:
            text = str(error) or type(error).__name__
        if text and address not in self._failing:
            log.warning("name server %s: %s", address, text, extra=event("name-server", peer=address))
        (self._failing.add if text else self._failing.discard)(address)
        return not text

    def _asked(self, address: str, command: RemotingCommand) -> RemotingCommand:
        """The answer, by the connection that is open; by another one where that has ended, as that of a name server
        that was started again, which knows no broker then."""
        before = self._links.pop(address, None)
        if before is not None:
            with contextlib.suppress(ConnectionError):
                return self._asked_by(before, address, command)
        return self._asked_by(_Link(address), address, command)

    def _asked_by(self, link: _Link, address: str, command: RemotingCommand) -> RemotingCommand:
        """The answer by a connection, which stays open after it."""
        try:
            answer = link.ask(command)
        except BaseException:
            link.close()
            raise
        self._links[address] = link
        return answer


def is_elsewhere(own_host: str, peer_host: str) -> bool:
    """Whether a connection between two addresses leaves this machine."""
    return own_host != peer_host and not ip_address(peer_host).is_loopback


class _Link:
    """A connection that stays: a name server forgets a broker when its connection closes.

    RocketMQ: RouteInfoManager.onChannelDestroy (5.3.3).
    """

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=_TIMEOUT_S)
        self._splitter, self._opaque = FrameSplitter(), 0
        self.own_host: str = self._socket.getsockname()[0]
        self.peer_host: str = self._socket.getpeername()[0]

    def ask(self, command: RemotingCommand) -> RemotingCommand:
        """The answer to a request. Raises OSError, ProtocolError."""
        self._opaque += 1
        self._socket.sendall(replace(command, opaque=self._opaque, version=_VERSION).encode())
        deadline = time.monotonic() + _TIMEOUT_S
        while time.monotonic() < deadline and (data := self._socket.recv(1 << 16)):
            for answer in map(decode, self._splitter.feed(data)):
                if answer.is_response and answer.opaque == self._opaque:
                    return answer
        raise ConnectionError("there was no answer")

    def close(self) -> None:
        self._socket.close()
