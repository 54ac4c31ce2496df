"""Retention: remove what is old enough and nobody needs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from airflow.sdk import Context

from recovery.airflow.arguments import check, is_true
from recovery.airflow.operators.store import StoreOperator, now_ms
from recovery.airflow.versions import AirflowFailException, AirflowSkipException

_PINS_LOGGED = 20


class RetentionOperator(StoreOperator):
    """Remove segments, ledger rows and catalog entries that are old enough and that nobody needs any more."""

    template_fields: Sequence[str] = (
        *StoreOperator.template_fields, "keep", "max_bytes", "free_bytes", "gone_after", "even_unread",
    )  # fmt: skip

    def __init__(
        self,
        *,
        keep: str = "72h",
        max_bytes: str | int | None = None,
        free_bytes: str | int | None = None,
        gone_after: str | None = None,
        even_unread: bool | str = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.keep, self.max_bytes, self.free_bytes = keep, max_bytes, free_bytes
        self.gone_after, self.even_unread = gone_after, even_unread
        check(self, "keep", "max_bytes", "free_bytes", "gone_after", "even_unread")

    def execute(self, context: Context) -> dict[str, Any]:
        """What was removed, what was unread of it, and what pins what could not be.

        Raises AirflowFailException, when all else is done, where a database keeps its ledger rows.
        """
        from recovery.jobs import tasks

        self.leave_crashed(AirflowSkipException)
        limits: dict[str, Any] = {
            "max_bytes": self.max_bytes,
            "free_bytes": self.free_bytes,
            "gone_after": self.gone_after,
        }
        # A run that a scheduler made whose clock was ahead is due in the future: what is young would be old by then.
        when = min(now_ms(context), time.time_ns() // 1_000_000)
        found = tasks.retain(
            **self.settings(), now_ms=when, keep=self.keep, even_unread=is_true(self.even_unread), **limits
        )
        for pin in found["pins"][:_PINS_LOGGED]:
            self.log.warning("segments that are due stay: %s", pin["text"])
        if staying := found["ledger_rows_stay"]:
            text = f"{self.store_path()}: {'; '.join(staying)}. All else was done; the next run tries again"
            raise AirflowFailException(text)
        return found
