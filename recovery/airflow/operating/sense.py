"""Whether the values of a store's settings make sense, before a DAG is made of them.

A DAG file makes the DAGs of all stores: a value that fails there takes those of the others with it, and one that fails
in a task is seen a day later. So each is tried where the table is read, where a mistake is that store's alone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from broker.errors import BrokerError
from recovery.humanize import printable

NAME_MOST = 90  # characters: a tag of Airflow has at most 100, and the DAGs of a store have one with its name
SECONDS = (0.1, 315_360_000.0)  # to ten years: Airflow counts in whole microseconds, and not to the end of time
_PRESETS = ("@once", "@continuous", "@hourly", "@daily", "@weekly", "@monthly", "@quarterly", "@yearly")
_FIELDS = (5, 6, 7)  # of a cron expression, as Airflow takes them
_URL = re.compile(r"[A-Za-z][\w+.-]*://.*|sqlite:.*", re.DOTALL)
_IN_A_TASKS_ID = ("queue", "executor")  # both, in 250 characters: of the DAG checkback.doctor, which is of all stores
_PLACE_MOST = 120
_ONE_OF = ("ledger", "ledger_connection", "resolver", "resolver_connection")
_CONNECTIONS = {"ledger_connection": "ledger", "http_connection": "http"}
_STAND_INS = {"ledger_connection": "sqlite:///connection", "http_connection": "http://connection"}
_LEDGERS = ("sqlite", "postgresql", "mysql", "mariadb")
_WITH_LOOP = ("aiosqlite", "asyncpg", "psycopg_async", "aiomysql", "asyncmy")  # drivers
_NAMES_OF_CONNECTIONS = ("connection", "ledger_connection", "resolver_connection", "http_connection", "alerts")
NEVER = "never"  # a schedule: manually only


def check_sense(name: str, given: Mapping[str, Any]) -> None:
    """`given` is the table of the store `name`, of values of the right kinds.

    Raises BrokerError with a sentence that shows no URL.
    """
    path = given.get("path")
    if len(name) > NAME_MOST:
        raise BrokerError(f"a store's name has at most {NAME_MOST} characters, since its DAGs have it in a tag")
    if path and not os.path.isabs(path):
        text = "each process of Airflow has a working directory of its own"
        raise BrokerError(f"path cannot be {path!r:.60}: give the whole path, from / on, since {text}")
    for key, value in given.items():
        if value == "":
            raise BrokerError(f"{key} is empty: leave it out, or give a value")
        if _is_beyond(value):
            raise BrokerError(f"{key} has a number that is too large: its whole numbers have at most 63 bits")
        if isinstance(value, str):
            _check_text(key, value)
        elif key == "approvers" and not all(name.strip() == name != "" for name in value):
            raise BrokerError("approvers has a name that is empty, or has spaces around it: nobody could answer")
        if key.endswith("_s"):
            _check_seconds(key, value)
        elif key.endswith("_schedule"):
            _check_schedule(key, value)
        elif key in ("keep", "gone_after") and not (key == "gone_after" and value == NEVER):
            _check_duration(key, value)
        elif key in ("ledger", "catalog") and not _URL.fullmatch(value):
            raise BrokerError(f"{key} is not a SQLAlchemy URL, as postgresql+psycopg://user@host/database")
        elif key == "ledger":
            _check_ledger(key, value)
    if len(both := [one for one in _ONE_OF if one in given]) > 1:
        raise BrokerError(f"{' and '.join(both)} exclude each other: give one of them, or `resolvers` by group")
    _check_answers(given.get("policy"), given.get("resolvers"))


def is_url(value: object) -> bool:
    """Whether a value is, or has in it, a URL, which may hold a password."""
    return "://" in str(value)


def _is_beyond(value: object) -> bool:
    """Whether a whole number is in it that Airflow's MessagePack cannot hold: no DAG of any store would be parsed."""
    if isinstance(value, Mapping):
        return any(_is_beyond(one) for one in value.values())
    if isinstance(value, list):
        return any(_is_beyond(one) for one in value)
    return isinstance(value, int) and abs(value) >= 1 << 63


def _check_text(key: str, value: str) -> None:
    """What Airflow, its database or JSON cannot hold would be refused for the DAGs, or the page, of all stores.

    The name of a connection is rendered and kept there for all to read: a URL in its place would be, too.
    """
    if key in _NAMES_OF_CONNECTIONS and is_url(value):
        text = "names an Airflow connection, and a URL is given: put the URL into a connection"
        raise BrokerError(f"{key} {text} (AIRFLOW_CONN_SHOP=URL), and give its name here (shop)")
    if printable(value) != value:
        raise BrokerError(f"{key} has a character in it that cannot be seen, such as a zero: write it without")
    if key in _IN_A_TASKS_ID and len(value) > _PLACE_MOST:
        raise BrokerError(f"{key} has {len(value)} characters: a name of it has at most {_PLACE_MOST}")
    if key == "resolver" and "://" in value:
        from recovery.checkback.specs import is_http_url

        if not is_http_url(value):
            text = "resolver is an http(s) URL with a host, package.module:function, or the name of an entry point"
            raise BrokerError(text)


def _check_seconds(key: str, value: float) -> None:
    least, most = SECONDS
    if not least <= value <= most:
        raise BrokerError(f"{key} cannot be {value!r:.40}: it is a number of seconds from {least} to {most:.0f}")


def _check_schedule(key: str, value: str) -> None:
    """As Airflow would, which is not here where the file is checked before it is installed: then by its shape."""
    if value == NEVER or value in _PRESETS:
        return
    right = f"a cron expression as '0 3 * * *', one of {', '.join(_PRESETS)}, or {NEVER}"
    if not value.startswith("@") and len(value.split()) not in _FIELDS:
        raise BrokerError(f"{key} cannot be {value!r:.40}: it is {right}")
    try:
        from croniter import croniter
    except ImportError:
        return
    try:
        croniter(value).get_next()  # one that never comes, as 30 February, stops Airflow's scheduler from planning it
    except ValueError as error:
        raise BrokerError(f"{key} cannot be {value!r:.40} ({error}): it is {right}") from None


def _check_duration(key: str, value: str) -> None:
    from recovery.durations import parse_duration

    try:
        parse_duration(value)
    except (ValueError, OverflowError) as error:
        also = f", or {NEVER}" if key == "gone_after" else ""
        raise BrokerError(f"{key} cannot be {value!r:.40}: {error}{also}") from None


def _check_answers(policy: Mapping[str, Any] | None, resolvers: Mapping[str, Any] | None) -> None:
    """The policy, and who is asked by producer group."""
    if policy:
        from recovery.checkback.policy import parse_policy

        parse_policy(policy)
    if resolvers:
        from recovery.checkback.specs import check_spec

        for group, spec in resolvers.items():
            if isinstance(spec, Mapping):
                for name in (one for one in _CONNECTIONS if isinstance(spec.get(one), str)):
                    _check_text(name, spec[name])
                spec = {_CONNECTIONS.get(name, name): _read_later(name, value) for name, value in spec.items()}
            check_spec(spec, f"resolvers.{group}")
            if "ledger" in spec:
                for url in [spec["ledger"]] if isinstance(spec["ledger"], str) else spec["ledger"]:
                    _check_ledger(f"resolvers.{group}: ledger", url)


def _check_ledger(key: str, url: str) -> None:
    """By its text alone: SQLAlchemy is not everywhere where the file is checked, nor is that of an older Airflow.

    What only a round of check-back would refuse is seen when a transaction is in doubt, and not before.
    """
    kind, _, driver = url.partition(":")[0].partition("+")
    right = "write sqlite:///, postgresql+psycopg://, mysql+pymysql:// or mariadb+pymysql://"
    if kind not in _LEDGERS:
        raise BrokerError(f"{key} cannot be in a database of the kind {kind!r:.40}: {right}")
    if driver in _WITH_LOOP:
        raise BrokerError(f"{key} names the driver {driver}, which needs an event loop, and there is none: {right}")


def _read_later(name: str, value: Any) -> Any:
    """What stands for a URL that a connection has, which is read in a task."""
    return _STAND_INS[name] if name in _STAND_INS and isinstance(value, str) else value
