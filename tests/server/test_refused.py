"""What a client asks for and does not get: a code and a sentence, and nothing that it would not expect."""

from __future__ import annotations

import time

import pytest

from broker.format import properties as names
from broker.remoting.codes import ResponseCode as Answer
from tests.server.conftest import Connect, Serve


@pytest.mark.parametrize("delay", [names.DELAY, names.TIMER_DELAY_MS, names.TIMER_DELIVER_MS])
def test_a_message_that_would_take_another_one_back_is_refused(serve: Serve, connect: Connect, delay: str) -> None:
    """A broker of 5.x delivers neither of the two. Here both came, and both had been answered with success."""
    client = connect(serve())
    due = str(time.time_ns() // 1_000_000 + 1000) if delay == names.TIMER_DELIVER_MS else "1"
    assert client.publish("reminders", b"pay", UNIQ_KEY="A1", **{delay: due}).code == Answer.SUCCESS
    taken_back = client.publish("reminders", b"-", UNIQ_KEY="A2", TIMER_DEL_UNIQKEY="reminders+A1", **{delay: due})
    assert taken_back.code == Answer.MESSAGE_ILLEGAL
    expected = "a delayed message cannot be taken back here, and it would take back reminders+A1"
    assert taken_back.remark == expected
    plain = client.publish("reminders", b"no delay: as RocketMQ, a message as any other", TIMER_DEL_UNIQKEY="A1")
    assert plain.code == Answer.SUCCESS
