"""What becomes of a message whose handler failed: a policy as a value, and one pure decision."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from broker.consuming.redelivery import DELAYS_MS
from broker.errors import BodyError, BrokerError

_LEVELS_S = tuple(delay_ms / 1000 for delay_ms in DELAYS_MS[2:])  # RocketMQ: 10 s, 30 s, 1 min … 2 h
_DELAY_MAX_S = 30 * 86_400
_REASON_SIZE = 300  # characters, in a property of the dead letter


@dataclass(frozen=True)
class GiveUp:
    """The message goes to the dead letters of its group, with the reason."""

    reason: str


@dataclass(frozen=True)
class Redeliver:
    """The message is delivered again after a delay in seconds."""

    delay_s: float


@dataclass(frozen=True)
class Retry:
    """When a message whose handler raised is delivered again, and when it goes to the dead letters of its group.

        Retry()                                                   # 16 times, after 10 s, 30 s, 1 min … 2 h, as RocketMQ
        Retry(5, delays_s=(1, 10, 60), give_up_on=(ValueError,))
        Retry.exponential(8, first_s=0.5, longest_s=300)

    `delays_s` is the delay before each retry; the last one repeats. An exception in `give_up_on` makes a dead letter at
    once; with `retry_on`, so does every exception that is not in it. Raises BrokerError for what is not a
    policy.
    """

    max_retries: int = 16
    delays_s: Sequence[float] = _LEVELS_S
    retry_on: tuple[type[Exception], ...] = (Exception,)
    give_up_on: tuple[type[Exception], ...] = ()

    def __post_init__(self) -> None:
        if type(self.max_retries) is not int or self.max_retries < 0:
            raise BrokerError(f"max_retries is a whole number from 0 on, not {self.max_retries!r:.60}")
        delays = self.delays_s
        if not isinstance(delays, list | tuple) or not delays or not all(_is_delay(one) for one in delays):
            raise BrokerError(f"delays_s are numbers of seconds from 0 to {_DELAY_MAX_S}, not {delays!r:.60}")
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
    ) -> Retry:
        """Delays that grow: `first_s`, then each `factor` times the one before, up to `longest_s`."""
        if not _is_delay(first_s) or not _is_delay(longest_s) or not first_s or not factor >= 1:
            raise BrokerError("first_s and longest_s are seconds above 0, and factor is 1 or more")
        steps = 1 if factor == 1 else math.ceil(math.log(max(longest_s / first_s, 1), factor)) + 1
        delays = [min(first_s * factor**step, longest_s) for step in range(min(steps, max(max_retries, 1)))]
        return cls(max_retries, delays, retry_on, give_up_on)

    def decide(self, error: BaseException | None, retries: int) -> Redeliver | GiveUp:
        """What follows when a handler raised an error and the message was delivered again `retries` times before.

        Without an error the transaction failed and not the handler: that is always tried again.
        """
        if isinstance(error, BodyError):
            return GiveUp(str(error)[:_REASON_SIZE])
        if error is not None:
            if isinstance(error, self.give_up_on):
                return GiveUp(_reason(error))
            if not isinstance(error, self.retry_on):
                return GiveUp(_reason(error))
        if retries >= self.max_retries:
            return GiveUp(f"{_reason(error)} (after {retries} retries)")
        return Redeliver(self.delays_s[min(retries, len(self.delays_s) - 1)])


def _is_delay(value: object) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 <= value <= _DELAY_MAX_S  # type: ignore[operator]


def _reason(error: BaseException | None) -> str:
    if error is None:
        return "its transaction could not be committed"
    return f"{type(error).__name__}: {error}"[:_REASON_SIZE]
