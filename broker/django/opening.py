"""The store, or the cluster, that the settings name."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from broker.cluster.live_cluster import LiveCluster, connect
from broker.cluster.network.settings import SCHEME
from broker.live import LiveStore, open_live
from broker.store.writer import SYNC_MODES

_lock = threading.Lock()
_stores: dict[str, LiveStore] = {}
_clusters: dict[tuple[str, int], LiveCluster] = {}  # by process: a connection does not survive a fork
_OF_STORES, _OF_CLUSTERS = {"SYNC"}, {"ACL", "TLS"}


def open_store() -> LiveStore | LiveCluster:
    """The store of `settings.CHECKBACK["STORE"]`, opened once in each process; workers that are forked later share it.

    Where it is the URL of a cluster, `rocketmq://...`, each process connects to that. `CHECKBACK["SYNC"]` is the `sync`
    of `broker.open`, `CHECKBACK["ACL"]` and `["TLS"]` are the `acl` and `tls` of `broker.connect`. Raises
    ImproperlyConfigured for settings that make no sense, and what `broker.open` and `broker.connect` raise.
    """
    chosen = getattr(settings, "CHECKBACK", None)
    if not isinstance(chosen, Mapping) or not isinstance(chosen.get("STORE"), str | os.PathLike):
        raise ImproperlyConfigured('name the store: CHECKBACK = {"STORE": "/var/lib/shop/store"} in the settings')
    place = os.fspath(chosen["STORE"])
    is_cluster = place.startswith(SCHEME)
    known = {"STORE", *(_OF_CLUSTERS if is_cluster else _OF_STORES)}
    if unknown := set(chosen) - known:
        names, what = ", ".join(sorted(known)), "a cluster" if is_cluster else "a store"
        text = f"CHECKBACK has no setting {min(map(str, unknown))!r} for {what}; the settings are {names}"
        raise ImproperlyConfigured(text)
    with _lock:
        return _connected(place, chosen) if is_cluster else _opened(os.path.abspath(place), chosen)


def _opened(path: str, chosen: Mapping[str, Any]) -> LiveStore:
    sync = chosen.get("SYNC", "group")
    if sync not in SYNC_MODES:
        raise ImproperlyConfigured(f'CHECKBACK["SYNC"] is one of {", ".join(SYNC_MODES)}, not {sync!r}')
    store = _stores.get(path)
    if store is None:
        store = _stores[path] = open_live(path, sync=sync)
        atexit.register(store.close)
    return store


def _connected(url: str, chosen: Mapping[str, Any]) -> LiveCluster:
    key = url, os.getpid()
    cluster = _clusters.get(key)
    if cluster is None:
        cluster = _clusters[key] = connect(url, acl=chosen.get("ACL"), tls=chosen.get("TLS"))
        atexit.register(cluster.close)
    return cluster


os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)
