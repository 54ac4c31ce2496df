"""How to reach a cluster: name servers, account, TLS, limits; checked before anything connects."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from broker.errors import BrokerError, shown
from broker.remoting.signing import SessionCredentials

SCHEME = "rocketmq://"
NAME_SERVER_PORT = 9876
_PLACE = re.compile(r"(?:\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(?::(\d{1,5}))?")


@dataclass(frozen=True)
class ClientSettings:
    """What all connections of a client share. The defaults are those of the Java client (5.3.3)."""

    name_servers: tuple[str, ...]  # HOST:PORT
    credentials: SessionCredentials | None = None
    tls: ssl.SSLContext | None = field(default=None, repr=False)
    cluster: str | None = None  # which one, where the name server has several
    send_timeout_s: float = 3.0
    send_retries: int = 2
    call_timeout_s: float = 3.0
    heartbeat_s: float = 30.0
    route_s: float = 30.0

    @property
    def url(self) -> str:
        return SCHEME + ";".join(self.name_servers)


def parse_url(url: object) -> tuple[str, ...]:
    """The name servers, HOST:PORT, of `rocketmq://HOST:PORT;HOST:PORT`. Raises BrokerError."""
    wanted = f"a cluster is named by its name servers, {SCHEME}HOST:{NAME_SERVER_PORT};HOST:{NAME_SERVER_PORT}"
    if not isinstance(url, str) or not url.startswith(SCHEME):
        raise BrokerError(f"{wanted}, not {url!r:.80}")
    places = [one.strip() for one in re.split("[;,]", url.removeprefix(SCHEME).rstrip("/")) if one.strip()]
    found = []
    for place in places:
        fits = _PLACE.fullmatch(place)
        if fits is None or (fits[1] and not 0 < int(fits[1]) < 65_536):
            raise BrokerError(f"{wanted}: {place!r:.80} is not HOST:PORT")
        found.append(place if fits[1] else f"{place}:{NAME_SERVER_PORT}")
    if not found:
        raise BrokerError(wanted)
    return tuple(found)


def credentials_of(acl: Any) -> SessionCredentials | None:
    """An account: None, ("access key", "secret key"[, "security token"]), or a mapping. Raises BrokerError."""
    if acl is None or isinstance(acl, SessionCredentials):
        return acl
    if isinstance(acl, Mapping):
        acl = [acl.get("access_key"), acl.get("secret_key"), acl.get("security_token")]
    is_pair = isinstance(acl, Sequence) and not isinstance(acl, str) and 2 <= len(acl) <= 3
    is_text = is_pair and all(isinstance(one, str) and one for one in acl[:2])
    if not is_text or not all(isinstance(one, str | None) for one in acl[2:]):
        raise BrokerError('acl is an account, acl=("access key", "secret key"), or with a security token')
    return SessionCredentials(*acl)


def tls_of(tls: bool | str | ssl.SSLContext | None) -> ssl.SSLContext | None:
    """TLS: True (the system's authorities), the path of a file with the authority's certificate, or a context.

    The certificate must be valid and name the host, for each broker too. Java clients check nothing unless
    `tls.client.authServer` says so: for a broker with RocketMQ's own test certificate give a context that does not.
    Raises BrokerError.
    """
    if tls is None or tls is False:
        return None
    if isinstance(tls, ssl.SSLContext):
        return tls
    path: object = tls
    if path is not True and not (isinstance(path, str | os.PathLike) and os.fspath(path)):
        text = "tls is True, the path of a file with the authority's certificate, or an ssl.SSLContext"
        raise BrokerError(f"{text}, not {shown(tls)}")
    try:
        return ssl.create_default_context(cafile=None if tls is True else tls)
    except (OSError, ssl.SSLError, TypeError) as error:
        raise BrokerError(f"tls={tls!r:.80} is not a file with certificates: {error}") from None
