"""The store that the settings name."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Mapping

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from broker.live import LiveStore, open_live

_lock = threading.Lock()
_stores: dict[str, LiveStore] = {}
_NAMES = {"STORE", "SYNC"}
_SYNC_MODES = ("each", "group", "os")


def open_store() -> LiveStore:
    """The store of `settings.CHECKBACK["STORE"]`, opened once in each process; workers that are forked later share it.

    `CHECKBACK["SYNC"]` is the `sync` of `broker.open`. Raises ImproperlyConfigured for settings that make no sense, and
    what `broker.open` raises.
    """
    chosen = getattr(settings, "CHECKBACK", None)
    if not isinstance(chosen, Mapping) or not isinstance(chosen.get("STORE"), str | os.PathLike):
        raise ImproperlyConfigured('name the store: CHECKBACK = {"STORE": "/var/lib/shop/store"} in the settings')
    if unknown := set(chosen) - _NAMES:
        names = ", ".join(sorted(_NAMES))
        raise ImproperlyConfigured(f"CHECKBACK has no setting {min(map(str, unknown))!r}; the settings are {names}")
    sync = chosen.get("SYNC", "group")
    if sync not in _SYNC_MODES:
        raise ImproperlyConfigured(f'CHECKBACK["SYNC"] is one of {", ".join(_SYNC_MODES)}, not {sync!r}')
    path = os.path.abspath(os.fspath(chosen["STORE"]))
    with _lock:
        store = _stores.get(path)
        if store is None:
            store = _stores[path] = open_live(path, sync=sync)
            atexit.register(store.close)
        return store


os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)
