"""The connection type `checkback`: a store, its application's ledger, who else is asked, and the policy.

CheckbackHook("shop").store()          the store, open for reading
AIRFLOW_CONN_SHOP='{"conn_type": "checkback", "extra": {"path": "/srv/shop.store"}}'
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook

from recovery.airflow.settings import BadSettings

if TYPE_CHECKING:
    import broker

NAMES = ("path", "catalog", "resolver", "resolvers", "policy")
_JSON = ("resolvers", "policy")


class CheckbackHook(BaseHook):
    """A store, as a connection describes it. The ledger's URL is the connection's password, since it may hold one."""

    conn_name_attr = "checkback_conn_id"
    default_conn_name = "checkback_default"
    conn_type = "checkback"
    hook_name = "checkback store"

    def __init__(self, checkback_conn_id: str = default_conn_name, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.checkback_conn_id = checkback_conn_id
        self._settings: dict[str, Any] | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """What the connection says: path, ledger, catalog, resolver, policy. Raises BadSettings."""
        if self._settings is None:
            self._settings = self._read()
        return self._settings

    @property
    def path(self) -> str:
        """The store's directory."""
        return str(self.settings["path"])

    def store(self) -> broker.Store:
        """The store, open for reading; close it."""
        import broker

        return broker.open(self.path, read_only=True)

    def get_conn(self) -> broker.Store:
        """As Airflow calls `store`."""
        return self.store()

    def test_connection(self) -> tuple[bool, str]:
        """Whether there is a store that can be read, a policy that makes sense, and a ledger that answers."""
        from broker.errors import BrokerError
        from recovery.jobs.tasks import test_store

        try:
            return True, test_store(**self.settings)
        except (BrokerError, OSError) as error:
            return False, str(error)

    def _read(self) -> dict[str, Any]:
        connection = self.get_connection(self.checkback_conn_id)
        extra = connection.extra_dejson
        found = {name: extra.get(name) or None for name in NAMES}
        if not found["path"]:
            text = f"the connection {self.checkback_conn_id} names no store: give it a path, the directory of the store"
            raise BadSettings(text)
        for name in _JSON:
            value = found[name]
            if isinstance(value, str):
                found[name] = self._parsed(name, value)
        return {**found, "ledger": connection.password or None}

    def _parsed(self, name: str, text: str) -> Any:
        """What a field of the form holds as JSON."""
        try:
            return json.loads(text)
        except ValueError as error:
            where = f"{name} of connection {self.checkback_conn_id}"
            raise BadSettings(f'{where} is not JSON ({error}); it looks like {{"*": {{"interval": "30s"}}}}') from None
