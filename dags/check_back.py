"""### Check-back

Asks how the transactions in doubt ended: the application's ledger, or the resolver that the store's settings name, and
ends them. Runs every 30 seconds unless the settings say otherwise. One task works through all that are due, in batches;
a pass that finds nothing writes nothing.

**It fails**: the next pass is the retry. Red for minutes: look at the log of `check_back`. Mostly the application's
database does not answer, or the store is locked by a recovery. Transactions wait meanwhile; nothing is lost.

**It is green, and some stay in doubt**: nobody knows how they ended. After the policy's limit they are parked:
trigger `resolve_parked`.
"""

from datetime import timedelta

from airflow.sdk import DAG

from recovery.airflow.operators import CheckBackOperator
from recovery.airflow.settings import stores
from recovery.airflow.wiring import shared

for store in stores():
    # No retries: the next pass comes sooner. A pass that hangs for ten minutes waits for something that never comes.
    wiring = shared(store, "check_back", retries=0, most=timedelta(minutes=10), within=timedelta(minutes=5))
    with DAG(schedule=timedelta(seconds=store.check_back_every_s), doc_md=__doc__, **wiring):
        CheckBackOperator(task_id="check_back", **store.target())
