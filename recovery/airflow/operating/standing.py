"""How the DAGs of a store stand in Airflow's database: paused, not there (yet), waiting for a person.

For the page and `checkback airflow doctor`, which run where that database is; tasks and triggers do not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from recovery.airflow.versions import HAS_APPROVALS


def standing_of(work_of: Mapping[str, Sequence[str]]) -> dict[str, dict[str, Any]]:
    """By store, whose work is given: that of its DAGs that are paused, and of those that Airflow does not know.

    And how many questions are open.
    """
    from airflow.models.dag import DagModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    wanted = [f"{name}.{one}" for name, work in work_of.items() for one in work]
    with create_session() as session:
        query = select(DagModel.dag_id, DagModel.is_paused).where(DagModel.dag_id.in_(wanted), ~DagModel.is_stale)
        found = {dag_id: bool(is_paused) for dag_id, is_paused in session.execute(query).all()}
        asks = _questions(session, wanted) if HAS_APPROVALS else {}
    return {
        name: {
            "paused": [one for one in work if found.get(f"{name}.{one}")],
            "unknown": [one for one in work if f"{name}.{one}" not in found],
            "asks": sum(asks.get(f"{name}.{one}", 0) for one in work),
        }
        for name, work in work_of.items()
    }


def _questions(session: Any, dag_ids: Sequence[str]) -> dict[str, int]:
    """How many questions of each DAG wait for an answer."""
    from airflow.models.hitl import HITLDetail
    from airflow.models.taskinstance import TaskInstance
    from sqlalchemy import func, select

    query = (
        select(TaskInstance.dag_id, func.count())
        .join(HITLDetail, HITLDetail.ti_id == TaskInstance.id)
        .where(TaskInstance.dag_id.in_(dag_ids), HITLDetail.responded_at.is_(None))
        .where(TaskInstance.state.in_(("deferred", "awaiting_input", "running")))
        .group_by(TaskInstance.dag_id)
    )
    return {str(dag_id): int(total) for dag_id, total in session.execute(query).all()}
