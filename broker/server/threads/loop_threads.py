"""The threads of a server that run as long as it does: all of them, or none."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping


class LoopThreads:
    """Threads that end by themselves once `is_stopping` is set."""

    def __init__(self, is_stopping: threading.Event, loops: Mapping[str, Callable[[], None]]) -> None:
        """Start one for each of `loops`, by its name. Where the system has none to give, those that run are ended."""
        self._is_stopping = is_stopping
        self._started: list[threading.Thread] = []
        try:
            for name, loop in loops.items():
                thread = threading.Thread(target=loop, name=f"checkback-serve-{name}", daemon=True)
                thread.start()
                self._started.append(thread)
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """Have them stop, and wait until they did."""
        self._is_stopping.set()
        for thread in self._started:
            thread.join()
