"""### Parked transactions

On demand, for transactions that nobody could answer for: each waits on the page of required actions until a person
decides (`decide`), and what was decided is done at once (`resolve`). Without a form every parked transaction is asked
about, twenty at a time; with a CommitLog offset that one alone.

- **Commit**: the message is delivered. **Roll back**: it never is. Neither can be taken back.
- **Ask again**: check-back checks it again from now on. **Leave**: it stays parked, as it does when time runs out.

Look first in the application's own database whether the order, the payment, whatever the message is about, is there:
its keys are on the page. The reason is kept in the store with the decision, and so is the name of who decided.
"""

from airflow.sdk import DAG, Param, task_group

from recovery.airflow.approval import DecideOperator, ResolveOperator
from recovery.airflow.operators import ParkedOperator
from recovery.airflow.settings import stores
from recovery.airflow.wiring import answering, shared

ONLY = Param(None, type=["null", "integer"], title="CommitLog offset", description="Of one half message; or all.")

for store in stores():
    with DAG(schedule=None, doc_md=__doc__, params={"commitlog_offset": ONLY}, **shared(store, "resolve_parked")):
        target = store.target()

        @task_group
        def each(parked, target=target, store=store):
            """One transaction."""
            decide = DecideOperator(task_id="decide", parked=parked, **answering(store))
            ResolveOperator(task_id="resolve", parked=parked, answer=decide.output, **target)

        only = "{{ params.commitlog_offset }}"
        each.expand(parked=ParkedOperator(task_id="parked", only=only, **target).output)
