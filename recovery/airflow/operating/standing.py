"""How the DAGs of a store stand in Airflow's database: paused, not there (yet), waiting for a person.

For the page and `checkback airflow doctor`, which run where that database is; tasks and triggers do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from recovery.airflow.versions import HAS_APPROVALS

WORK = ("check_back", "verify_store", "rebuild_state_table", "recover_after_crash", "resolve_parked", "retention")


def standing_of(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """By store: the work of its DAGs that are paused, and of those that Airflow does not know; open questions."""
    from airflow.models.dag import DagModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    wanted = [f"{name}.{work}" for name in names for work in WORK]
    with create_session() as session:
        query = select(DagModel.dag_id, DagModel.is_paused).where(DagModel.dag_id.in_(wanted), ~DagModel.is_stale)
        found = {dag_id: bool(is_paused) for dag_id, is_paused in session.execute(query).all()}
        asks = _questions(session, wanted) if HAS_APPROVALS else {}
    return {
        name: {
            "paused": [work for work in WORK if found.get(f"{name}.{work}")],
            "unknown": [work for work in WORK if f"{name}.{work}" not in found],
            "asks": sum(asks.get(f"{name}.{work}", 0) for work in WORK),
        }
        for name in names
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
