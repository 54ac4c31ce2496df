"""A watcher's trigger without a triggerer: its events, and the state that Airflow keeps of its asset."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import BaseEventTrigger

FAST_S = 0.02


class AssetState:
    """Airflow's state of an asset, which outlives the triggerer."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}

    async def aget(self, key: str) -> Any:
        return self.values.get(key)

    async def aset(self, key: str, value: Any) -> None:
        self.values[key] = json.loads(json.dumps(value))


async def first(events: AsyncIterator[Any], within_s: float = 10.0) -> dict[str, Any]:
    """The payload of the next event."""
    event = await asyncio.wait_for(anext(events), within_s)
    return dict(event.payload)


def noted_by(trigger: BaseEventTrigger, state: Any) -> asyncio.Event:
    """Give a watcher a state; set when it has written there."""
    trigger.asset_state_store = state
    is_noted, remember = asyncio.Event(), trigger._remember  # type: ignore[attr-defined]

    async def noting(what: dict[str, Any]) -> None:
        await remember(what)
        is_noted.set()

    trigger._remember = noting  # type: ignore[attr-defined]
    return is_noted


async def goes_on(events: AsyncIterator[Any], is_noted: asyncio.Event) -> None:
    """Until it has noted what it knows."""
    going_on = asyncio.ensure_future(anext(events))  # type: ignore[arg-type]
    await asyncio.wait_for(is_noted.wait(), 10.0)
    going_on.cancel()


async def told(trigger: BaseEventTrigger, state: Any) -> dict[str, Any]:
    """What a watcher with that state tells at its start, and has noted."""
    is_noted, events = noted_by(trigger, state), trigger.run()
    found = await first(events)
    if not is_noted.is_set():  # the triggerer takes the event, and goes on
        await goes_on(events, is_noted)
    return found


async def begins(trigger: BaseEventTrigger, state: Any) -> None:
    """A watcher that was never there before."""
    is_noted = noted_by(trigger, state)
    await goes_on(trigger.run(), is_noted)


async def tells_nothing(trigger: BaseEventTrigger, state: Any) -> bool:
    """Whether a watcher with that state tells nothing at its start."""
    trigger.asset_state_store = state
    with contextlib.suppress(asyncio.TimeoutError):
        await first(trigger.run(), 10 * FAST_S)
        return False
    return True
