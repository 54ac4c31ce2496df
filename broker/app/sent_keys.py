"""Send a message once for a business key: a row in the application's database, in the transaction of the send.

    checkback_sent    topic, dedup_key, sent_ms

The row commits and rolls back with the message. Of two transactions that send one key, the second waits for the first,
and sends only if that rolled back.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from broker.database.arguments import sync_session_of
from broker.database.dedup import forget_rows, insert_once, row_count
from broker.database.tables import IN_TRANSACTIONS, key_text, make_tables
from broker.errors import MessageRejected

if TYPE_CHECKING:
    from sqlalchemy import Engine, MetaData, Table

    from broker.database.arguments import SessionOrConnection, SomeSession

_KEY_SIZE = 255


class SentKeys:
    """The table `checkback_sent`."""

    def __init__(self) -> None:
        self.metadata, self.rows = _table()

    def create_all(self, engine: Engine) -> None:
        """Make the table, where it is not there yet; other processes may do so at the same moment."""
        make_tables(self.metadata, engine)

    def first_time(self, session: SomeSession, topic: str, key: str, window_ms: int) -> bool:
        """Note a send in the session's transaction; False when the key was sent to the topic within the window.

        By the wall clock of this machine. Raises MessageRejected for what is not a key or a window, TransactionError
        for what is not a Session.
        """
        check_key(key, window_ms)
        session = sync_session_of(session, "app.send(..., dedup_key=...)", "await app.send_async(...)")
        now_ms, rows = time.time_ns() // 1_000_000, self.rows
        same = (rows.c.topic == topic) & (rows.c.dedup_key == key)
        if insert_once(session, rows, {"topic": topic, "dedup_key": key, "sent_ms": now_ms}):
            return True
        expired = same & (rows.c.sent_ms <= now_ms - window_ms)
        statement = rows.update().where(expired).values(sent_ms=now_ms)
        return row_count(session.execute(statement, execution_options={"preserve_rowcount": True})) == 1

    def forget(self, session: SessionOrConnection, older_than_ms: int) -> int:
        """Remove rows that were written before a time (milliseconds since 1970), and return how many. Commit yourself.

        Raises BrokerError for what is not a time from 0 on, or not a session, and what the database raises.
        """
        return forget_rows(session, self.rows.c.sent_ms, older_than_ms)


def check_key(key: object, window_ms: int) -> None:
    """Raises MessageRejected for what cannot be a key or a window."""
    if not isinstance(key, str) or not key or len(key) > _KEY_SIZE:
        raise MessageRejected(f"a dedup_key is text of 1 to {_KEY_SIZE} characters, not {key!r:.60}")
    if window_ms <= 0:
        raise MessageRejected(f"dedup_window is a time above 0, not {window_ms} ms")


def _table() -> tuple[MetaData, Table]:
    """The table, in a metadata of its own, which Alembic takes in `target_metadata`."""
    from sqlalchemy import BigInteger, Column, Index, MetaData, Table

    metadata = MetaData()
    rows = Table(
        "checkback_sent",
        metadata,
        Column("topic", key_text(255), primary_key=True),
        Column("dedup_key", key_text(_KEY_SIZE), primary_key=True),
        Column("sent_ms", BigInteger, nullable=False),
        Index("checkback_sent_ms", "sent_ms"),
        **IN_TRANSACTIONS,
    )
    return metadata, rows
