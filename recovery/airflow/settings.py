"""Which stores Airflow looks after, and how: one table for each, in a TOML file or in the setting itself.

    [stores.shop]                       # AIRFLOW__CHECKBACK__STORES=/etc/checkback/stores.toml
    path = "/srv/shop.store"
    check_back_every_s = 30

    for store in stores(): ...          # in a DAG file: a set of DAGs for each, and no code

Airflow parses the DAG files every half a minute, so this reads one small file and imports nothing heavy.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from broker.errors import BrokerError

_NAME = re.compile(r"[A-Za-z0-9_-]+")
NEVER = "never"  # a schedule: manually only
ENGINES = ("auto", "local", "spark")
SIZES = ("max_bytes", "free_bytes")
_INSTEAD = {"disk_share": ". Instead of a share of the disk, which others fill, give max_bytes of the store"}


class BadSettings(BrokerError, ValueError):
    """The list of stores cannot be read, or names something unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """One store: where it is, who answers for its transactions, and when the DAGs run."""

    name: str
    path: str = ""  # or a connection that says so
    connection: str | None = None  # of type checkback: path, ledger, catalog, resolver and policy come from it
    ledger: str | None = None  # SQLAlchemy URL of the application's database
    resolver: str | None = None  # package.module:function or an http(s) URL, where there is no ledger
    resolvers: Mapping[str, Any] = field(default_factory=dict)  # by producer group, see docs/check-back.md
    catalog: str | None = None  # SQLAlchemy URL; by default a file in STORE/checkback
    policy: Mapping[str, Any] = field(default_factory=dict)  # topic -> rule, see docs/check-back.md
    engine: str = "auto"  # of verification and rebuild: local, spark, or spark where there is one
    ask: bool = False  # whether a person approves before anything is repaired
    check_back_every_s: float = 30.0
    verify_schedule: str | None = "@daily"  # cron, or @daily and its like; `never`: manually only
    rebuild_schedule: str | None = "@weekly"
    retention_schedule: str | None = "@daily"
    keep: str = "72h"  # how long messages are kept at least
    max_bytes: str | int | None = None  # of the store, as 20GiB: above it the oldest segments go although younger
    free_bytes: str | int | None = None  # of its disk, as 5GiB: below it the oldest segments go although younger
    gone_after: str = "7d"  # a consumer group that was not seen for so long is not waited for; `never`: always
    even_unread: bool = False  # whether messages go that nobody has read
    answer_within_s: float = 86_400.0  # how long a person has to answer; then nothing is changed
    alerts: str | None = None  # an HTTP connection that alerts are posted to
    pool: str | None = None  # for Spark jobs

    def retention(self) -> dict[str, Any]:
        """The arguments of the operator of retention."""
        return {name: getattr(self, name) for name in ("keep", *SIZES, "gone_after", "even_unread")}

    def target(self) -> dict[str, Any]:
        """The arguments of operators that concern the store: their own, without what only DAGs use."""
        names = ("path", "connection", "ledger", "resolver", "resolvers", "catalog", "policy", "engine")
        return {name: getattr(self, name) for name in names} | {"store": self.name}


def stores() -> list[StoreSettings]:
    """The stores of the setting `[checkback] stores`, in their order; none without it. Raises BadSettings."""
    from airflow.sdk.configuration import conf

    return read_stores(conf.get("checkback", "stores", fallback="") or "")


def read_stores(setting: str) -> list[StoreSettings]:
    """The stores that a setting means: the path of a TOML or JSON file, or JSON itself. Raises BadSettings."""
    text = setting.strip()
    if not text:
        return []
    if text.startswith("{"):
        return _parsed(text, "the setting [checkback] stores", json.loads)
    path = os.path.expanduser(text)
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except OSError as error:
        raise BadSettings(f"{path}: {error.strerror}. [checkback] stores names a TOML file, or is JSON") from None
    return _parsed(text, path, json.loads if text.lstrip().startswith("{") else tomllib.loads)


def _parsed(text: str, where: str, parse: Any) -> list[StoreSettings]:
    try:
        tables = parse(text).get("stores", {})
    except ValueError as error:
        raise BadSettings(f"{where} cannot be read: {error}") from None
    if not isinstance(tables, Mapping):
        raise BadSettings(f"{where}: `stores` holds a table for each store, as in [stores.shop]")
    return [_one(name, values, where) for name, values in tables.items()]


def _one(name: str, values: Any, where: str) -> StoreSettings:
    """One table. What it names must be a setting, of the setting's kind."""
    if not _NAME.fullmatch(name):
        raise BadSettings(f"{where}: {name!r} cannot name a store: characters, digits, - and _ make up a DAG's name")
    if not isinstance(values, Mapping):
        raise BadSettings(f"{where}: stores.{name} is a table of settings, not {values!r:.40}")
    known = {one.name: _default(one) for one in fields(StoreSettings) if one.name != "name"}
    for key, value in values.items():
        if key not in known:
            text = f"{where}: stores.{name} has no setting {key!r}; there are {', '.join(known)}"
            raise BadSettings(f"{text}{_INSTEAD.get(key, '')}")
        if not (_is_size(value) if key in SIZES else _fits(known[key], value)):
            raise BadSettings(f"{where}: stores.{name}: {key} cannot be {value!r:.40}")
    made: dict[str, Any] = {
        key: None if key.endswith("_schedule") and value == NEVER else value for key, value in values.items()
    }
    settings = StoreSettings(name=name, **made)
    if not (settings.path or settings.connection):
        raise BadSettings(f"{where}: stores.{name} needs a path, or a connection that has one")
    if settings.engine not in ENGINES:
        raise BadSettings(f"{where}: stores.{name}: engine is one of {', '.join(ENGINES)}, not {settings.engine!r}")
    return settings


def _default(setting: Any) -> Any:
    return {} if setting.default is MISSING else setting.default


def _is_size(value: Any) -> bool:
    from recovery.humanize import parse_size

    try:
        return parse_size(value) > 0
    except ValueError:
        return False


def _fits(default: Any, value: Any) -> bool:
    if isinstance(default, bool) or isinstance(value, bool):
        return isinstance(default, bool) and isinstance(value, bool)
    if isinstance(default, float):
        return isinstance(value, int | float) and value > 0
    return isinstance(value, str if default is None or isinstance(default, str) else Mapping)
