"""Operators: each does one kind of work on one store, by a function of `recovery.jobs.tasks`.

    VerifyOperator(task_id="verify", path="/srv/shop.store")
    CheckBackOperator(task_id="check_back", connection="shop")      # path, ledger, policy from the connection

The result is JSON, small enough for XCom. `now` is the time at which the run was due, so a retry asks the same.
"""

from __future__ import annotations

from recovery.airflow.operators.check_back import CheckBackOperator as CheckBackOperator
from recovery.airflow.operators.check_back import ParkedOperator as ParkedOperator
from recovery.airflow.operators.rebuilding import CompareTableOperator as CompareTableOperator
from recovery.airflow.operators.rebuilding import RebuildOperator as RebuildOperator
from recovery.airflow.operators.recovering import InOrderOperator as InOrderOperator
from recovery.airflow.operators.recovering import PlanRecoveryOperator as PlanRecoveryOperator
from recovery.airflow.operators.recovering import RecoverOperator as RecoverOperator
from recovery.airflow.operators.retention import RetentionOperator as RetentionOperator
from recovery.airflow.operators.store import StoreOperator as StoreOperator
from recovery.airflow.operators.verification import NoFindingsOperator as NoFindingsOperator
from recovery.airflow.operators.verification import VerifyOperator as VerifyOperator
