"""### Parked transactions

On demand, for transactions that nobody could answer for: each waits on the page of required actions until a person
decides (`decide`), and what was decided is done at once (`resolve`). Without a form every parked transaction is asked
about, twenty at a time; with a CommitLog offset that one alone. `parked` is red when none is parked there (any more).

- **Commit**: the message is delivered. **Roll back**: it never is. Neither can be taken back.
- **Ask again**: check-back checks it again from now on. **Leave**: it stays parked, as it does when time runs out.

Look first in the application's own database whether the order, the payment, whatever the message is about, is there:
its keys are on the page. The reason is kept in the store with the decision, and so is the name of who decided.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, Param, task_group

from recovery.airflow.approval import DecideOperator, ResolveOperator
from recovery.airflow.operators import ParkedOperator
from recovery.airflow.settings import StoreSettings
from recovery.airflow.workflows.wiring import answering, merged, shared

# A run with a larger number cannot be started (Airflow 3.3.2): MessagePack cannot hold it. Its alert, which the DAG
# processor sends then, ends that for all DAGs, again after each start.
_OFFSETS: dict[str, Any] = {"minimum": 0, "maximum": 2**63 - 1}
ONLY = Param(
    None, type=["null", "integer"], title="CommitLog offset", description="Of one half message; or all.", **_OFFSETS
)


def make(store: StoreSettings, **overrides: Any) -> DAG:
    """The DAG of a store; `overrides` are arguments of `DAG`."""
    wiring = {"schedule": None, "params": {"commitlog_offset": ONLY}, **shared(store, "resolve_parked")}
    with DAG(**merged({"doc_md": __doc__, **wiring}, overrides)) as dag:
        target = store.target()

        @task_group  # type: ignore[untyped-decorator]
        def each(parked: Any) -> None:
            """One transaction."""
            decide = DecideOperator(task_id="decide", parked=parked, **answering(store))
            ResolveOperator(task_id="resolve", parked=parked, answer=decide.output, **target)

        only = "{{ params.commitlog_offset }}"
        each.expand(parked=ParkedOperator(task_id="parked", only=only, **target).output)
    return dag
