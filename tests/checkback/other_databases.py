"""Databases beside the application's, and tables of the ledger in them."""

from __future__ import annotations

import itertools
from pathlib import Path

from sqlalchemy import URL, Engine, create_engine, insert, make_url, select, text

from broker.ledger import Ledger

numbers = itertools.count()  # for names that are free


def shown(url: URL) -> str:
    return url.render_as_string(hide_password=False)


def another(url: URL, tmp_path: Path) -> URL:
    """An empty database beside the application's."""
    name = f"other{next(numbers)}"
    if url.get_backend_name() == "sqlite":
        return make_url(f"sqlite:///{tmp_path / name}.db")
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    engine.dispose()
    return url.set(database=name)


def tables_in(url: URL, schema: str | None = None) -> Ledger:
    ledger = Ledger(create_engine(url), schema=schema)
    ledger.create_all()
    return ledger


def restore(source: Engine, target: Ledger) -> None:
    """What a dump and its restoring do: the same rows in other tables."""
    plain = Ledger(source)
    with source.connect() as reading, target.engine.begin() as writing:
        for name in ("rows", "marks", "bindings"):
            found = [dict(row) for row in reading.execute(select(getattr(plain, name))).mappings()]
            if found:
                writing.execute(insert(getattr(target, name)), found)
    target.engine.dispose()
