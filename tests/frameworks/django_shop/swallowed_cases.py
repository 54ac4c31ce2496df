"""Errors that the application swallows: nothing is saved, and the block says so. See transaction_cases.py."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from typing import Any, cast
from unittest import mock, skipUnless

import pytest
from django.db import DatabaseError, IntegrityError, connection, transaction
from django.test import TransactionTestCase

import broker
from broker.django import open_store
from tests.frameworks.django_shop.announcements import producer
from tests.frameworks.django_shop.messages import Messages, order
from tests.frameworks.django_shop.models import Order

savepoint_create = getattr(transaction, "savepoint_create", None) or transaction.savepoint  # before Django 6.1


class WhatIsSwallowed(Messages, TransactionTestCase):
    """After each of these the order is nowhere, with an error; or where it was taken back on purpose, all else is."""

    def test_a_swallowed_error_of_send_saves_nothing(self) -> None:
        """Of every kind: a wrong topic, a reserved property, no message, a disk that fails, Ctrl-C."""
        rejected = broker.Message("orders", b"x", properties={"CHECKBACK_X": "1"})
        fine, service = broker.Message("orders", b"x"), open_store().transactions
        for message, failure in (
            (broker.Message("nowhere", b"x"), None),
            (rejected, None),
            (cast("broker.Message", "orders"), None),  # send("orders", b"x")
            (fine, broker.SyncFailed("the disk failed")),
            (fine, KeyboardInterrupt()),
        ):
            storing = mock.patch.object(service, "prepare", side_effect=failure, wraps=service.prepare)
            with pytest.raises(broker.TransactionError, match="nothing was saved"), transaction.atomic():
                order("phone")
                with suppress(BaseException), storing:
                    producer().send(message)
            self.check()

    def test_a_swallowed_error_of_a_send_that_names_a_connection_saves_nothing(self) -> None:
        """As SQLAlchemy's sessions are named: Django's transaction is found without that."""
        with pytest.raises(broker.TransactionError, match="nothing was saved"), transaction.atomic():
            order("phone")
            with pytest.raises(broker.TransactionError, match="without a session or a connection"):
                producer().send(broker.Message("orders", b"x"), connection)
        self.check()

    def test_a_swallowed_error_is_raised_again_while_another_one_is_handled(self) -> None:
        """As in a second try: the block ended without an error, and its order was nowhere."""
        with pytest.raises(broker.TransactionError, match="nothing was saved"):
            try:
                raise ZeroDivisionError
            except ZeroDivisionError:
                with transaction.atomic():
                    Order.objects.create(item="phone")
                    with suppress(broker.TransactionError):
                        producer().send(broker.Message("nowhere", b"x"))
        self.check()

    def test_the_error_that_leaves_a_block_is_not_replaced(self) -> None:
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            try:
                raise ZeroDivisionError
            except ZeroDivisionError:
                with suppress(broker.TransactionError):
                    producer().send(broker.Message("nowhere", b"x"))
                raise
        self.check()

    def test_a_swallowed_error_in_an_inner_block_is_raised_at_its_end(self) -> None:
        """As in a view with ATOMIC_REQUESTS: its savepoint went, and the view answered that the order is placed."""

        def inner() -> None:
            with transaction.atomic():
                Order.objects.create(item="phone")
                with suppress(broker.TransactionError):
                    producer().send(broker.Message("nowhere", b"x"))

        refused = r"nothing of the inner transaction.atomic\(\) was saved"
        with pytest.raises(broker.TransactionError, match=refused), transaction.atomic():
            order("gift")
            inner()
        self.check()
        with transaction.atomic():
            order("gift")
            with pytest.raises(broker.TransactionError, match=refused):
                inner()
        self.check("gift")

    def test_a_send_that_may_fail_stands_in_a_block_of_its_own(self) -> None:
        with transaction.atomic():
            order("phone")
            with pytest.raises(broker.TransactionError), transaction.atomic():
                Order.objects.create(item="gift")
                producer().send(broker.Message("nowhere", b"x"))
        self.check("phone")

    def test_a_savepoint_by_hand_takes_a_failed_send_back(self) -> None:
        """Django's idiom: lift the mark, roll back to a known-good state. The next rollback raises nothing."""
        with transaction.atomic():
            order("phone")
            savepoint = savepoint_create()
            with suppress(broker.TransactionError):
                producer().send(broker.Message("nowhere", b"x"))
            transaction.set_rollback(False)
            transaction.savepoint_rollback(savepoint)
        with transaction.atomic():
            order("gift")
            transaction.set_rollback(True)
        self.check("phone")

    def test_a_swallowed_error_is_raised_again_where_a_package_replaced_the_end_of_blocks(self) -> None:
        """As django-cacheops does: the order was nowhere without a word."""
        end = transaction.Atomic.__exit__

        def replaced(block: transaction.Atomic, *error: Any) -> None:
            end(block, *error)

        for outer in (nullcontext(), transaction.atomic()):
            with (
                mock.patch.object(transaction.Atomic, "__exit__", replaced),
                pytest.raises(broker.TransactionError, match="was saved"),
                outer,
                transaction.atomic(),
            ):
                order("phone")
                with suppress(broker.TransactionError):
                    producer().send(broker.Message("nowhere", b"x"))
        self.check()

    def test_a_savepoint_behind_a_failed_send_takes_nothing_back(self) -> None:
        """The order, from before it, was saved alone."""
        with pytest.raises(broker.TransactionError, match="nothing was saved"), transaction.atomic():
            order("phone")
            with suppress(broker.TransactionError):
                producer().send(broker.Message("nowhere", b"x"))
            transaction.set_rollback(False)
            transaction.savepoint_rollback(savepoint_create())
        self.check()

    def test_a_mark_that_was_lifted_without_a_savepoint_saves_nothing(self) -> None:
        """The order was saved alone, outside and inside a block of its own."""
        for inner in (nullcontext(), transaction.atomic(), transaction.atomic(savepoint=False)):
            with pytest.raises(broker.TransactionError, match="nothing was saved"), transaction.atomic():
                order("phone")
                with inner:
                    with suppress(broker.TransactionError):
                        producer().send(broker.Message("nowhere", b"x"))
                    transaction.set_rollback(False)
        with transaction.atomic():
            order("gift")
        self.check("gift")

    def test_a_block_that_is_rolled_back_takes_the_failures_of_the_blocks_inside_with_it(self) -> None:
        with transaction.atomic():
            order("phone")
            with pytest.raises(ZeroDivisionError), transaction.atomic():
                with transaction.atomic():
                    with suppress(broker.TransactionError):
                        producer().send(broker.Message("nowhere", b"x"))
                    transaction.set_rollback(False)
                raise ZeroDivisionError
        self.check("phone")

    @skipUnless(connection.vendor == "sqlite", "another database than SQLite")
    def test_a_swallowed_error_that_rolled_back_before_the_send_saves_nothing(self) -> None:
        """The message was delivered, and the order that had been saved before it was gone."""
        insert = "INSERT OR ROLLBACK INTO orders (id, item) VALUES (1, 'x')"
        with connection.cursor() as cursor:
            cursor.execute(insert)
            with pytest.raises(broker.TransactionError, match="nothing was saved"), transaction.atomic():
                Order.objects.create(item="phone")
                with pytest.raises(IntegrityError):
                    cursor.execute(insert)
                with pytest.raises(broker.TransactionError, match="SQLite rolled the transaction back for an error"):
                    producer().send(broker.Message("orders", b"phone"))
            cursor.execute("DELETE FROM orders WHERE id = 1")
        self.check()

    @skipUnless(connection.vendor == "postgresql", "another database than PostgreSQL")
    def test_a_swallowed_error_of_the_database_saves_nothing(self) -> None:
        """PostgreSQL answers COMMIT with a silent ROLLBACK then; on_commit alone would deliver."""
        heard = []
        with pytest.raises(broker.TransactionError, match="nothing was saved"), transaction.atomic():
            order("phone")
            transaction.on_commit(lambda: heard.append("delivered"))
            with connection.cursor() as cursor:
                try:
                    cursor.execute("SELECT 1 / 0")
                except DatabaseError:
                    pass
        assert heard == []
        self.check()

    @skipUnless(connection.vendor == "postgresql", "another database than PostgreSQL")
    def test_a_send_inside_a_copy_is_refused(self) -> None:
        """psycopg waited for the end of the COPY, which waited for the send."""
        with pytest.raises(broker.TransactionError, match="in the middle of a statement"), transaction.atomic():
            order("phone")
            with connection.cursor() as cursor, cursor.copy("COPY (SELECT 1) TO STDOUT"):
                producer().send(broker.Message("orders", b"x"))
        self.check()
