"""What check-back makes of a killed process; Django's TestCase, and async views. See transaction_cases.py."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.core.management import call_command
from django.db import connections, transaction
from django.test import TestCase, TransactionTestCase

import broker
from broker.django import open_store
from recovery.checkback.round import CheckBack
from recovery.checkback.service import CheckService
from tests.frameworks.django_shop.announcements import producer
from tests.frameworks.django_shop.messages import LATER_MS, Messages, announced, check_back, in_doubt, order


class CheckBackAnswers(Messages, TransactionTestCase):
    """What a killed process leaves, and what check-back makes of it."""

    def setUp(self) -> None:
        super().setUp()
        producer().ledger.binding(
            open_store().store_id
        )  # outside of any transaction: a database in memory locks tables

    @contextmanager
    def no_end_is_written(self) -> Iterator[None]:
        """As if the process died between COMMIT, or ROLLBACK, and the first end record."""
        service = open_store().transactions
        lost = broker.BrokerError("killed")
        with (
            mock.patch.object(service, "commit", side_effect=lost),
            mock.patch.object(service, "rollback", side_effect=lost),
            self.assertLogs("broker", "WARNING"),
        ):
            yield

    def test_killed_after_commit(self) -> None:
        """The message of a savepoint that was rolled back is not delivered by check-back either."""
        with self.no_end_is_written(), transaction.atomic():
            order("phone")
            with pytest.raises(ZeroDivisionError), transaction.atomic():
                order("gift")
                raise ZeroDivisionError
        assert in_doubt() == 2
        check_back()
        self.check("phone")

    def test_killed_after_rollback(self) -> None:
        with self.no_end_is_written(), pytest.raises(ZeroDivisionError), transaction.atomic():
            order("phone")
            raise ZeroDivisionError
        assert in_doubt() == 1
        check_back()
        self.check()

    def test_the_command_takes_the_database_from_the_settings(self) -> None:
        """manage.py check_back, a minute later; its loop ends after one round here."""
        with self.no_end_is_written(), transaction.atomic():
            order("phone")
        later = mock.patch.object(CheckBack, "now_ms", return_value=time.time_ns() // 1_000_000 + LATER_MS)
        with later, mock.patch.object(CheckService, "run", CheckService.run_once):
            call_command("check_back")
        self.check("phone")

    def test_a_running_transaction_is_not_decided(self) -> None:
        with transaction.atomic():
            order("phone")
            check_back()
            assert in_doubt() == 1
        self.check("phone")


class InTestCase(TestCase):
    """Django's TestCase never commits: the transaction of the whole class is rolled back at its end."""

    @classmethod
    def tearDownClass(cls) -> None:
        super().tearDownClass()
        assert in_doubt() == 0, "a message outlives its test"

    def setUp(self) -> None:
        self.before = announced()

    def test_nothing_is_delivered(self) -> None:
        before = in_doubt()
        with transaction.atomic():
            order("phone")
        assert announced() == self.before
        assert in_doubt() == before + 1

    def test_a_send_outside_atomic_is_not_hidden_by_the_block_of_the_test(self) -> None:
        """It passed in each TestCase, and was refused in production."""
        with pytest.warns(RuntimeWarning, match="anywhere else this is refused"):
            order("phone")

    def test_a_send_that_is_refused_in_the_block_of_the_test_fails_no_other(self) -> None:
        with pytest.raises(broker.TransactionError), pytest.warns(RuntimeWarning):
            producer().send(broker.Message("nowhere", b"x"))

    def test_captured_callbacks_deliver(self) -> None:
        with self.captureOnCommitCallbacks(execute=True), transaction.atomic():
            order("phone")
            with pytest.raises(ZeroDivisionError), transaction.atomic():
                order("gift")
                raise ZeroDivisionError
        assert announced() - self.before == Counter({"phone": 1})


class InAsyncViews(Messages, TransactionTestCase):
    """Django's ORM is synchronous: its transaction is, too."""

    def test_sync_to_async(self) -> None:
        def place() -> None:
            with transaction.atomic():
                order("phone")
            connections.close_all()

        async_to_sync(sync_to_async(place))()
        self.check("phone")
