"""The plugin: a page inside Airflow's UI. Loaded by each Airflow process, so it imports next to nothing."""

from __future__ import annotations

from typing import Any

from airflow.plugins_manager import AirflowPlugin

PREFIX = "/checkback"


class CheckbackPlugin(AirflowPlugin):
    """Adds `checkback` to the navigation. The page itself is `recovery.airflow.page`."""

    name = "checkback"
    external_views = [
        {
            "name": "checkback",
            "href": f"{PREFIX}/",
            "destination": "nav",
            "category": "browse",
            "url_route": "checkback",
        }
    ]

    @property
    def fastapi_apps(self) -> list[dict[str, Any]]:
        """Built when the API server asks: FastAPI would cost every `airflow` command two seconds."""
        from recovery.airflow.page import make_app

        return [{"app": make_app(), "url_prefix": PREFIX, "name": "checkback"}]
