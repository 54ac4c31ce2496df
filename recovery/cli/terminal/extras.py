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
# Those that come with every installation. Without one the installation is broken: `pip install --no-deps`, say.
REQUIRED = ("numpy", "pyarrow")


def missing_extra(error: ModuleNotFoundError) -> str | None:
    """What to install for a module that is not there, as a sentence; None when neither an extra nor we bring it."""
    module = (error.name or "").partition(".")[0]
    if module in REQUIRED:
        return f"this needs {module}, which comes with checkback: install checkback again, with its dependencies"
    extra = EXTRAS.get(module)
    return f"this needs {module}: install checkback with its extra '{extra}'" if extra is not None else None
