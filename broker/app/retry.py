"""What becomes of a message whose handler failed: a policy as a value, and one pure decision."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from broker.consuming.arguments import check_max_retries
from broker.errors import BodyError, BrokerError
from broker.format.topics import DELAYS_MS

_LEVELS_S = tuple(delay_ms / 1000 for delay_ms in DELAYS_MS[2:])  # RocketMQ: 10 s, 30 s, 1 min … 2 h
_DELAY_MAX_S = 30 * 86_400
_REASON_SIZE = 300  # characters, in a property of the dead letter
_NO_COMMIT = "its transaction could not be committed"


@dataclass(frozen=True)
class GiveUp:
    """The message goes to the dead letters of its group, with the reason."""

    reason: str
    """Up to 300 characters, and how often it was tried."""


@dataclass(frozen=True)
class Redeliver:
    """The message is delivered again after a delay in seconds."""

    delay_s: float
    """From 0 to 30 days."""


@dataclass(frozen=True)
class Retry:
    """When a message whose handler raised is delivered again, and when it goes to the dead letters of its group.

        Retry()                                                   # 16 times, after 10 s, 30 s, 1 min … 2 h, as RocketMQ
        Retry(5, delays_s=(1, 10, 60), give_up_on=(ValueError,))
        Retry.exponential(8, first_s=0.5, longest_s=300)

    Raises BrokerError for what is not a policy. RocketMQ: DefaultMQPushConsumer.setMaxReconsumeTimes (5.3.3).
    """

    max_retries: int = 16
    """How often a message is delivered again before it goes to the dead letters; 0: never."""
    delays_s: Sequence[float] = _LEVELS_S
    """Seconds before each retry, each from 0 to 30 days; the last one repeats."""
    retry_on: tuple[type[Exception], ...] = (Exception,)
    """The exceptions that are tried again; every other makes a dead letter at once."""
    give_up_on: tuple[type[Exception], ...] = ()
    """The exceptions that make a dead letter at once, also where `retry_on` has them. A BodyError always does."""

    first: bool = False
    """Whether retries are handed out before messages that are new. A group has it when one of its handlers asks."""

    def __post_init__(self) -> None:
        check_max_retries(self.max_retries)
        delays = self.delays_s
        if not isinstance(delays, list | tuple) or not delays or not all(_is_delay(one) for one in delays):
            raise BrokerError(f"delays_s are numbers of seconds from 0 to {_DELAY_MAX_S}, not {delays!r:.60}")
        if type(self.first) is not bool:
            raise BrokerError(f"first is True or False, not {self.first!r:.60}")
        for name in ("retry_on", "give_up_on"):
            kinds = getattr(self, name)
            if not isinstance(kinds, tuple) or not all(isinstance(k, type) and issubclass(k, Exception) for k in kinds):
                raise BrokerError(f"{name} is a tuple of exception classes, not {kinds!r:.60}")
        object.__setattr__(self, "delays_s", tuple(delays))

    @classmethod
    def exponential(
        cls,
        max_retries: int = 16,
        *,
        first_s: float = 1.0,
        factor: float = 2.0,
        longest_s: float = 7200.0,
        retry_on: tuple[type[Exception], ...] = (Exception,),
        give_up_on: tuple[type[Exception], ...] = (),
        first: bool = False,
    ) -> Retry:
        """A policy with growing delays: `first_s` seconds, then each `factor` times the one before, up to `longest_s`.

        After `max_retries` retries the message goes to the dead letters.
        Raises BrokerError for a time that is not above 0 (to 30 days), a factor below 1 and a `max_retries` below 0.
        """
        is_number = isinstance(cast(object, factor), int | float) and not isinstance(factor, bool)
        is_factor = is_number and 1 <= factor <= sys.float_info.max
        if not _is_delay(first_s) or not _is_delay(longest_s) or not first_s or not is_factor:
            raise BrokerError("first_s and longest_s are seconds above 0, and factor is a number from 1 on")
        check_max_retries(max_retries)
        steps = 1 if factor == 1 else math.ceil(math.log(max(longest_s / first_s, 1), factor)) + 1
        delays = [min(first_s * factor**step, longest_s) for step in range(min(steps, max(max_retries, 1)))]
        return cls(max_retries, delays, retry_on, give_up_on, first)

    def decide(self, error: BaseException | None, retries: int, *, in_commit: bool = False) -> Redeliver | GiveUp:
        """What follows when a handler raised an error and the message was delivered again `retries` times before.

        `in_commit`: the COMMIT failed, with this error or (None) for a reason that is not known, and not the handler,
        which is tried again up to `max_retries` times.
        """
        if isinstance(error, BodyError):
            return GiveUp(str(error)[:_REASON_SIZE])
        if error is not None and not in_commit:
            if isinstance(error, self.give_up_on):
                return GiveUp(reason_of(error))
            if not isinstance(error, self.retry_on):
                return GiveUp(reason_of(error))
        if retries >= self.max_retries:
            return GiveUp(f"{reason_of(error, in_commit=in_commit)} (after {retries} retries)")
        return Redeliver(self.delays_s[min(retries, len(self.delays_s) - 1)])


def _is_delay(value: object) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 <= value <= _DELAY_MAX_S  # type: ignore[operator]


def reason_of(error: BaseException | None, *, in_commit: bool = False) -> str:
    """An error for people, also one whose own text cannot be made; of the COMMIT (`in_commit`), or of the handler."""
    if error is None:
        return _NO_COMMIT
    if in_commit:
        return f"{_NO_COMMIT}: {reason_of(error)}"[:_REASON_SIZE]
    try:
        text = str(error)
    except Exception as failed:  # noqa: BLE001 - __str__ is the application's, too
        text = f"its text cannot be made ({type(failed).__name__})"
    return f"{type(error).__name__}: {text}"[:_REASON_SIZE]
