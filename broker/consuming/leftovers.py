"""What a killed producer left: a record that is published, but not dispatched or not durable.

Those who read finish it, so that no message waits for the next send.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.consuming.reading import readable_end
from broker.store.write.control import Word

if TYPE_CHECKING:
    from broker.live import LiveStore


class Leftovers:
    """Looks now and then whether the log stands still while a part of it cannot be read."""

    def __init__(self, store: LiveStore) -> None:
        self._store = store
        self._lag: tuple[int, int] = (0, 0)

    def finish(self) -> None:
        """Dispatch and fsync what has stood still since the last look. Raises SyncFailed, StoreError."""
        writer = self._store.writer
        lag = writer.control[Word.TAIL], readable_end(self._store)
        if lag[0] > lag[1] and lag == self._lag:
            if writer.control[Word.DISPATCHED] < lag[0]:
                with writer.append_lock:
                    writer.appender.heal()
            writer.settle(lag[0])
        self._lag = lag
