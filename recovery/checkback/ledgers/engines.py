"""The engine for a database that a person named by its URL: a sentence where the URL cannot be used.

    engine = engine_of("postgresql+psycopg:///shop", pool_pre_ping=True)

Check-back and the verbs run without an event loop, so a driver that needs one is refused before anything connects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.errors import BrokerError
from recovery.checkback.ledgers.database_errors import place

if TYPE_CHECKING:
    from sqlalchemy import URL, Engine

LEDGER = "the ledger's database"
_WITHOUT_LOOP = {
    "sqlite": "sqlite", "postgresql": "postgresql+psycopg", "mysql": "mysql+pymysql", "mariadb": "mariadb+pymysql",
}  # fmt: skip

_KNOWN = [f"{one}://" for one in dict.fromkeys(_WITHOUT_LOOP.values())]
_PACKAGES = {"psycopg": "psycopg[binary]", "psycopg2": "psycopg2-binary", "MySQLdb": "mysqlclient"}  # by their modules


def check_url(url: str, what: str = LEDGER) -> URL:
    """The URL of a database, whose driver need not be installed. `what` begins the sentence of an error.

    Raises BrokerError for what is not a URL of SQLAlchemy, for an @ in its password, the rest of which would be taken
    for the host and shown, and for a driver that needs an event loop.
    """
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError, NoSuchModuleError

    try:
        parsed = make_url(url)
        dialect = parsed.get_dialect()
    except NoSuchModuleError:
        text = f"its URL begins with {url.partition(':')[0]}://, which SQLAlchemy does not know"
        raise BrokerError(f"{what} cannot be used: {text}. Write {', '.join(_KNOWN)}") from None
    except (ArgumentError, ValueError):  # for one, a port that is not a number; the text may hold the password
        raise BrokerError(f"{what} is not a SQLAlchemy URL, as postgresql+psycopg://user@host/database") from None
    if "@" in (parsed.host or ""):
        raise BrokerError(f"{what} cannot be reached: its URL has an @ in the user or the password: write %40 for it")
    if dialect.is_async:
        kind = parsed.get_backend_name()
        instead = f"write {_WITHOUT_LOOP[kind]}:// instead" if kind in _WITHOUT_LOOP else "name another driver"
        text = f"{parsed.drivername} needs an event loop, and there is none here"
        raise BrokerError(f"{what} {place(parsed)} cannot be used: {text}. In its URL {instead}")
    return parsed


def engine_of(url: str, what: str = LEDGER, **options: Any) -> Engine:
    """An engine, which connects at first use; `options` are those of `create_engine`.

    Raises BrokerError as `check_url` does, and for a driver that is not installed.
    """
    from sqlalchemy import create_engine
    from sqlalchemy.exc import ArgumentError

    parsed = check_url(url, what)
    try:
        return create_engine(parsed, **options)
    except ImportError as error:
        module = (error.name or parsed.get_driver_name()).partition(".")[0]
        text = f"its driver is not installed here ({error}). Run: pip install '{_PACKAGES.get(module, module)}'"
        raise BrokerError(f"{what} {place(parsed)} cannot be used: {text}") from None
    except ArgumentError as error:
        raise BrokerError(f"{what} cannot be reached: {error}") from None
