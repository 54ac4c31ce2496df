"""What the adapter makes of Django's settings, and its migrations. Django's own test runner runs this."""

from __future__ import annotations

import tempfile
from pathlib import Path
from unittest import mock, skipUnless

import pytest
from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.db import connection, connections, transaction
from django.test import SimpleTestCase, TransactionTestCase, override_settings
from sqlalchemy import inspect, make_url

import broker
from broker.django import DjangoLedger, open_store

POSTGRESQL = {
    "ENGINE": "django.db.backends.postgresql",
    "NAME": "shop",
    "USER": "clerk",
    "PASSWORD": "p@ss/word",
    "HOST": "db.example",
    "PORT": "6432",
    "OPTIONS": {"sslmode": "require", "isolation_level": 2, "pool": True, "options": "-c search_path=eu"},
}


class TheStore(SimpleTestCase):
    """settings.CHECKBACK."""

    def test_one_store_for_the_process(self) -> None:
        assert open_store() is open_store()

    def test_settings_that_make_no_sense(self) -> None:
        for chosen, sentence in (
            (None, r"name the store: CHECKBACK = \{"),
            ({}, "name the store"),
            ({"STORE": 7}, "name the store"),
            ({"STORE": "x", "SINK": "group"}, "no setting 'SINK' for a store; the settings are STORE, SYNC"),
            ({"STORE": "x", "TLS": True}, "no setting 'TLS' for a store; the settings are STORE, SYNC"),
            ({"STORE": "rocketmq://a:1", "SYNC": "os"}, "for a cluster; the settings are ACL, STORE, TLS"),
            ({"STORE": "x", "SYNC": "never"}, "is one of each, group, os, not 'never'"),
        ):
            with override_settings(CHECKBACK=chosen), pytest.raises(ImproperlyConfigured, match=sentence):
                open_store()


class TheCluster(TransactionTestCase):
    """settings.CHECKBACK["STORE"] is a URL."""

    def test_a_message_joins_the_transaction(self) -> None:
        with (
            tempfile.TemporaryDirectory() as directory,
            broker.open(Path(directory) / "store", sync="os", layout=broker.StoreLayout.small()) as store,
            broker.serve(store, "127.0.0.1:0") as server,
            override_settings(CHECKBACK={"STORE": f"rocketmq://{server.address}"}),
            open_store() as cluster,
        ):
            assert open_store() is cluster
            producer = cluster.producer("shop", topics=["orders"], ledger=DjangoLedger())
            with transaction.atomic():
                producer.send(broker.Message("orders", b"kept"))
            with pytest.raises(LookupError), transaction.atomic():
                producer.send(broker.Message("orders", b"dropped"))
                raise LookupError
            with cluster.consumer("billing", "orders") as consumer:
                message = consumer.receive(5.0)
                assert message is not None
                assert message.body == b"kept"
                consumer.ack(message)
                assert consumer.receive(1.0) is None


class TheDatabase(SimpleTestCase):
    """Where check-back connects to: the alias's own settings."""

    def test_postgresql(self) -> None:
        with mock.patch.dict(connections.settings, there={**connections.settings["default"], **POSTGRESQL}):
            ledger = DjangoLedger("there")
            del connections["there"]
        expected = make_url("postgresql+psycopg://clerk:p%40ss%2Fword@db.example:6432/shop")
        assert ledger.engine.url == expected
        with (
            mock.patch("psycopg.connect", side_effect=broker.BrokerError) as connect,
            pytest.raises(broker.BrokerError),
        ):
            ledger.engine.connect()
        assert connect.call_args.kwargs.items() >= {"sslmode": "require", "options": "-c search_path=eu"}.items()
        assert not {"isolation_level", "pool"} & connect.call_args.kwargs.keys()

    def test_another_database(self) -> None:
        refused = pytest.raises(broker.TransactionError, match="takes postgresql and sqlite, not oracle")
        with mock.patch.object(connection, "vendor", "oracle"), refused:
            DjangoLedger()

    @skipUnless(connection.vendor == "sqlite", "another database than SQLite")
    def test_sqlite_in_memory_is_for_tests_only(self) -> None:
        refused = pytest.raises(broker.BrokerError, match="lives longer than a process")
        with mock.patch.dict(connection.settings_dict, NAME=":memory:"), refused:
            DjangoLedger()


class TheTables(TransactionTestCase):
    """What `manage.py migrate` made, against what `Ledger.create_all` makes."""

    def test_the_migrations_make_the_tables_of_the_ledger(self) -> None:
        """In each database: all tables, with the same columns and keys."""
        ledger = DjangoLedger()
        seen = inspect(ledger.engine)
        for table in ledger.metadata.sorted_tables:
            columns = {column["name"]: column for column in seen.get_columns(table.name)}
            assert list(columns) == [column.name for column in table.columns]
            assert {name: one["nullable"] for name, one in columns.items()} == {
                column.name: column.nullable for column in table.columns
            }
            assert {name: str(one["type"]) for name, one in columns.items()} == {
                column.name: str(column.type.compile(ledger.engine.dialect)) for column in table.columns
            }
            key = seen.get_pk_constraint(table.name)["constrained_columns"]
            assert key == [column.name for column in table.primary_key]
            assert seen.get_indexes(table.name) == []

    def test_nothing_is_left_to_migrate(self) -> None:
        call_command("makemigrations", "--check", "--dry-run", verbosity=0)
        assert apps.get_app_config("checkback").name == "broker.django"

    def test_tables_that_create_all_made_are_taken_over(self) -> None:
        DjangoLedger().create_all()
        with connection.schema_editor() as editor:
            from broker.django.ledger_tables import create_statements

            for statement in create_statements("default", ("checkback_ledger", "checkback_ledger_mark")):
                editor.execute(statement)
