"""Statements that MySQL and MariaDB commit before: refused after a send, and in a block that notes a message."""

from __future__ import annotations

import pytest

from broker.enlisting.transaction_words import ending


@pytest.mark.parametrize(
    "statement",
    [
        "create table x (i int)", "DROP  INDEX i ON x", "/* a comment */ ALTER TABLE x ADD y int", "truncate x",
        "ANALYZE TABLE x", "analyze local table x", "OPTIMIZE TABLE x", "CHECK TABLE x", "repair table x",
        "FLUSH TABLES", "RESET QUERY CACHE", "REVOKE ALL ON x FROM y", "SET PASSWORD FOR x = ''", "UNINSTALL PLUGIN x",
        "LOCK TABLE x WRITE", "lock tables x read", "SET NAMES utf8mb4, autocommit=1", "SET @x = 1, @@autocommit = 1",
        "CREATE TEMPORARY SEQUENCE x", "CREATE OR REPLACE TABLE x (i int)",
        "SET autocommit=1", "set session autocommit = 1", "SET @@autocommit=1", "SET @@session.autocommit=1",
        "SET DEFAULT ROLE NONE", "CHECK VIEW x", "repair view x", "BACKUP STAGE START", "# why\nALTER TABLE x ADD y",
        "BEGIN", "begin work", "BEGIN /* or not */ NOT ATOMIC SELECT 1; END",
        "/*! COMMIT */", "/*M!100100 COMMIT */", "/*!50000 DROP TABLE x */",
        "EXECUTE IMMEDIATE 'COMMIT'", 'execute immediate "/* why */ truncate x"',
        "SET STATEMENT max_statement_time=1 FOR COMMIT", "/*! SET STATEMENT a=1, b=2 FOR DROP TABLE x */",
    ],
)  # fmt: skip
def test_it_commits(statement: str) -> None:
    assert ending("mariadb", statement)
    assert not ending("postgresql", statement)


@pytest.mark.parametrize(
    "statement",
    [
        "create temporary table x (i int)", "CREATE OR REPLACE TEMPORARY TABLE x (i int)", "DROP  TEMPORARY TABLE x",
        "ANALYZE SELECT 1", "analyze format=json select 1", "CHECKSUM TABLE x",
        "INSERT INTO flush VALUES (1)", "SET NAMES utf8mb4", "SET @autocommit = 1", "UPDATE x SET analyze_it = 1",
        "SET autocommit=0", "set session autocommit := off", "SET @x = 1, autocommit = 0",
        "SET @x = 'y, autocommit=1'", "LOCK INSTANCE FOR BACKUP", "SET @@session.autocommit = FALSE",
        "DROP PREPARE x", "/*! SELECT */ 1",
        "EXECUTE IMMEDIATE 'SELECT 1'", "BEGIN NOT ATOMIC UPDATE x SET y = 1; END", "/* why */ begin  not atomic END",
        "SET STATEMENT max_statement_time=1 FOR SELECT 'x' FOR UPDATE", "/* COMMIT */ SELECT 1",
    ],
)  # fmt: skip
def test_it_does_not(statement: str) -> None:
    assert not ending("mariadb", statement)


@pytest.mark.parametrize("dialect", ["sqlite", "postgresql", "mariadb"])
def test_it_ends_everywhere(dialect: str) -> None:
    for statement in ("-- why\ncommit", "/* why */ END", "ROLLBACK", "SAVEPOINT mine", "ROLLBACK TO mine"):
        assert ending(dialect, statement)
    for statement in (
        "SAVEPOINT sa_savepoint_1",
        "ROLLBACK TO SAVEPOINT sa_savepoint_1",
        "SELECT 'COMMIT'",
        "committed()",
    ):
        assert not ending(dialect, statement)
