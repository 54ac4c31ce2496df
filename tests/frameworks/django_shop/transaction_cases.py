"""What a message does in Django's transactions. Django's own test runner runs this: see test_django.py of the room."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import nullcontext, suppress
from unittest import mock, skipUnless

import pytest
from asgiref.sync import async_to_sync
from django.db import DatabaseError, IntegrityError, connection, transaction
from django.test import TransactionTestCase

import broker
from broker.django import DjangoLedger, open_store
from tests.frameworks.django_shop.announcements import producer
from tests.frameworks.django_shop.messages import Messages, announced, check_back, order
from tests.frameworks.django_shop.models import Order

savepoint_create = getattr(transaction, "savepoint_create", None) or transaction.savepoint  # before Django 6.1
on_postgresql = skipUnless(connection.vendor == "postgresql", "another database than PostgreSQL")


class InAtomic(Messages, TransactionTestCase):
    """Blocks of transaction.atomic, as they commit and roll back."""

    def test_commit_delivers(self) -> None:
        with transaction.atomic():
            order("phone")
            assert announced() == self.before
        self.check("phone")

    def test_several_messages_of_two_producers(self) -> None:
        other = open_store().producer("other", topics=["orders"], ledger=DjangoLedger())
        with transaction.atomic():
            order("phone")
            order("cable", other)
            order("case")
        self.check("phone", "cable", "case")

    def test_an_exception_takes_both_back(self) -> None:
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            order("phone")
            raise ZeroDivisionError
        self.check()

    def test_an_exit_of_the_worker_takes_both_back(self) -> None:
        with pytest.raises(SystemExit), transaction.atomic():
            order("phone")
            raise SystemExit
        self.check()

    @skipUnless(connection.vendor == "sqlite", "another database than SQLite")
    def test_an_attached_file_in_wal_mode_is_refused(self) -> None:
        """SQLite would commit it by itself."""
        with tempfile.TemporaryDirectory() as directory, connection.cursor() as cursor:
            cursor.execute("ATTACH %s AS other", [f"{directory}/other.db"])
            cursor.execute("PRAGMA other.journal_mode = wal")
            with pytest.raises(broker.TransactionError, match="commits each file by itself"), transaction.atomic():
                order("phone")
            cursor.execute("DETACH other")
        self.check()

    def test_set_rollback_takes_both_back(self) -> None:
        with transaction.atomic():
            order("phone")
            transaction.set_rollback(True)
        self.check()

    def test_a_savepoint_that_is_released(self) -> None:
        with transaction.atomic():
            order("phone")
            with transaction.atomic():
                order("gift")
        self.check("phone", "gift")

    def test_a_savepoint_that_is_rolled_back_takes_its_message_with_it(self) -> None:
        with transaction.atomic():
            order("phone")
            with pytest.raises(ZeroDivisionError), transaction.atomic():
                order("gift")
                with transaction.atomic():
                    order("ribbon")
                raise ZeroDivisionError
            order("case")
        self.check("phone", "case")

    def test_a_message_before_the_first_savepoint_survives_it(self) -> None:
        with transaction.atomic():
            with pytest.raises(ZeroDivisionError), transaction.atomic():
                order("gift")
                raise ZeroDivisionError
            with transaction.atomic():
                order("phone")
        self.check("phone")

    def test_a_block_without_a_savepoint_takes_all_back(self) -> None:
        with transaction.atomic():
            order("phone")
            with pytest.raises(ZeroDivisionError), transaction.atomic(savepoint=False):
                order("gift")
                raise ZeroDivisionError
        self.check()

    def test_savepoints_by_hand(self) -> None:
        with transaction.atomic():
            order("phone")
            savepoint = savepoint_create()
            order("gift")
            transaction.savepoint_rollback(savepoint)
            savepoint = savepoint_create()
            order("case")
            transaction.savepoint_commit(savepoint)
        self.check("phone", "case")

    def test_savepoints_in_plain_sql(self) -> None:
        with transaction.atomic(), connection.cursor() as cursor:
            order("phone")
            cursor.execute("SAVEPOINT by_hand")
            order("gift")
            cursor.execute("ROLLBACK TO SAVEPOINT by_hand")
        self.check("phone")

    @on_postgresql
    def test_a_connection_that_is_closed_takes_both_back(self) -> None:
        with transaction.atomic():
            order("phone")
            connection.close()
        self.check(doubt=1)
        check_back()
        self.check()


class WhatIsRefused(Messages, TransactionTestCase):
    """Before anything is saved, with a sentence."""

    def test_outside_of_atomic(self) -> None:
        with pytest.raises(
            broker.TransactionError, match=r"no transaction.atomic.. is active on the database 'default'"
        ):
            producer().send(broker.Message("orders", b"phone"))
        self.check()

    def test_manual_transactions(self) -> None:
        transaction.set_autocommit(False)
        try:
            with pytest.raises(broker.TransactionError, match="manual transaction management"), transaction.atomic():
                order("phone")
            transaction.rollback()
        finally:
            transaction.set_autocommit(True)
        self.check()

    def test_an_async_view_without_sync_to_async(self) -> None:
        async def view() -> None:
            producer().send(broker.Message("orders", b"phone"))

        with pytest.raises(broker.TransactionError, match="sync_to_async"):
            async_to_sync(view)()
        self.check()

    def test_send_async(self) -> None:
        async def view() -> None:
            await producer().send_async(broker.Message("orders", b"phone"))

        with pytest.raises(broker.TransactionError, match="sync_to_async"):
            async_to_sync(view)()
        self.check()

    def test_send_async_inside_atomic(self) -> None:
        """Refused at the call, whether somebody awaits it or not; swallowed, the order is not saved without it."""
        with pytest.raises(broker.TransactionError, match=r"call producer.send\(message\)"), transaction.atomic():
            Order.objects.create(item="phone")
            producer().send_async(broker.Message("orders", b"phone"))
        self.check()
        with pytest.raises(broker.TransactionError, match="nothing was saved"), transaction.atomic():
            Order.objects.create(item="phone")
            with suppress(broker.TransactionError):
                producer().send_async(broker.Message("orders", b"phone"))
        self.check()

    def test_a_missing_table(self) -> None:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE checkback_ledger RENAME TO aside")
        try:
            with pytest.raises(broker.TransactionError, match=r"manage.py migrate checkback"), transaction.atomic():
                order("phone")
        finally:
            with connection.cursor() as cursor:
                cursor.execute("ALTER TABLE aside RENAME TO checkback_ledger")
        self.check()

    @on_postgresql
    def test_a_table_that_takes_no_row(self) -> None:
        """The send raised: 'NoneType' object is not subscriptable."""
        with connection.cursor() as cursor:
            cursor.execute(
                "CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';"
                "CREATE TRIGGER nothing BEFORE INSERT ON checkback_ledger FOR EACH ROW EXECUTE FUNCTION nothing()"
            )
        try:
            with pytest.raises(broker.TransactionError, match="a trigger or a rule"), transaction.atomic():
                order("phone")
        finally:
            with connection.cursor() as cursor:
                cursor.execute("DROP FUNCTION nothing() CASCADE")
        self.check()

    @on_postgresql
    def test_a_search_path_that_leads_to_another_ledger(self) -> None:
        """Of a tenant: check-back would find no row, and roll the message of a saved order back."""
        with connection.cursor() as cursor:
            cursor.execute("CREATE SCHEMA tenant")
            cursor.execute("CREATE TABLE tenant.checkback_ledger (LIKE checkback_ledger INCLUDING ALL)")
            cursor.execute("CREATE ROLE tenant SUPERUSER")  # whose schema it is, by `"$user"`
        try:
            for setting, refused in (
                ("search_path = tenant, public", "'tenant, public'"),
                ("role = tenant", "role or search_path leads to the table"),
                ("search_path = public, tenant", ""),
            ):
                expected = pytest.raises(broker.TransactionError, match=refused) if refused else nullcontext()
                with expected, transaction.atomic():
                    with connection.cursor() as cursor:
                        cursor.execute(f"SET LOCAL {setting}")
                    order("phone")
        finally:
            with connection.cursor() as cursor:
                cursor.execute("DROP SCHEMA tenant CASCADE")
                cursor.execute("DROP ROLE tenant")
        self.check("phone")

    @on_postgresql
    def test_a_search_path_that_is_set_behind_the_send_moves_no_row(self) -> None:
        with connection.cursor() as cursor:
            cursor.execute("CREATE SCHEMA tenant")
            cursor.execute("CREATE TABLE tenant.checkback_ledger (LIKE checkback_ledger INCLUDING ALL)")
        try:
            with transaction.atomic(), connection.cursor() as cursor:
                order("phone")
                cursor.execute("SET LOCAL search_path = tenant, public")
        finally:
            with connection.cursor() as cursor:
                cursor.execute("DROP SCHEMA tenant CASCADE")
        self.check("phone")

    def test_another_database_than_the_one_it_was_made_for(self) -> None:
        elsewhere = os.path.join(tempfile.mkdtemp(), "elsewhere")  # SQLite makes a file that is not there
        self.addCleanup(shutil.rmtree, os.path.dirname(elsewhere))
        with mock.patch.dict(connection.settings_dict, NAME=elsewhere):
            ledger = DjangoLedger()
        other = open_store().producer("other", topics=["orders"], ledger=ledger)
        with pytest.raises(broker.TransactionError, match=f"made for '{elsewhere}'"), transaction.atomic():
            order("phone", other)
        self.check()


class AtCommit(Messages, TransactionTestCase):
    """Between the last statement and the end records."""

    def setUp(self) -> None:
        super().setUp()
        foreign_key = "REFERENCES orders (id) DEFERRABLE INITIALLY DEFERRED"
        with connection.cursor() as cursor:
            cursor.execute(f"CREATE TABLE deliveries (order_id BIGINT {foreign_key})")

    def tearDown(self) -> None:
        with connection.cursor() as cursor:
            cursor.execute("DROP TABLE deliveries")
        super().tearDown()

    def deliver_nothing(self) -> None:
        """What the database finds out at COMMIT."""
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO deliveries VALUES (999999)")

    def test_a_deferred_constraint_fails_at_commit(self) -> None:
        with pytest.raises(IntegrityError), transaction.atomic():
            order("phone")
            self.deliver_nothing()
        self.check()

    def test_a_callback_that_raises_stops_no_message(self) -> None:
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            transaction.on_commit(lambda: 1 / 0)
            order("phone")
        self.check("phone")

    def test_a_commit_in_plain_sql_decides(self) -> None:
        expected = pytest.raises((ZeroDivisionError, DatabaseError))
        with self.assertLogs("broker", "ERROR"), expected, transaction.atomic():
            order("phone")
            with connection.cursor() as cursor:
                cursor.execute("COMMIT")
            raise ZeroDivisionError
        connection.close()
        self.check("phone")

    def test_the_next_transaction_begins_empty(self) -> None:
        with pytest.raises(IntegrityError), transaction.atomic():
            order("phone")
            self.deliver_nothing()
        with transaction.atomic():
            order("case")
        with transaction.atomic():
            Order.objects.create(item="unannounced")
        Order.objects.filter(item="unannounced").delete()
        self.check("case")
