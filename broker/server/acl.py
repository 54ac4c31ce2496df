"""Who may do what: RocketMQ's ACL 1.0, in the format of its plain_acl.yml.

    globalWhiteRemoteAddresses: [192.0.2.*]
    accounts:
      - accessKey: orders
        secretKey: at-least-12-characters
        admin: false
        defaultTopicPerm: DENY
        defaultGroupPerm: SUB
        topicPerms: [orders=PUB|SUB]
        groupPerms: [billing=SUB]

A request carries AccessKey and Signature: HMAC-SHA1 over the values of its extension fields, sorted by name, and its
body. It covers neither code nor time, so a captured request can be sent again: use TLS. From the addresses of
globalWhiteRemoteAddresses no account is needed. An account with a whiteRemoteAddress is for these addresses only, and
still signs; RocketMQ lets them pass without a signature. RocketMQ: PlainAccessValidator, AclUtils.calSignature (4.9.8).
"""

from __future__ import annotations

import fnmatch
import hmac
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from broker.errors import BrokerError
from broker.remoting.signing import ACCESS_KEY, SIGNATURE, signature

PUB, SUB = "PUB", "SUB"
_RIGHTS = {"DENY": frozenset[str](), "ANY": frozenset((PUB, SUB)), PUB: frozenset((PUB,)), SUB: frozenset((SUB,))}
_KEYS = {
    "accessKey", "secretKey", "whiteRemoteAddress", "admin", "defaultTopicPerm", "defaultGroupPerm", "topicPerms",
    "groupPerms",
}  # fmt: skip
_LISTS = {"topicPerms", "groupPerms", "whiteRemoteAddress"}
_SECRET_SIZE_MIN = 6
_ADDRESS = re.compile(r"(?:\d{1,3}\.){3}\d{1,3}|[\d.]*\*[\d.*]*")


class Denied(BrokerError):
    """The request lacks a right, or its signature is wrong. The sentence names no secret."""


@dataclass(frozen=True)
class Account:
    """One access key and what it may do."""

    access_key: str
    secret_key: str = field(repr=False)
    is_admin: bool = False
    addresses: tuple[str, ...] = ()  # from where: empty for everywhere
    default_topic: frozenset[str] = frozenset()
    default_group: frozenset[str] = frozenset()
    topics: Mapping[str, frozenset[str]] = field(default_factory=dict)
    groups: Mapping[str, frozenset[str]] = field(default_factory=dict)


class AccessControl:
    """The accounts of one file."""

    def __init__(self, accounts: Mapping[str, Account], addresses: tuple[str, ...] = ()) -> None:
        self._accounts, self._addresses = accounts, addresses

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> AccessControl:
        """Raises BrokerError, with the line, for what is not such a file."""
        try:
            with open(path, encoding="utf-8-sig") as file:
                return cls.parse(file.read(), os.fspath(path))
        except (OSError, UnicodeDecodeError) as error:
            raise BrokerError(f"{path} cannot be read: {error}") from None

    @classmethod
    def parse(cls, text: str, path: str = "the ACL") -> AccessControl:
        """The part of YAML that RocketMQ's file uses: a list of accounts, with lists in either form."""
        addresses: list[str] = []
        accounts: list[dict[str, list[str]]] = []
        for key, value, is_account, is_first, line in _items(text, path):
            if not is_account:
                if key == "globalWhiteRemoteAddresses":
                    addresses += _addresses(value, f"{path}, line {line}")
                elif key != "accounts":
                    raise BrokerError(f"{path}, line {line}: {key!r:.40} is not known here")
                continue
            if is_first:
                accounts.append({})
            if key not in _KEYS or not accounts:
                raise BrokerError(f"{path}, line {line}: {key!r:.40} is not known in an account")
            if key in accounts[-1] or (key not in _LISTS and len(value) > 1):
                raise BrokerError(f"{path}, line {line}: {key} is given twice in an account")
            accounts[-1][key] = value
        made = [_account(one, path) for one in accounts]
        if len({one.access_key for one in made}) != len(made):
            raise BrokerError(f"{path} has an accessKey twice")
        if not made:
            raise BrokerError(f"{path} has no accounts: nobody could do anything")
        return cls({one.access_key: one for one in made}, tuple(addresses))

    def account(self, ext: Mapping[str, str], body: bytes, address: str) -> Account | None:
        """Whose request it is; None for an address that needs no account. Raises Denied."""
        if _is_among(address, self._addresses):
            return None
        account = self._accounts.get(ext.get(ACCESS_KEY, ""))
        if account is None:
            raise Denied("No accessKey is configured" if ACCESS_KEY in ext else "the request carries no AccessKey")
        if not hmac.compare_digest(signature(account.secret_key, ext, body).encode(), ext.get(SIGNATURE, "").encode()):
            raise Denied(f"Check signature failed for accessKey={account.access_key}")
        if account.addresses and not _is_among(address, account.addresses):
            raise Denied(f"accessKey={account.access_key} may not come from {address}")
        return account


def may(account: Account | None, right: str, *, topic: str = "", group: str = "") -> bool:
    """Whether an account has a right at a topic or a group."""
    if account is None or account.is_admin:
        return True
    if topic:
        return right in account.topics.get(topic, account.default_topic)
    return right in account.groups.get(group, account.default_group)


def _is_among(address: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(address, one) for one in patterns)


def _account(values: Mapping[str, list[str]], path: str) -> Account:
    def one(name: str, default: str = "") -> str:
        return (values.get(name) or [default])[0]

    access_key, secret_key = one("accessKey"), one("secretKey")
    if len(access_key) < _SECRET_SIZE_MIN or len(secret_key) < _SECRET_SIZE_MIN:
        text = f"accessKey and secretKey need {_SECRET_SIZE_MIN} characters at least"
        raise BrokerError(f"{path}: {text}, and account {access_key!r:.40} has fewer")
    of_account = f"{path}, account {access_key!r:.40}"
    if (is_admin := one("admin", "false").lower()) not in ("true", "false"):
        raise BrokerError(f"{of_account}: admin is true or false, not {one('admin')!r:.40}")
    return Account(
        access_key, secret_key, is_admin == "true", _addresses(values.get("whiteRemoteAddress", []), of_account),
        _rights(one("defaultTopicPerm", "DENY"), path), _rights(one("defaultGroupPerm", "DENY"), path),
        _named_rights(values.get("topicPerms", []), path), _named_rights(values.get("groupPerms", []), path),
    )  # fmt: skip


def _addresses(values: list[str], where: str) -> tuple[str, ...]:
    """Addresses, and patterns of them with `*`; none for `""`. RocketMQ's ranges are refused: they would match none."""
    found = tuple(one.strip() for value in values if value for one in value.split(","))
    for one in found:
        if not _ADDRESS.fullmatch(one):
            text = "is not an address here: write 192.0.2.7 or 192.0.2.*, several with commas between them"
            raise BrokerError(f"{where}: {one!r:.40} {text}")
    return found


def _named_rights(values: list[str], path: str) -> dict[str, frozenset[str]]:
    found: dict[str, frozenset[str]] = {}
    for value in values:
        name, equals, rights = value.partition("=")
        if not name or not equals:
            raise BrokerError(f"{path}: {value!r:.60} is not NAME=PERMISSION")
        name = name.strip()
        if "*" in name:
            raise BrokerError(f"{path}: {name!r:.60} is not one topic or group: the default is for all others")
        if name in found:
            raise BrokerError(f"{path}: an account has permissions for {name!r:.60} twice")
        found[name] = _rights(rights, path)
    return found


def _rights(text: str, path: str) -> frozenset[str]:
    words = [word.strip() for word in text.split("|")]
    if not all(word in _RIGHTS for word in words):
        raise BrokerError(f"{path}: {text!r:.40} is not a permission: DENY, PUB, SUB, PUB|SUB or ANY")
    return frozenset().union(*(_RIGHTS[word] for word in words))


def _items(text: str, path: str) -> Iterator[tuple[str, list[str], bool, bool, int]]:
    """(key, values, whether in an account, whether an account begins with it, line) of each line that has a key."""
    in_accounts, key, values, begins, at = False, "", list[str](), False, 0
    for line, raw in enumerate(text.splitlines(), 1):
        bare = raw.split(" #")[0].rstrip()
        if not bare.strip() or bare.lstrip().startswith("#") or (bare == "---" and not key):
            continue
        indent, content = len(bare) - len(bare.lstrip()), bare.strip()
        if content.startswith("- ") and (":" not in content or "=" in content.split(":")[0]):
            if not key:
                raise BrokerError(f"{path}, line {line}: a list without a name")
            values.append(_plain(content[2:], f"{path}, line {line}"))
            continue
        if key:
            yield key, values, in_accounts and key != "accounts", begins, at
        begins = content.startswith("- ")
        name, colon, value = content.removeprefix("- ").partition(":")
        if not colon:
            raise BrokerError(f"{path}, line {line}: neither KEY: VALUE nor a list")
        key, at = name.strip(), line
        if indent == 0 and not begins:
            in_accounts = key == "accounts"
        value = value.strip()
        inner = value[1:-1].split(",") if value.startswith("[") and value.endswith("]") else [value]
        values = [_plain(one, f"{path}, line {line}") for one in inner if one.strip()]
    if key:
        yield key, values, in_accounts and key != "accounts", begins, at


def _plain(text: str, where: str) -> str:
    """A scalar without its quotes. Raises BrokerError for a quote that does not end: what follows it would be lost."""
    bare = text.strip()
    if bare[0] not in "'\"":
        return bare
    if len(bare) == 1 or bare[0] != bare[-1]:
        raise BrokerError(f"{where}: a quote does not end: a value holds no comma in a list, and no # behind a blank")
    return bare[1:-1]
