"""What Airflow reads about this package: the entry point `apache_airflow_provider`."""

from __future__ import annotations

from typing import Any

_TEXT = {"type": ["string", "null"]}


def get_provider_info() -> dict[str, Any]:
    """The provider's description, in the words of Airflow's `provider_info.schema.json`. Loads nothing."""
    return {
        "package-name": "checkback",
        "name": "checkback",
        "description": "Check-back, recovery, rebuild and verification of stores of transactional messages.",
        "integrations": [{"integration-name": "checkback", "external-doc-url": "https://rocketmq.apache.org/"}],
        "operators": [
            _modules("recovery.airflow.operators", "recovery.airflow.approval", "recovery.airflow.operating.sight")
        ],
        "sensors": [_modules("recovery.airflow.sensors")],
        "hooks": [_modules("recovery.airflow.hook")],
        "triggers": [_modules("recovery.airflow.triggers", "recovery.airflow.operating.sight")],
        "extra-links": [
            f"recovery.airflow.operating.links.{name}"
            for name in ("StorePageLink", "ReportLink", "SparkUiLink", "HalfMessageLink")
        ],
        "plugins": [{"name": "checkback", "plugin-class": "recovery.airflow.plugin.CheckbackPlugin"}],
        "bundles": [_modules("recovery.airflow.bundle")],
        "connection-types": [_connection_type()],
        "notifications": ["recovery.airflow.alerts.StoreAlert", "recovery.airflow.alerts.ApprovalAlert"],
        "asset-uris": [
            {
                "schemes": ["checkback"],
                "handler": "recovery.airflow.assets.sanitize_uri",
                "factory": "recovery.airflow.assets.create_asset",
                "to_openlineage_converter": "recovery.airflow.assets.openlineage_dataset",
            }
        ],
        "queues": ["recovery.airflow.queues.CheckbackMessageQueueProvider"],
        "config": {"checkback": _configuration()},
    }


def _modules(*names: str) -> dict[str, Any]:
    return {"integration-name": "checkback", "python-modules": list(names)}


def _connection_type() -> dict[str, Any]:
    """A store as a connection: the form that Airflow shows for it."""
    return {
        "connection-type": "checkback",
        "hook-class-name": "recovery.airflow.hook.CheckbackHook",
        "hook-name": "checkback store",
        "ui-field-behaviour": {
            "hidden-fields": ["login", "port", "schema", "host", "extra"],
            "relabeling": {"password": "Ledger URL"},
            "placeholders": {
                "password": "postgresql+psycopg://shop@db/shop (SQLAlchemy; kept secret)",
                "extra__checkback__path": "/srv/shop.store",
            },
        },
        "conn-fields": {
            "path": {"label": "Store path", "schema": _TEXT, "description": "The directory of the store."},
            "catalog": {"label": "Catalog URL", "schema": _TEXT, "description": "Where attempts are counted."},
            "resolver": {
                "label": "Resolver",
                "schema": _TEXT,
                "description": "Who is asked without a ledger: package.module:function, or an http(s) URL.",
            },
            "resolvers": {
                "label": "Resolvers (JSON)",
                "schema": _TEXT,
                "description": 'By producer group: {"shop": {"ledger": "…"}, "billing": {"http": "…"}}',
            },
            "policy": {
                "label": "Policy (JSON)",
                "schema": _TEXT,
                "description": 'When to ask, by topic: {"*": {"interval": "30s", "at_limit": "park"}}',
            },
        },
    }


def _configuration() -> dict[str, Any]:
    stores = {
        "description": "The stores to look after: the path of a TOML file, or JSON itself. See docs/airflow.md.",
        "version_added": None,
        "type": "string",
        "example": "/etc/checkback/stores.toml",
        "default": "",
    }
    return {"description": "Stores of transactional messages (checkback).", "options": {"stores": stores}}
