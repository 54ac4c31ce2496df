"""One statement of SQL with its values, for any driver: what the ledger asks of a database without SQLAlchemy.

Values are named `:name` in the text. SQLite and SQLAlchemy take that as it is, psycopg does not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

MYSQL_DIALECTS = ("mysql", "mariadb")
"""SQLAlchemy's names of the two that speak MySQL's protocol."""
_NAME = re.compile(r"(?<!:):([a-z_]+)")


class Sql(NamedTuple):
    """A statement, and the values of its `:names`."""

    text: str
    values: Mapping[str, Any] = {}


def pyformat(text: str) -> str:
    """The text for a driver that writes `%(name)s`: psycopg."""
    return _NAME.sub(r"%(\1)s", text.replace("%", "%%"))


def quoted(name: str) -> str:
    """A name as standard SQL quotes it; SQLite and PostgreSQL do."""
    return '"{}"'.format(name.replace('"', '""'))
