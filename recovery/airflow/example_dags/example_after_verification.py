"""Starts when a store was verified, and prints what was found: an Airflow DAG that follows an asset."""

from typing import Any

from airflow.sdk import DAG, Asset, task

with DAG("example_after_verification", schedule=[Asset("checkback://shop/verified")], tags=["example"]):

    @task
    def summarize(triggering_asset_events: Any) -> None:
        """The findings by kind, and where the whole report is."""
        (event,) = [event for events in triggering_asset_events.values() for event in events]
        print(event.extra["counts"], event.extra["report"])

    summarize()
