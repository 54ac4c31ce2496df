"""The shops that are run and killed: one for each way in which a framework commits, on SQLite and PostgreSQL."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from sqlalchemy import URL

from tests.checkback.shop import open_store
from tests.frameworks.killing import Shop
from tests.frameworks.server import gunicorn, uvicorn
from tests.house.tree import ROOT

THREADS = ("--worker-class", "gthread", "--threads", "4")
SHOPS = "tests.frameworks.shops"
DJANGO = "tests.frameworks.django_shop"
_ASYNC_DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg"}


def unsafe_flask(directory: Path, url: URL, *options: str) -> Shop:
    """The same shop with the enlistment switched off: its messages are sent plain, before COMMIT."""
    shop = flask(directory, url)
    return replace(shop, command=gunicorn(f"{SHOPS}.unsafe_flask_routes:app", *THREADS, *options))


def flask(directory: Path, url: URL, *options: str) -> Shop:
    """Flask-SQLAlchemy: the view calls `db.session.commit()`."""
    environment = _environment(directory, _sqlalchemy(url))
    _make(directory, environment, "-m", f"{SHOPS}.flask_shop")
    command = gunicorn(f"{SHOPS}.flask_routes:app", *THREADS, *options)
    return Shop(command, environment, ("fail", "savepoint", "kept", "twice"))


def fastapi(directory: Path, url: URL, *options: str) -> Shop:
    """FastAPI with a Session: a dependency commits, by `sessionmaker.begin()`."""
    environment = _environment(directory, _sqlalchemy(url))
    _make(directory, environment, "-m", f"{SHOPS}.fastapi_shop")
    return Shop(uvicorn(f"{SHOPS}.fastapi_routes:app", *options), environment, ("fail", "savepoint", "kept"))


def fastapi_async(directory: Path, url: URL, *options: str) -> Shop:
    """FastAPI with an AsyncSession: a dependency commits after its `yield`."""
    driver = _ASYNC_DRIVERS[url.get_backend_name()]
    environment = _environment(directory, _sqlalchemy(url.set(drivername=driver)))
    _make(directory, environment, "-m", f"{SHOPS}.fastapi_async_shop")
    command = uvicorn(f"{SHOPS}.fastapi_async_routes:app", *options)
    return Shop(command, environment, ("fail", "savepoint", "kept", "twice"))


def starlette(directory: Path, url: URL, *options: str) -> Shop:
    """Starlette with an AsyncSession: the endpoint commits, by `async_sessionmaker.begin()`."""
    driver = _ASYNC_DRIVERS[url.get_backend_name()]
    environment = _environment(directory, _sqlalchemy(url.set(drivername=driver)))
    _make(directory, environment, "-m", f"{SHOPS}.starlette_shop")
    command = uvicorn(f"{SHOPS}.starlette_routes:app", *options)
    return Shop(command, environment, ("fail", "savepoint", "twice"))


def plain(directory: Path, url: URL, *options: str) -> Shop:
    """Flask with connections of sqlite3 or psycopg, without SQLAlchemy: `begin_transaction(connection)` commits."""
    module, database, wishes = "sqlite3", str(url.database), ("fail", "savepoint", "twice")
    if url.get_backend_name() != "sqlite":
        module, wishes = "psycopg", (*wishes, "kept")
        database = f"host={url.query['host']} user={url.username} dbname={url.database}"
    environment = _environment(directory, database)
    _make(directory, environment, "-m", f"{SHOPS}.{module}_shop")
    return Shop(gunicorn(f"{SHOPS}.{module}_routes:app", *THREADS, *options), environment, wishes)


def django(directory: Path, url: URL, *options: str) -> Shop:
    """Django: `transaction.atomic`, nested, and ATOMIC_REQUESTS."""
    environment = _environment(directory, json.dumps(django_database(url)))
    environment["DJANGO_SETTINGS_MODULE"] = f"{DJANGO}.routed_settings"
    _make(directory, environment, "-m", "django", "migrate", "--verbosity", "0")
    command = gunicorn(f"{DJANGO}.wsgi:application", *THREADS, *options)
    return Shop(command, environment, ("fail", "savepoint", "kept", "twice", "request", "async"))


def django_database(url: URL) -> Mapping[str, object]:
    """The entry in DATABASES for a database."""
    if url.get_backend_name() == "sqlite":
        options = {"timeout": 30, "transaction_mode": "IMMEDIATE"}
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": str(url.database), "OPTIONS": options}
    host = str(url.query["host"])
    return {"ENGINE": "django.db.backends.postgresql", "NAME": url.database, "USER": url.username, "HOST": host}


def _sqlalchemy(url: URL) -> str:
    if url.get_backend_name() == "sqlite":
        url = url.update_query_dict({"timeout": "30"})
    return url.render_as_string(hide_password=False)


def _environment(directory: Path, database: str) -> dict[str, str]:
    """Where the database and the store are; the store is made here, with small files."""
    open_store(directory / "store").close()
    return {"SHOP_DATABASE": database, "SHOP_STORE": str(directory / "store")}


def _make(directory: Path, environment: Mapping[str, str], *words: str) -> None:
    """Make the tables, as one would before the first start."""
    path = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), **environment}
    done = subprocess.run(
        [sys.executable, *words], cwd=directory, env=path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
