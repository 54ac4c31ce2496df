"""Looks of the triggerer at stores, in threads: what they log, and what becomes of those that nobody waits for."""

from __future__ import annotations

import asyncio
import gc
import threading
from contextvars import ContextVar

from recovery.airflow.operating.looks import in_a_thread


def test_a_look_logs_for_its_trigger() -> None:
    """Airflow's triggerer finds by a context variable whose log a line belongs to."""
    trigger: ContextVar[str] = ContextVar("trigger")

    async def look() -> str:
        trigger.set("the one that looks")
        return await in_a_thread(trigger.get, "shop.store")

    assert asyncio.run(look()) == "the one that looks"


def test_a_look_that_fails_after_its_trigger_was_cancelled_says_nothing() -> None:
    """asyncio logged the traceback of an error that nobody took."""
    goes_on, said = threading.Event(), []

    def look() -> None:
        goes_on.wait()
        raise OSError("the disk is gone")

    async def watch() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context))
        looking = asyncio.ensure_future(in_a_thread(look, "/srv/gone.store"))
        await asyncio.sleep(0)
        (thread,) = [one for one in threading.enumerate() if one.name == "look at /srv/gone.store"]
        looking.cancel()
        await asyncio.wait([looking])
        goes_on.set()
        await asyncio.to_thread(thread.join)
        await asyncio.sleep(0)

    asyncio.run(watch())
    gc.collect()
    assert not said
