"""The DAGs of this distribution as a bundle: an installed Airflow gets them by one setting, with no path in it.

AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST='[{"name": "checkback", "kwargs": {},
    "classpath": "recovery.airflow.bundle.CheckbackDagBundle"}]'

Keep your own entry ("dags-directory") in that list beside it.
"""

from __future__ import annotations

from pathlib import Path

from airflow.dag_processing.bundles.base import BaseDagBundle

HERE = Path(__file__).resolve().parent


def dags_folder() -> Path:
    """Where the DAG files lie: installed, beside this module; in a source tree, in its top-level directory `dags`."""
    installed = HERE / "dags"
    return installed if installed.is_dir() else HERE.parents[1] / "dags"


class CheckbackDagBundle(BaseDagBundle):
    """Without versions: what is installed is what runs, and pip says which version that is."""

    @property
    def path(self) -> Path:
        """The directory that Airflow parses."""
        return dags_folder()

    def get_current_version(self) -> None:
        """None: see the class."""

    def refresh(self) -> None:
        """Nothing to do: an upgrade of the distribution changes the files in place."""
