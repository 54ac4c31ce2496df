"""What handlers need of the application that they belong to."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Protocol

from broker.app.bodies import TopicBody
from broker.app.handlers import HandlerGroup
from broker.database.dedup import Processed

if TYPE_CHECKING:
    from sqlalchemy import Engine
    from sqlalchemy.ext.asyncio import AsyncEngine

    from broker.live import LiveStore


class HandlerHost(Protocol):
    """An application, as its workers see it: `broker.App`."""

    engine: Engine | None
    async_engine: AsyncEngine | None
    processed: Processed

    @property
    def store(self) -> LiveStore: ...
    @property
    def groups(self) -> list[HandlerGroup]: ...
    def start(self) -> object: ...
    def body_of(self, topic: str) -> TopicBody: ...
    def entered(self, session: Any) -> contextlib.AbstractContextManager[None]: ...
