"""Which statements of SQL end a transaction, or a part of it, by their first words."""

from __future__ import annotations

import re

_COMMENTS = r"(?:\s|--[^\n]*\n|/\*.*?\*/)*"
ENDS = re.compile(  # with a savepoint that SQLAlchemy did not set: its own have names of one kind
    _COMMENTS + r"(?:COMMIT|END|ABORT|PREPARE\s+TRANSACTION|SAVEPOINT(?!\s+\W?sa_savepoint_)"
    r"|ROLLBACK(?!\s+(?:WORK\s+|TRANSACTION\s+)?TO\s+(?:SAVEPOINT\s+)?\W?sa_savepoint_))\b",
    re.IGNORECASE | re.DOTALL,
)
MYSQL_COMMITS = re.compile(  # statements that MySQL and MariaDB commit before
    _COMMENTS
    + r"(?:BEGIN|START\s+TRANSACTION|(?:CREATE|DROP)\s+(?!TEMPORARY)|ALTER|TRUNCATE|RENAME|LOCK\s+TABLES?|GRANT|REVOKE"
    r"|FLUSH|RESET|(?:UN)?INSTALL|(?:ANALYZE|CHECK|OPTIMIZE|REPAIR)\s+(?:(?:LOCAL|NO_WRITE_TO_BINLOG)\s+)?TABLES?"
    r"|SET\s+(?:PASSWORD|(?:[^'\"`]*,\s*)?"
    r"(?:@@)?(?:(?:LOCAL|SESSION)[\s.]\s*)?AUTOCOMMIT(?!\s*:?=\s*(?:0|OFF|FALSE)\b)))\b",
    re.IGNORECASE | re.DOTALL,
)
IN_PARTS = re.compile(
    _COMMENTS + r"(?:SAVEPOINT|ROLLBACK\s+(?:WORK\s+|TRANSACTION\s+)?TO)\b", re.IGNORECASE | re.DOTALL
)
