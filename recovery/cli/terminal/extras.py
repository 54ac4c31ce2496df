"""Which extra of this distribution brings a module that is not installed: `checkback[sql]` brings SQLAlchemy."""

from __future__ import annotations

# The modules that an extra brings and that this project imports by name. `fast` is not here: nothing needs it.
EXTRAS = {
    "sqlalchemy": "sql",
    "greenlet": "sql",
    "tenacity": "sql",
    "httpx": "http",
    "pyspark": "spark",
    "airflow": "airflow",
    "rocksdict": "rocksdb",
    "starlette": "page",
    "uvicorn": "page",
    "opentelemetry": "telemetry",
}


def missing_extra(error: ModuleNotFoundError) -> str | None:
    """What to install for a module that is not there, as a sentence; None when no extra brings it."""
    module = (error.name or "").partition(".")[0]
    extra = EXTRAS.get(module)
    return f"this needs {module}: install checkback with its extra '{extra}'" if extra is not None else None
