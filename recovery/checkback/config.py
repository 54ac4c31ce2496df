"""How check-back is set up: whom to ask for which producer group, and when; from a TOML file or from options.

[policy."*"]                      # see recovery.checkback.policy
most_checks = 10
at_limit = "park"

[resolvers.shop]                  # a producer group; "*" is for all others
ledger = "postgresql+psycopg:///shop"
schema = ["tenant_a", "tenant_b"] # where each tenant has a ledger of its own; `ledger` may be a list, too
[resolvers.billing]
http = "http://127.0.0.1:8080/check-back"
token_file = "/run/secrets/billing"
answer_within = "5s"
[resolvers."*"]
call = "shop.orders:was_saved"
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from sqlalchemy.exc import SQLAlchemyError

from broker.database.ledger_binding import KnownLedgers
from broker.errors import BrokerError
from broker.ledger import Ledger
from broker.live import LiveStore
from broker.store.disk.files import Disk
from recovery.checkback.http_resolver import HttpResolver, read_headers
from recovery.checkback.ledger_resolver import LedgerResolver
from recovery.checkback.ledgers.engines import engine_of
from recovery.checkback.ledgers.proof import LedgerEvidence, WrongLedger
from recovery.checkback.ledgers.routing import Ledgers
from recovery.checkback.policy import Policy, parse_policy
from recovery.checkback.protocol import Resolver
from recovery.checkback.resolvers import Breaker, CallableResolver, Router
from recovery.checkback.specs import Spec, answer_within_s, check_spec
from recovery.checkback.time_limit import Bounded

EVERY_GROUP = "*"


@dataclass(frozen=True)
class Setup:
    """What a file or the options say."""

    policy: Policy = field(default_factory=Policy)
    resolvers: Mapping[str, Spec] = field(default_factory=dict)  # by producer group

    @property
    def asks(self) -> dict[str, str] | None:
        """Who is asked for each producer group, for `LeaderLock`; None: for all."""
        if EVERY_GROUP in self.resolvers:
            return None
        return {group: json.dumps(dict(spec), sort_keys=True) for group, spec in self.resolvers.items()}

    @contextmanager
    def open(self, store: LiveStore) -> Iterator[Resolvers]:
        """Those who are asked, each behind a breaker of its own. Raises BrokerError for what cannot be set up."""
        ledgers: dict[str, list[LedgerResolver]] = {}
        asked: dict[str, Resolver] = {}
        try:
            for group, spec in self.resolvers.items():
                if "ledger" in spec:
                    evidence, ledgers[group] = LedgerEvidence(store), []
                    ledgers[group] += (LedgerResolver(one, evidence) for one in ledgers_of(spec))
                asked[group] = Breaker(Bounded(Ledgers(ledgers[group])) if "ledger" in spec else _other(spec))
            default = asked.pop(EVERY_GROUP, None)
            only_ledgers = len(ledgers) == len(self.resolvers)
            known = KnownLedgers(store.path, store.writer.disk)
            yield Resolvers(Router(asked, default), ledgers, self.asks, known, only_ledgers=only_ledgers)
        finally:
            for ledger in (one for each in ledgers.values() for one in each):
                ledger.close()


class Resolvers:
    """Who is asked; and the ledgers alone, for decisions of persons and for retention."""

    def __init__(
        self,
        router: Router,
        by_group: Mapping[str, Sequence[LedgerResolver]],
        asks: Mapping[str, str] | None,
        known: KnownLedgers,
        *,
        only_ledgers: bool,
    ) -> None:
        self.router, self.asks, self._known, self._only_ledgers = router, asks, known, only_ledgers
        self.ledgers = {f"{group}, {one!r}": one for group, each in by_group.items() for one in each}
        self._by_group = {group: Ledgers(each) for group, each in by_group.items()}

    def wrong(self) -> list[str]:
        """Why nothing can be decided: nobody but ledgers is asked, and none is certainly one of this store's.

        Empty where a database does not answer: it may be the right one. And where the store knows no ledger: nothing in
        it waits for one.
        """
        found: list[str] = []
        if not self._known.all():
            return found
        for ledger in self.ledgers.values() if self._only_ledgers else ():
            try:
                ledger.binding_id()
                return []
            except WrongLedger as error:
                found.append(str(error))
            except SQLAlchemyError:
                return []
        return found

    def ledger_of(self, producer_group: str) -> Ledgers | None:
        """The ledgers of a producer group."""
        return self._by_group.get(producer_group, self._by_group.get(EVERY_GROUP))


def load(path: str) -> Setup:
    """The setup in a TOML file. Raises BrokerError for a name that is unknown or a value that makes no sense."""
    try:
        raw = tomllib.loads(Disk().read(path).decode("utf-8-sig"))
    except ValueError as error:  # of bytes that are not UTF-8, and of a number of thousands of digits, too
        raise BrokerError(f"{path} is not TOML: {error}") from None
    except RecursionError:
        raise BrokerError(f"{path}: its values are nested too deeply. Give tables of names and values") from None
    for name, value in raw.items():
        if name not in ("policy", "resolvers"):
            raise BrokerError(f"{path}: the tables are policy and resolvers; there is no {name!r}")
        if not isinstance(value, Mapping):
            raise BrokerError(f"{path}: {name} is a table, as in [{name}], not {value!r:.60}")
    resolvers = raw.get("resolvers", {})
    for group, spec in resolvers.items():
        check_spec(spec, f"{path}: resolvers.{group}")
    return Setup(parse_policy(raw.get("policy", {})), resolvers)


def _other(spec: Spec) -> Resolver:
    limit_s = answer_within_s(spec)
    if "call" in spec:
        return CallableResolver.load(spec["call"], answer_within_s=limit_s)
    headers = read_headers(spec.get("headers_file"), spec.get("token_file"), spec.get("token"))
    return HttpResolver(spec["http"], answer_within_s=limit_s, headers=headers)


def _texts(value: str | Sequence[str] | None) -> Sequence[str | None]:
    return [value] if value is None or isinstance(value, str) else list(value)


def ledgers_of(spec: Spec) -> Iterator[Ledger]:
    """A ledger for each database and schema that is named. Raises BrokerError for a URL that cannot be used."""
    for url in _texts(spec["ledger"]):
        for schema in _texts(spec.get("schema")):
            engine = engine_of(str(url), pool_pre_ping=True)
            yield Ledger(engine, table=spec.get("table", "checkback_ledger"), schema=schema)
