"""What OpenLineage hears of a task: which log it read, what it published, and what a verification found.

OpenLineage's provider asks for it after a task, where it is installed and has a backend; else nothing here is loaded.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from airflow.sdk import Asset

from recovery.airflow.assets import openlineage_dataset

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage
    from openlineage.client.event_v2 import InputDataset


def lineage(path: str, outlets: Sequence[Any], published: Mapping[str, Any]) -> OperatorLineage:
    """The store's CommitLog as input, the assets as outputs. `published`: what the task said on them, may be empty."""
    from airflow.providers.openlineage.extractors import OperatorLineage

    outputs = [openlineage_dataset(asset) for asset in outlets if isinstance(asset, Asset)]
    return OperatorLineage(inputs=[_commitlog(path, published)], outputs=outputs)


def _commitlog(path: str, published: Mapping[str, Any]) -> InputDataset:
    """By OpenLineage's names for files; after a verification its size, and an assertion for each kind of finding."""
    from openlineage.client.event_v2 import InputDataset
    from openlineage.client.facet_v2 import data_quality_assertions_dataset as assertions
    from openlineage.client.facet_v2 import data_quality_metrics_input_dataset as metrics

    parts = urlsplit(path)
    namespace = f"{parts.scheme}://{parts.netloc}" if parts.scheme else "file"
    facets: dict[str, Any] = {}
    if "counts" in published:
        said = [assertions.Assertion(assertion="no findings", success=bool(published["ok"]))]
        said += [assertions.Assertion(assertion=f"no {kind}", success=False) for kind in published["counts"]]
        facets["dataQualityAssertions"] = assertions.DataQualityAssertionsDatasetFacet(assertions=said)
        facets["dataQualityMetrics"] = metrics.DataQualityMetricsInputDatasetFacet(
            columnMetrics={}, rowCount=published["records"], bytes=published["bytes"]
        )
    return InputDataset(namespace=namespace, name=os.path.join(parts.path, "commitlog"), inputFacets=facets)
