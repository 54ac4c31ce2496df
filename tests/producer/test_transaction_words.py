"""Statements that MySQL and MariaDB commit before: refused after a send, and in a block that notes a message."""

from __future__ import annotations

import pytest

from broker.enlisting.transaction_words import MYSQL_COMMITS


@pytest.mark.parametrize(
    "statement",
    [
        "create table x (i int)", "DROP  INDEX i ON x", "/* a comment */ ALTER TABLE x ADD y int", "truncate x",
        "ANALYZE TABLE x", "analyze local table x", "OPTIMIZE TABLE x", "CHECK TABLE x", "repair table x",
        "FLUSH TABLES", "RESET QUERY CACHE", "REVOKE ALL ON x FROM y", "SET PASSWORD FOR x = ''", "UNINSTALL PLUGIN x",
        "LOCK TABLE x WRITE", "lock tables x read", "SET NAMES utf8mb4, autocommit=1", "SET @x = 1, @@autocommit = 1",
        "SET autocommit=1", "set session autocommit = 1", "SET @@autocommit=1", "SET @@session.autocommit=1",
    ],
)  # fmt: skip
def test_it_commits(statement: str) -> None:
    assert MYSQL_COMMITS.match(statement)


@pytest.mark.parametrize(
    "statement",
    [
        "create temporary table x (i int)", "ANALYZE SELECT 1", "analyze format=json select 1", "CHECKSUM TABLE x",
        "INSERT INTO flush VALUES (1)", "SET NAMES utf8mb4", "SET @autocommit = 1", "UPDATE x SET analyze_it = 1",
        "SET autocommit=0", "set session autocommit := off", "SET @x = 1, autocommit = 0",
        "SET @x = 'y, autocommit=1'", "LOCK INSTANCE FOR BACKUP", "SET @@session.autocommit = FALSE",
    ],
)  # fmt: skip
def test_it_does_not(statement: str) -> None:
    assert not MYSQL_COMMITS.match(statement)
