"""The retry policy: a value, and one pure decision; and the reason that a dead letter keeps."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

import broker
from broker.app.retry import GiveUp, Redeliver
from broker.errors import BodyError, BrokerError
from broker.live import LiveStore
from broker.message import ReceivedMessage
from broker.testing.fixtures import SMALL, temporary_store
from recovery.views.dead_letters import dead_letters, resend
from tests.app.shop import until

ERROR = ValueError("no")


def test_rocketmqs_delays_are_the_default() -> None:
    """As a consumer's own: 10 s, 30 s, 1 min … 2 h, sixteen times."""
    policy = broker.Retry()
    decided = [policy.decide(ERROR, retries) for retries in range(17)]
    assert decided[:3] == [Redeliver(10), Redeliver(30), Redeliver(60)]
    assert decided[15] == Redeliver(7200)
    assert decided[16] == GiveUp("ValueError: no (after 16 retries)")


def test_exponential_delays_end_at_the_longest() -> None:
    policy = broker.Retry.exponential(6, first_s=0.5, factor=3, longest_s=10)
    delays = [policy.decide(ERROR, retries) for retries in range(6)]
    assert delays == [Redeliver(one) for one in (0.5, 1.5, 4.5, 10, 10, 10)]
    assert broker.Retry.exponential(2, first_s=5, factor=1).delays_s == (5,)
    assert broker.Retry.exponential(3, first_s=1, longest_s=3600).delays_s == (1, 2, 4)
    assert isinstance(broker.Retry.exponential(0).decide(ERROR, 0), GiveUp)


def test_which_errors_are_retried() -> None:
    policy = broker.Retry(3, delays_s=(1,), retry_on=(OSError,), give_up_on=(FileNotFoundError,))
    assert policy.decide(TimeoutError("slow"), 0) == Redeliver(1)
    assert policy.decide(FileNotFoundError("gone"), 0) == GiveUp("FileNotFoundError: gone")
    assert policy.decide(ERROR, 0) == GiveUp("ValueError: no")
    assert policy.decide(BodyError("body is a list"), 0) == GiveUp("body is a list")
    assert policy.decide(None, 0, in_commit=True) == Redeliver(1), "a COMMIT that failed is not the handler's fault"
    assert policy.decide(FileNotFoundError("gone"), 0, in_commit=True) == Redeliver(1)
    assert policy.decide(None, 3, in_commit=True) == GiveUp("its transaction could not be committed (after 3 retries)")


@pytest.mark.parametrize(
    "arguments",
    [
        {"max_retries": -1}, {"max_retries": True}, {"delays_s": ()}, {"delays_s": (-1,)}, {"delays_s": "10"},
        {"delays_s": (float("nan"),)}, {"delays_s": (1e9,)}, {"retry_on": ValueError}, {"give_up_on": ("ValueError",)},
        {"give_up_on": (KeyboardInterrupt,)},
    ],
)  # fmt: skip
def test_what_is_not_a_policy_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(BrokerError, match=next(iter(arguments))):
        broker.Retry(**arguments)


@pytest.mark.parametrize("arguments", [{"first_s": 0}, {"factor": 0.5}, {"longest_s": -1}, {"factor": float("nan")}])
def test_what_does_not_grow_is_refused(arguments: dict[str, float]) -> None:
    with pytest.raises(BrokerError, match="first_s and longest_s are seconds"):
        broker.Retry.exponential(**arguments)  # type: ignore[arg-type]


def give_up(store: LiveStore, message: broker.Message, reason: str, group: str = "billing") -> str:
    """Why the newest dead letter says it was given up."""
    store.append(message)
    with store.consumer(group, message.topic) as consumer:
        received = consumer.receive(20)
        assert received is not None
        assert consumer.retry(received, -1, reason=reason)
    return list(dead_letters(store, group))[-1].why


def test_any_reason_is_kept_as_far_as_it_can_be() -> None:
    with temporary_store() as store:
        assert give_up(store, broker.Message("orders", b"1"), "line\none\x01\x02 \ud800 größer") == "line one größer"
        assert give_up(store, broker.Message("orders", b"2"), "x" * 9999) == "x" * 500
        assert give_up(store, broker.Message("orders", b"3"), "\x00") == ""
        full = broker.Message("orders", b"4", properties={"a": "x" * 32_200})
        assert give_up(store, full, "y" * 500) == "", "a record without room for it is a dead letter all the same"
        assert len(resend(store, "billing")) == 4
        with store.consumer("billing", "orders") as consumer:
            for _ in range(4):
                message = consumer.receive(20)
                assert message is not None
                assert "CHECKBACK_WHY" not in message.properties
                consumer.ack(message)


def test_handlers_of_dead_letters_pass_over_what_they_do_not_select(tmp_path: Path) -> None:
    """Of another tag: it states the topic that it had, but was not sent back in this group."""
    alerts = list[str]()
    with broker.App(tmp_path / "shop.store", layout=SMALL, sync="os") as app:
        for group, tag in itertools.product(("billing", "bank"), ("dull", "urgent")):
            give_up(app.store, broker.Message(group, b"a", tag=tag), "", group)

        def alert(message: ReceivedMessage) -> None:
            alerts.append(message.topic)

        for group in ("billing", "bank"):
            app.on(f"%DLQ%{group}", group="alerts", tags="urgent")(alert)
        with app.workers() as workers:
            until(lambda: workers.handled == 4)
        assert list(dead_letters(app.store, "alerts")) == []
    assert sorted(alerts) == ["%DLQ%bank", "%DLQ%billing"]
