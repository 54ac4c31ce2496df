"""Rounds of check-back over the network, one at a time: what counts as a check, and what does not."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

import broker
from broker.errors import TransactionError
from broker.remoting.codes import RequestCode
from broker.remoting.command import RemotingCommand
from broker.server.connection import Connection
from broker.server.requests.ends import ProducerChecks
from broker.transaction.service import Half
from tests.server.conftest import Connect, Serve


def test_a_check_that_its_producer_did_not_take_is_not_counted(
    serve: Serve, connect: Connect, store: broker.LiveStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot know: counted, a producer that hangs would have its transactions parked."""
    taken: list[bool] = [False, False, True]
    monkeypatch.setattr(ProducerChecks, "_is_taken", lambda *_: taken.pop(0))
    server = serve(check_max=1, check_interval_s=3600, transaction_timeout_s=0.001)
    client = connect(server)
    client.publish("orders", b"created", sys_flag=4, TRAN_MSG="true", PGROUP="shop", UNIQ_KEY="U-1")
    client.heartbeat(producer="shop")
    assert [server._checks.round() for _ in range(4)] == [0, 0, 1, 0]
    assert len(store.transactions.parked()) == 1
    assert not taken


def test_what_ended_is_not_remembered(
    serve: Serve, connect: Connect, store: broker.LiveStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither how often it was checked nor that it could not be: a server runs for months."""
    server = serve(check_max=9, check_interval_s=3600, transaction_timeout_s=0.001)
    client = connect(server)
    client.heartbeat(producer="shop")
    checks, turn = server._checks, ProducerChecks._turn

    def fails_at_first(self: ProducerChecks, half: Half) -> bool:
        if half.commitlog_offset == offsets[0]:
            raise TransactionError("its record has no room")
        return turn(self, half)

    monkeypatch.setattr(ProducerChecks, "_turn", fails_at_first)
    for key in ("U-1", "U-2"):
        client.publish("orders", b"created", sys_flag=4, TRAN_MSG="true", PGROUP="shop", UNIQ_KEY=key)
    halves = list(store.transactions.in_doubt())
    offsets = [half.commitlog_offset for half in halves]
    assert checks.round() == 1
    assert (checks._failed, list(server.context.checks)) == ({offsets[0]}, [offsets[1]])
    for half in halves:
        store.transactions.rollback(half)
    assert checks.round() == 0
    assert (checks._failed, server.context.checks) == (set(), {})


def test_what_the_event_loop_took_at_the_last_moment_was_sent() -> None:
    """Counted as not sent, the producer's next check would be one more than it may have."""
    connection: Any = Connection.__new__(Connection)

    def take(_offer: object, _command: object, taken: Future[bool]) -> None:
        assert taken.set_running_or_notify_cancel()
        threading.Timer(0.02, taken.set_result, (True,)).start()

    connection._loop = SimpleNamespace(call_soon_threadsafe=take)
    assert connection.offer(RemotingCommand(RequestCode.CHECK_TRANSACTION_STATE), 0.0)
    connection._loop = SimpleNamespace(call_soon_threadsafe=lambda *_: None)
    assert not connection.offer(RemotingCommand(RequestCode.CHECK_TRANSACTION_STATE), 0.0)
