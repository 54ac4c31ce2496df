"""Looks at stores that are given up when a store's disk does not answer: the page and the doctor go on to the others.

    seen = within_time(path, lambda: overview(path, now_ms()))

Nothing ends a thread that waits for a disk. So a store is not looked at again before the look that hangs comes back:
each page asks every few seconds, and would take all threads of its server, in Airflow those of the API server.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from broker.errors import StoreError

WITHIN_S = 10.0

T = TypeVar("T")
_hanging: dict[str, Future[object]] = {}


class DoesNotAnswer(StoreError):
    """A look at a store did not come back in time."""


def within_time(path: str, look: Callable[[], T]) -> T:
    """What a look at the store at `path` returns or raises. Raises DoesNotAnswer when it takes over `WITHIN_S`."""
    before = _hanging.get(path)
    if before is not None and not before.done():
        raise _hangs(path)
    answer: Future[T] = Future()
    threading.Thread(target=_work, args=(look, answer), name=f"look at {path}", daemon=True).start()
    try:
        return answer.result(WITHIN_S)
    except TimeoutError:
        if answer.done():  # the look's own
            raise
        _hanging[path] = answer  # type: ignore[assignment]  # only whether it is done
        raise _hangs(path) from None


def _work(look: Callable[[], T], answer: Future[T]) -> None:
    try:
        answer.set_result(look())
    except BaseException as error:  # noqa: BLE001 - it goes to who waits
        answer.set_exception(error)


def _hangs(path: str) -> DoesNotAnswer:
    text = f"it does not answer within {WITHIN_S:g} s, so its disk hangs or is very slow"
    step = "See whether `ls` there comes back; until it does, nothing can be said about this store"
    return DoesNotAnswer(f"{path}: {text}. {step}", path=path)
