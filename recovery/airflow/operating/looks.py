"""Looks at stores from the triggerer's event loop, each in a thread of its own.

    found = await in_a_thread(partial(crashed, path), path)

A look at a store whose disk hangs does not come back. Of the threads that asyncio has for everybody, six where there
are two processors, three such stores took all: no other store was looked at, and other people's triggers waited, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import TypeVar

AT_ONCE = 8  # looks, but for those that hang: each costs milliseconds of a processor
HANGS_S = 10.0  # after so long a look has its turn no more

T = TypeVar("T")
_log = logging.getLogger(__name__)
_turns: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = weakref.WeakKeyDictionary()


async def in_a_thread(look: Callable[[], T], path: str) -> T:
    """What a look at the store at `path` returns or raises, however long it takes; the others have their turn."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()
    try:
        async with _turns.setdefault(loop, asyncio.Semaphore(AT_ONCE)):
            work = partial(contextvars.copy_context().run, _work, look, answer, loop)
            # A daemon: one that hangs would keep the triggerer from ending.
            threading.Thread(target=work, name=f"look at {path}", daemon=True).start()
            await asyncio.wait([answer], timeout=HANGS_S)
        if not answer.done():
            _log.warning("%s: a look at it takes more than %g s: does its disk hang? It is waited for", path, HANGS_S)
        return await answer
    finally:
        answer.cancel()  # of a trigger that was cancelled: asyncio logs an error that nobody takes


def _work(look: Callable[[], T], answer: asyncio.Future[T], loop: asyncio.AbstractEventLoop) -> None:
    try:
        value = look()
    except BaseException as error:  # noqa: BLE001 - it goes to who waits
        _tell(loop, answer, answer.set_exception, error)
    else:
        _tell(loop, answer, answer.set_result, value)


def _tell(loop: asyncio.AbstractEventLoop, answer: asyncio.Future[T], tell: Callable[..., None], said: object) -> None:
    """Nobody hears of it where the trigger, or the triggerer, has ended meanwhile."""
    with contextlib.suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(lambda: None if answer.done() else tell(said))
