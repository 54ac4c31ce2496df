"""How check-back is set up: whom to ask for which producer group, and when; from a TOML file or from options.

[policy."*"]                      # see recovery.checkback.policy
most_checks = 10
at_limit = "park"

[resolvers.shop]                  # a producer group; "*" is for all others
ledger = "postgresql+psycopg:///shop"
[resolvers.billing]
http = "http://127.0.0.1:8080/check-back"
[resolvers."*"]
call = "shop.orders:was_saved"
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from broker.errors import BrokerError
from broker.ledger import Ledger
from broker.store.disk.files import Disk
from recovery.checkback.ledger_resolver import LedgerResolver
from recovery.checkback.policy import Policy, parse_policy
from recovery.checkback.protocol import Resolver
from recovery.checkback.resolvers import Breaker, CallableResolver, HttpResolver, Router

_KINDS = ("ledger", "http", "call")
_NAMES = (*_KINDS, "table", "schema")
EVERY_GROUP = "*"


@dataclass(frozen=True)
class Setup:
    """What a file or the options say."""

    policy: Policy = field(default_factory=Policy)
    resolvers: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # by producer group

    @contextmanager
    def open(self, store_id: str) -> Iterator[Resolvers]:
        """Those who are asked, each behind a breaker of its own. Raises BrokerError for what cannot be set up."""
        ledgers: dict[str, LedgerResolver] = {}
        asked: dict[str, Resolver] = {}
        try:
            for group, spec in self.resolvers.items():
                if "ledger" in spec:
                    ledgers[group] = _ledger(spec, store_id)
                asked[group] = Breaker(ledgers[group] if "ledger" in spec else _other(spec))
            default = asked.pop(EVERY_GROUP, None)
            yield Resolvers(Router(asked, default), ledgers)
        finally:
            for ledger in ledgers.values():
                ledger.close()


@dataclass(frozen=True)
class Resolvers:
    """Who is asked; and the ledgers alone, by producer group, for decisions of persons and for retention."""

    router: Router
    ledgers: Mapping[str, LedgerResolver]

    def ledger_of(self, producer_group: str) -> LedgerResolver | None:
        return self.ledgers.get(producer_group, self.ledgers.get(EVERY_GROUP))


def load(path: str) -> Setup:
    """The setup in a TOML file. Raises BrokerError for a name that is unknown or a value that makes no sense."""
    try:
        raw = tomllib.loads(Disk().read(path).decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BrokerError(f"{path} is no TOML: {error}") from None
    for name in raw:
        if name not in ("policy", "resolvers"):
            raise BrokerError(f"{path}: the tables are policy and resolvers; there is no {name!r}")
    resolvers = raw.get("resolvers", {})
    for group, spec in resolvers.items():
        check_spec(spec, f"{path}: resolvers.{group}")
    return Setup(parse_policy(raw.get("policy", {})), resolvers)


def check_spec(spec: Any, where: str) -> None:
    """Raises BrokerError unless exactly one kind of resolver is named."""
    if not isinstance(spec, Mapping) or sum(kind in spec for kind in _KINDS) != 1:
        raise BrokerError(f"{where} names one of {', '.join(_KINDS)}")
    for name, value in spec.items():
        if name not in _NAMES or not isinstance(value, str):
            raise BrokerError(f"{where} has no {name!r} of this kind; the names are {', '.join(_NAMES)}, all text")


def _other(spec: Mapping[str, str]) -> Resolver:
    return HttpResolver(spec["http"]) if "http" in spec else CallableResolver.load(spec["call"])


def _ledger(spec: Mapping[str, str], store_id: str) -> LedgerResolver:
    from sqlalchemy import create_engine
    from sqlalchemy.exc import ArgumentError, NoSuchModuleError

    try:
        engine = create_engine(spec["ledger"], pool_pre_ping=True)
        return LedgerResolver(
            Ledger(engine, table=spec.get("table", "checkback_ledger"), schema=spec.get("schema")), store_id
        )
    except (ArgumentError, NoSuchModuleError, ImportError) as error:
        raise BrokerError(f"the ledger's database cannot be reached: {error}") from None
