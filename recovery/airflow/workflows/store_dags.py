"""The DAGs of one store in a DAG file of your own, where arguments of DAGs can be changed.

from recovery.airflow.workflows.store_dags import StoreDags

StoreDags("shop", path="/srv/shop.store", ledger_connection="shop_db",
          dags={"verify_store": {"schedule": "0 3 * * *"}}, only=["check_back", "verify_store"])
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from airflow.sdk import DAG

from recovery.airflow.settings import BadSettings, StoreSettings, one_store, stores
from recovery.airflow.versions import HAS_APPROVALS
from recovery.airflow.workflows import (
    check_back,
    rebuild_state_table,
    recover_after_crash,
    resolve_parked,
    retention,
    verify_store,
)

WORKFLOWS = {
    "check_back": check_back.make,
    "recover_after_crash": recover_after_crash.make,
    "rebuild_state_table": rebuild_state_table.make,
    "verify_store": verify_store.make,
    "retention": retention.make,
    **({"resolve_parked": resolve_parked.make} if HAS_APPROVALS else {}),
}


class StoreDags(Mapping[str, DAG]):
    """The DAGs of a store, by their work. Give it a name at module level: Airflow collects what a file makes.

    `settings` are those of a table in the file of stores; without any the table with this name is taken. `dags` has
    arguments of `DAG` for single DAGs, of `default_args` and `params` those that change, and `only` the DAGs that are
    made. Do not make a DAG here and by the bundle: both would have one name. Raises BadSettings.
    """

    def __init__(
        self,
        name: str,
        *,
        dags: Mapping[str, Mapping[str, Any]] | None = None,
        only: Collection[str] | None = None,
        **settings: Any,
    ) -> None:
        _check_kinds(name, dags, only)
        store = one_store(name, settings, f"StoreDags({name!r})") if settings else _configured(name)
        for work in (*(dags or {}), *(only or ())):
            if work not in WORKFLOWS:
                raise BadSettings(f"StoreDags({name!r}): there is no DAG {work!r}; there are {', '.join(WORKFLOWS)}")
        if missing := [work for work in only or () if work not in store.work]:
            raise BadSettings(f"StoreDags({name!r}): a copy has no DAG {missing[0]!r}: nothing writes to it")
        chosen = [work for work in WORKFLOWS if work in store.work and (only is None or work in only)]
        self._dags = {work: _made(store, work, (dags or {}).get(work, {})) for work in chosen}

    def __getitem__(self, work: str) -> DAG:
        return self._dags[work]

    def __iter__(self) -> Iterator[str]:
        return iter(self._dags)

    def __len__(self) -> int:
        return len(self._dags)


def _check_kinds(name: object, dags: object, only: object) -> None:
    """Raises BadSettings; Python takes a text in the place of a list for its characters."""
    if not isinstance(name, str):
        raise BadSettings(f"StoreDags({name!r:.40}): the first argument is the store's name, a text")
    if isinstance(only, str) or not isinstance(only, Collection | None):
        raise BadSettings(f"StoreDags({name!r}): only is a list of DAGs, as only=['verify_store'], not {only!r:.40}")
    kinds = [dags, *dags.values()] if isinstance(dags, Mapping) else [dags] if dags is not None else []
    if wrong := [one for one in kinds if not isinstance(one, Mapping)]:
        text = "dags has arguments of DAG for single DAGs, as dags={'verify_store': {'schedule': '0 3 * * *'}}"
        raise BadSettings(f"StoreDags({name!r}): {text}, not {wrong[0]!r:.40}")


def _made(store: StoreSettings, work: str, overrides: Mapping[str, Any]) -> DAG:
    try:
        return WORKFLOWS[work](store, **overrides)
    except (TypeError, ValueError) as error:  # Airflow's, of an argument that DAG does not know, or not so
        raise BadSettings(f"StoreDags({store.name!r}): dags[{work!r}] cannot be used: {error}") from error


def _configured(name: str) -> StoreSettings:
    for store in stores():
        if store.name == name:
            return store
    raise BadSettings(f"StoreDags({name!r}): the setting [checkback] stores has no such table; give path=... here")
