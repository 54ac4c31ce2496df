"""Looks of the triggerer at stores, in threads: what they log, and what becomes of those that nobody waits for."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar

from recovery.airflow.operating.looks import in_a_thread


def test_a_look_logs_for_its_trigger() -> None:
    """Airflow's triggerer finds by a context variable whose log a line belongs to."""
    trigger: ContextVar[str] = ContextVar("trigger")

    async def look() -> str:
        trigger.set("the one that looks")
        return await in_a_thread(trigger.get, "shop.store")

    assert asyncio.run(look()) == "the one that looks"
