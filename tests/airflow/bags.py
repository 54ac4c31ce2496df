"""Airflow's DagBag and the JSON of a DAG, which have moved between versions."""

from __future__ import annotations

try:
    from airflow.dag_processing.dagbag import DagBag as DagBag
except ModuleNotFoundError:
    from airflow.models.dagbag import DagBag as DagBag

try:
    from airflow.serialization.serialized_objects import DagSerialization as DagSerialization
except ImportError:
    from airflow.serialization.serialized_objects import SerializedDAG as DagSerialization

__all__ = ["DagBag", "DagSerialization"]
