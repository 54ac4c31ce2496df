"""Which stores Airflow looks after, and how: one table for each, in a TOML file or in the setting itself.

    [stores.shop]                       # AIRFLOW__CHECKBACK__STORES=/etc/checkback/stores.toml
    path = "/srv/shop.store"
    check_back_every_s = 30

    for store in stores(): ...          # in a DAG file: a set of DAGs for each, and no code

Airflow parses the DAG files every half a minute, so this reads one small file and imports nothing heavy.

Each table stands for itself: a mistake in one makes that store a `BrokenStore`, with a red line on the page and a
failing DAG, and the others are looked after. While the whole file cannot be read, the last one that could be counts:
a copy of it is kept in AIRFLOW_HOME.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from functools import partial
from itertools import chain, count
from typing import Any

from broker.errors import BrokerError
from recovery.airflow.operating.sense import NAME_MOST, NEVER, check_sense, is_url
from recovery.hanging import DoesNotAnswer, within_time
from recovery.jobs.setup import ENGINES

_NAME = re.compile(r"[A-Za-z0-9_-]+")
SIZES = ("max_bytes", "free_bytes")
WORK = ("check_back", "verify_store", "rebuild_state_table", "recover_after_crash", "resolve_parked", "retention")
"""The DAGs of a store."""
_OF_COPIES = ("verify_store",)
_NOT_OF_COPIES = (
    "ledger", "ledger_connection", "resolver", "resolver_connection", "resolvers", "catalog", "policy", "ask",
    "take_over", "keep", *SIZES, "gone_after", "even_unread", "rebuild_schedule", "retention_schedule",
)  # fmt: skip
_SECRETS = ("ledger", "resolver", "resolvers", "catalog")
_SETTING = "the setting [checkback] stores"
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
    ledger_connection: str | None = None  # instead of it: an Airflow connection, which keeps the password
    resolver: str | None = None  # package.module:function or an http(s) URL, where there is no ledger
    resolver_connection: str | None = None  # instead of a URL: an Airflow connection of type http
    resolvers: Mapping[str, Any] = field(default_factory=dict)  # by producer group, see docs/check-back.md
    catalog: str | None = None  # SQLAlchemy URL; by default a file in STORE/checkback
    policy: Mapping[str, Any] = field(default_factory=dict)  # topic -> rule, see docs/check-back.md
    engine: str = "auto"  # of verification and rebuild: local, spark, or spark where there is one
    ask: bool = False  # whether a person approves before anything is repaired
    check_back_every_s: float = 30.0  # how often it is looked whether a transaction is due
    watch: bool = True  # whether the triggerer looks, and a run starts when one is due; else each time a run looks
    backstop_s: float = 3_600.0  # after so long a run looks in any case
    verify_schedule: str | None = "@daily"  # cron, or @daily and its like; `never`: manually only
    rebuild_schedule: str | None = "@weekly"
    retention_schedule: str | None = "@daily"
    keep: str = "72h"  # how long messages are kept at least
    max_bytes: str | int | None = None  # of the store, as 20GiB: above it the oldest segments go although younger
    free_bytes: str | int | None = None  # of its disk, as 5GiB: below it the oldest segments go although younger
    gone_after: str = "7d"  # a consumer group that was not seen for so long is not waited for; `never`: always
    even_unread: bool = False  # whether messages go that nobody has read
    copy: bool = False  # whether `checkback follow` keeps it: a copy is verified, and nothing writes to it
    take_over: bool = False  # whether a store that a RocketMQ broker wrote may be offered to be taken over
    approvers: list[str] = field(default_factory=list)  # ids of Airflow users; without any, all who may answer
    ask_again_after_s: float = 21_600.0  # after how long a person is asked again, and alerted again
    answer_within_s: float = 86_400.0  # how long a person has to answer; then nothing is changed
    alerts: str | None = None  # an HTTP connection that alerts are posted to
    pool: str | None = None  # for Spark jobs
    queue: str | None = None  # of the workers that see the store's directory
    executor: str | None = None  # of Airflow's executors, the one whose workers do

    @property
    def work(self) -> tuple[str, ...]:
        """Which DAGs it has."""
        return _OF_COPIES if self.copy else WORK

    def retention(self) -> dict[str, Any]:
        """The arguments of the operator of retention."""
        return {name: getattr(self, name) for name in ("keep", *SIZES, "gone_after", "even_unread")}

    def target(self) -> dict[str, Any]:
        """The arguments of operators that concern the store: their own, without what only DAGs use."""
        names = (
            "path", "connection", "ledger", "ledger_connection", "resolver", "resolver_connection", "resolvers",
            "catalog", "policy", "engine", "queue", "executor",
        )  # fmt: skip
        found = {name: getattr(self, name) for name in names}
        found |= {"store": self.name, "recovery_is_asked": self.ask}
        return {name: value for name, value in found.items() if value is not None or name not in ("queue", "executor")}


@dataclass(frozen=True, slots=True)
class BrokenStore:
    """A store that cannot be looked after until its settings are corrected; `why` is the sentence for a person."""

    name: str  # of A-Z, a-z, 0-9, - and _, so that it can name a DAG
    why: str
    alerts: str | None = None  # the HTTP connection of its table, if that is readable


@dataclass(frozen=True, slots=True)
class StoreList:
    """What a setting means: the stores, in their order, and the tables that mean none."""

    stores: list[StoreSettings] = field(default_factory=list)
    broken: list[BrokenStore] = field(default_factory=list)


WHOLE_FILE = "settings"
"""The name of the BrokenStore that stands for a file that cannot be read at all."""


def stores() -> list[StoreSettings]:
    """The stores of the setting `[checkback] stores`, in their order; none without it. Mistakes are left out."""
    return configured().stores


def stores_with(work: str) -> list[StoreSettings]:
    """Those of them that have a DAG for some work."""
    return [store for store in stores() if work in store.work]


def broken_stores() -> list[BrokenStore]:
    """The stores whose settings cannot be used."""
    return configured().broken


def configured() -> StoreList:
    """What the setting `[checkback] stores` of Airflow means; never raises BadSettings.

    A file that cannot be read is replaced by the last one that could be, and is a BrokenStore besides.
    """
    from recovery.airflow.versions import conf

    setting = (conf.get("checkback", "stores", fallback="") or "").strip()
    copy = os.path.join(os.path.expanduser(os.environ.get("AIRFLOW_HOME") or "~/airflow"), "checkback-stores.last-good")
    try:
        text, where = _text(setting)
        read = _parsed(text, where)
    except BadSettings as error:
        return _with_known_executors(_last_good(copy, setting, str(error)))
    if text != setting:  # a file
        _keep(copy, f"{setting}\n{text}")
    return _with_known_executors(read)


def in_one_directory(stores: Sequence[StoreSettings]) -> list[tuple[str, str]]:
    """(store, earlier store) of one directory: mostly a table that was copied, whose own store nobody looks after.

    A symbolic link leads to one, too: whether a person approves its recovery would be a matter of both.
    """
    first: dict[str, str] = {}
    pairs = [(store.name, first.setdefault(_real(store.path), store.name)) for store in stores if store.path]
    return [(name, earlier) for name, earlier in pairs if name != earlier]


def _real(path: str) -> str:
    """Where the symbolic links of a path lead; the path itself where a disk hangs."""
    try:
        found: str = within_time(path, partial(os.path.realpath, path))
    except DoesNotAnswer:
        return path
    return found


def _with_known_executors(found: StoreList) -> StoreList:
    """Airflow refuses a DAG with an executor that it has not, and `checkback.doctor` has tasks for all stores."""
    from recovery.airflow.versions import has_executor

    unknown = [store for store in found.stores if store.executor and not has_executor(store.executor)]
    text = "this Airflow has no executor {!r:.60}: name one of its setting [core] executor, or leave executor out"
    broken = [BrokenStore(one.name, f"stores.{one.name}: {text.format(one.executor)}", one.alerts) for one in unknown]
    return StoreList([store for store in found.stores if store not in unknown], [*found.broken, *broken])


def read_stores(setting: str) -> StoreList:
    """The stores that a setting means: the path of a TOML or JSON file, or JSON itself.

    Raises BadSettings when it cannot be read as a whole.
    """
    return _parsed(*_text(setting.strip()))


def _text(setting: str) -> tuple[str, str]:
    """TOML or JSON, and where it stands."""
    if not setting or setting.startswith("{"):
        return setting, _SETTING
    path = os.path.expanduser(setting)
    try:
        with open(path, encoding="utf-8-sig") as file:
            return file.read(), path
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise BadSettings(f"{path}: {reason}. [checkback] stores names a TOML file, or is JSON") from None


def _parsed(text: str, where: str) -> StoreList:
    if not text and where == _SETTING:  # nobody has set it; an empty file is one that somebody has yet to fill
        return StoreList()
    try:
        is_json = text.lstrip().startswith("{")
        parsed = json.loads(text, object_pairs_hook=_each_once) if is_json else tomllib.loads(text)
    except ValueError as error:
        raise BadSettings(f"{where} cannot be read: {error}") from None
    except RecursionError:
        raise BadSettings(f"{where} cannot be read: its values are nested too deeply") from None
    tables = parsed.get("stores") if isinstance(parsed, Mapping) else None
    if not isinstance(tables, Mapping) or len(parsed) > 1:
        others = sorted(set(parsed) - {"stores"}) if isinstance(parsed, Mapping) else []
        besides = f"; nothing else is known here, such as {', '.join(others):.60}" if others else ""
        raise BadSettings(f"{where}: `stores` holds a table for each store, as in [stores.shop]{besides}")
    found = StoreList()
    for name, values in tables.items():
        try:
            found.stores.append(one_store(name, values, where))
        except BadSettings as error:
            alerts = values.get("alerts") if isinstance(values, Mapping) else None
            shown = _name_of_dag(name, {*tables, *(broken.name for broken in found.broken)})
            is_name = isinstance(alerts, str) and not is_url(alerts)
            found.broken.append(BrokenStore(shown, str(error), alerts if is_name else None))
    return found


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON. Of two values of one name json takes the last: a store would go without a word."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r:.60} is there twice")
    return found


def _name_of_dag(name: str, others: set[str]) -> str:
    """A name that a DAG can have: that of the table, if possible, else one like it that no other table has."""
    shown = re.sub(r"[^A-Za-z0-9_-]", "_", name)[:NAME_MOST] or "_"
    if shown == name:
        return shown
    return next(one for one in chain([shown], (f"{shown}_{number}" for number in count(2))) if one not in others)


def _last_good(copy: str, setting: str, why: str) -> StoreList:
    """The stores of the last file that could be read, of the same setting."""
    found = StoreList()
    with (
        contextlib.suppress(OSError, ValueError, BadSettings),
        open(copy, encoding="utf-8", errors="surrogateescape") as file,
    ):
        if file.readline().rstrip("\n") == setting:
            found = _parsed(file.read(), copy)
            why = f"{why}. Until it is corrected, the {len(found.stores)} stores of its last good version are served"
    alerts = next((store.alerts for store in found.stores if store.alerts), None)
    return StoreList(found.stores, [*found.broken, BrokenStore(WHOLE_FILE, why, alerts)])


def _keep(copy: str, text: str) -> None:
    """Keep a file that could be read, for its owner alone: it may hold the URL of a database.

    Without a place to write there is no copy, and nothing else changes.
    """
    with contextlib.suppress(OSError):
        with contextlib.suppress(OSError), open(copy, encoding="utf-8", errors="surrogateescape") as file:
            if file.read() == text:
                return
        descriptor, temporary = tempfile.mkstemp(prefix="checkback-", dir=os.path.dirname(copy))  # mode 0600
        try:
            with open(descriptor, "w", encoding="utf-8", errors="surrogateescape") as file:
                file.write(text)
            os.replace(temporary, copy)
        except OSError:  # each parse of a DAG file would leave one
            os.remove(temporary)
            raise


def one_store(name: str, values: Any, where: str) -> StoreSettings:
    """One table. What it names must be a setting, of the setting's kind. Raises BadSettings."""
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
            shown = "that" if key in _SECRETS or is_url(value) else f"{value!r:.40}"  # a list of URLs, say
            raise BadSettings(f"{where}: stores.{name}: {key} cannot be {shown}: give {_kind(key, known[key])}")
    made: dict[str, Any] = {
        key: None if key.endswith("_schedule") and value == NEVER else value for key, value in values.items()
    }
    settings = StoreSettings(name=name, **made)
    if not (settings.path or settings.connection):
        raise BadSettings(f"{where}: stores.{name} needs a path, or a connection that has one")
    if settings.engine not in ENGINES:
        raise BadSettings(f"{where}: stores.{name}: engine is one of {', '.join(ENGINES)}, not {settings.engine!r}")
    try:
        check_sense(name, values)
    except BrokerError as error:
        raise BadSettings(f"{where}: stores.{name}: {error}") from None
    if settings.copy and (given := [key for key in _NOT_OF_COPIES if key in values]):
        text = f"{where}: stores.{name} is a copy, to which nothing writes: leave out {', '.join(given)}"
        raise BadSettings(f"{text}. `checkback answer` answers its cluster's checks, `follow --keep` keeps it small")
    return settings


def _default(setting: Any) -> Any:
    return setting.default_factory() if setting.default is MISSING else setting.default


def _is_size(value: Any) -> bool:
    from recovery.humanize import parse_size

    try:
        return parse_size(value) > 0
    except ValueError:
        return False


def _kind(key: str, default: Any) -> str:
    """What a setting may hold, for the sentence that says that it holds something else."""
    if key in SIZES:
        return "a size, as 20GiB"
    if isinstance(default, bool):
        return "true or false"
    if isinstance(default, float):
        return "a number of seconds"
    if isinstance(default, list):
        return "a list of texts"
    return "a table" if isinstance(default, Mapping) else "a text"


def _fits(default: Any, value: Any) -> bool:
    if isinstance(default, bool) or isinstance(value, bool):
        return isinstance(default, bool) and isinstance(value, bool)
    if isinstance(default, float):
        return isinstance(value, int | float) and value > 0
    if isinstance(default, list):
        return isinstance(value, list) and all(isinstance(one, str) for one in value)
    return isinstance(value, str if default is None or isinstance(default, str) else Mapping)
