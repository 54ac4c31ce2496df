"""ACL 1.0: what a request is signed with. Pure.

A request carries AccessKey and Signature: HMAC-SHA1 over the values of its extension fields, sorted by name, and its
body. It covers neither code nor time. RocketMQ: AclUtils, AclClientRPCHook (4.9.8).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field

ACCESS_KEY, SECURITY_TOKEN, SIGNATURE = "AccessKey", "SecurityToken", "Signature"


def signature(secret_key: str, ext: Mapping[str, str], body: bytes) -> str:
    """What a request is signed with: base64. RocketMQ: AclUtils.combineRequestContent (4.9.8)."""
    content = "".join(ext[name] for name in sorted(ext) if name != SIGNATURE).encode() + body
    return base64.b64encode(hmac.new(secret_key.encode(), content, hashlib.sha1).digest()).decode()


@dataclass(frozen=True)
class SessionCredentials:
    """An account of a client. RocketMQ: SessionCredentials (4.9.8)."""

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str | None = field(default=None, repr=False)

    def signed(self, ext: Mapping[str, str], body: bytes) -> dict[str, str]:
        """The extension fields of a request with its signature among them."""
        found = {**ext, ACCESS_KEY: self.access_key}
        if self.security_token:
            found[SECURITY_TOKEN] = self.security_token
        return {**found, SIGNATURE: signature(self.secret_key, found, body)}
