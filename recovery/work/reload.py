"""Whether the source files of an application changed, for `--reload`."""

from __future__ import annotations

import os
from collections.abc import Iterator

_FILES_MAX = 20_000
_LEFT_OUT = {"__pycache__", "node_modules", "site-packages", "build", "dist"}


class SourceFiles:
    """The Python files below a directory, and when each was changed."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._known = self._times()

    def changed(self) -> str | None:
        """A file that was changed, added or removed since the last call; None when none was."""
        times = self._times()
        known, self._known = self._known, times
        for path in sorted(times.keys() | known.keys()):
            if times.get(path) != known.get(path):
                return os.path.relpath(path, self._directory)
        return None

    def _times(self) -> dict[str, int]:
        found = {}
        for path in self._paths():
            try:
                found[path] = os.stat(path).st_mtime_ns
            except OSError:
                continue
            if len(found) >= _FILES_MAX:
                break
        return found

    def _paths(self) -> Iterator[str]:
        for place, directories, files in os.walk(self._directory):
            directories[:] = [
                name for name in directories
                if not name.startswith(".") and name not in _LEFT_OUT
                and not os.path.exists(os.path.join(place, name, "pyvenv.cfg"))
            ]  # fmt: skip
            yield from (os.path.join(place, name) for name in files if name.endswith(".py"))
