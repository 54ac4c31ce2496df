"""What a user of Django reads when something is missing or wrong: it speaks of Django, and is no traceback."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.checkback.shop import open_store
from tests.frameworks.shop_kinds import DJANGO
from tests.house.tree import ROOT

PATIENCE_S = 60.0

SEND = """
import django
django.setup()
import broker
from broker.django import DjangoLedger, open_store
from django.core.management import call_command
from django.db import connection, connections, transaction
from tests.frameworks.django_shop.models import Order
import sys

using, message = sys.argv[1], broker.Message("orders", b"phone")
producer = open_store().producer("shop", topics=["orders"], ledger=DjangoLedger(using))

def told(work):
    try:
        with transaction.atomic(using):
            work()
    except broker.TransactionError as error:
        print(error)

told(lambda: producer.send(message))
call_command("migrate", verbosity=0, database=using)
producer = open_store().producer("shop", topics=["orders"], ledger=DjangoLedger(using))

def save_and_send(target):
    Order.objects.using(using).create(item="phone")
    try:
        producer.send(message, target)
    except broker.TransactionError as error:
        print(error)

told(lambda: save_and_send(connections[using]))
told(lambda: save_and_send(connections[using].cursor()))
told(lambda: save_and_send(connection))
told(lambda: producer.begin_transaction(connections[using]))
told(lambda: producer.send(message))
print("saved", Order.objects.using(using).count())
"""


@pytest.fixture
def environment(tmp_path: Path) -> Mapping[str, str]:
    """The settings of the shop on Django, whose database has no tables yet."""
    open_store(tmp_path / "store").close()
    database = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path / "shop.db")}
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "DJANGO_SETTINGS_MODULE": f"{DJANGO}.settings",
        "SHOP_DATABASE": json.dumps(database),
        "SHOP_STORE": str(tmp_path / "store"),
    }


def test_what_is_missing_or_wrong_is_said_in_djangos_words(environment: Mapping[str, str]) -> None:
    command = [sys.executable, "-c", SEND, "default"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].endswith("Are its tables there? They are made by manage.py migrate checkback")
    joins = "with a DjangoLedger a message joins transaction.atomic() without a session or a connection"
    failed = "nothing was saved: a message could not be sent, and its error was swallowed"
    for refused, swallowed in (lines[1:3], lines[3:5], lines[5:7]):
        assert refused == f"{joins}: producer.send(message) inside it"
        assert swallowed.startswith(failed)
    assert lines[7].endswith("there is none to begin: producer.send(message) inside it")
    assert lines[8:] == ["saved 0"]  # the last send is accepted


def test_ctrl_c_ends_the_command_in_one_line(environment: Mapping[str, str]) -> None:
    manage = [sys.executable, "-m", "django"]
    subprocess.run([*manage, "migrate"], env=environment, capture_output=True, check=True)
    command = [*manage, "check_back"]
    traced = {**environment, "PYTHONFAULTHANDLER": "1"}
    with subprocess.Popen(command, env=traced, stderr=subprocess.PIPE, text=True) as running:
        lock, started = Path(environment["SHOP_STORE"]) / "checkback", time.monotonic()
        while not list(lock.glob("leader-*.lock")):  # it has begun its first round
            assert running.poll() is None
            assert time.monotonic() - started < PATIENCE_S
            time.sleep(0.05)
        time.sleep(0.5)
        running.send_signal(signal.SIGINT)
        try:
            _, said = running.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            running.send_signal(signal.SIGABRT)
            pytest.fail(f"it goes on:\n{running.communicate()[1]}")  # with what each thread is at
    assert (running.returncode, said) == (130, "Interrupted.\n")
