"""What every ledger is to a producer, whichever library reads and writes its rows: a database that a store is bound to.

Ledger              by SQLAlchemy: sessions and connections
DjangoLedger        by Django: the connection of an alias
ConnectionLedger    by the driver alone: connections of sqlite3 and psycopg
"""

from __future__ import annotations

import abc
import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from broker.database.ledger_binding import Binding, KnownLedgers, Transaction, bind
from broker.database.ledger_identity import DatabaseIdentity, Execute, Observed
from broker.errors import BrokerError, TransactionError
from broker.log_fields import event
from broker.transaction.events import TransactionState

if TYPE_CHECKING:
    from broker.enlisting.enlistment import JoinableTransaction

_log = logging.getLogger("broker")

COMMITTED, ROLLED_BACK = int(TransactionState.COMMITTED), int(TransactionState.ROLLED_BACK)
_NO_PERMISSION = ("permission denied", "command denied", "row-level security")  # of PostgreSQL, MySQL, PostgreSQL


class BoundLedger(abc.ABC):
    """A ledger's table in the application's database, bound to the stores whose transactions it settles.

    An application makes it, and calls `create_all`; producers and check-back call the rest.
    """

    making_tables: str = "ledger.create_all()"
    """What makes the tables, for sentences that name the next step."""

    def __init__(self) -> None:
        self._bound: dict[str, Binding] = {}  # by store id
        self._known: dict[str, KnownLedgers] = {}

    def __reduce__(self) -> NoReturn:
        step = "make it in the process that uses it, as where its module is imported"
        raise BrokerError(f"a ledger is not copied and goes to no other process, nor what holds it, {self!r}: {step}")

    @property
    @abc.abstractmethod
    def dialect(self) -> str:
        """The kind of database, as SQLAlchemy names it: sqlite, postgresql, mysql, mariadb."""

    @property
    @abc.abstractmethod
    def bindings_name(self) -> str:
        """The table of the bindings as SQL names it."""

    @property
    @abc.abstractmethod
    def table(self) -> str:
        """The plain name of the ledger's table."""

    @property
    def identities(self) -> list[DatabaseIdentity]:
        """What the database said of itself when it was bound, for each store."""
        return [binding.identity for binding in self._bound.values()]

    @abc.abstractmethod
    def look(self, execute: Execute) -> Observed:
        """Which database this is: its identity as JSON can hold it, read by `execute(Sql)` on a connection."""

    @abc.abstractmethod
    def create_all(self) -> None:
        """Make the tables, where they are not there yet; other processes may do so at the same moment.

        Raises what the database raises, TransactionError when the database is another one than it was.
        """

    @abc.abstractmethod
    def bind(self, store_id: str, known: KnownLedgers) -> None:
        """Bind a store and this database to each other, or verify that they are, before the first half message.

        `known` is where the store remembers it. A database that cannot be asked now, or only in an event loop, is asked
        before the first transaction. `store_id`: 32 hexadecimal digits. Raises TransactionError when the database is
        another one than it was, StoreError for a file of the store that is damaged.
        """

    @abc.abstractmethod
    def binding(self, store_id: str) -> Binding:
        """The binding of a store and this database, made if there is none.

        Raises TransactionError when the database cannot be asked, or is another one than it was.
        """

    @abc.abstractmethod
    def state_of(self, properties: Mapping[str, str]) -> TransactionState | None:
        """What the row says that a half message with these properties names: COMMITTED or ROLLED_BACK.

        None when there is no such row, when the properties name none, or when it cannot be read without an event loop.
        Raises what the database raises.
        """

    @abc.abstractmethod
    def with_engine(self) -> Any:
        """The same ledger as a `broker.Ledger`, by SQLAlchemy, as check-back needs it."""

    def running_transaction(self) -> JoinableTransaction | None:
        """The database transaction that the calling thread is in, where the ledger can find it without a session.

        None here: a send names its session or connection. Raises TransactionError for one that no message can join.
        """
        return None

    def begin(self, target: Any, producer_group: str, immunity_s: int | None) -> Any:  # noqa: ARG002 - for those that can
        """Begin a LocalTransaction on what only this kind of ledger knows; None for anything else.

        `immunity_s`: seconds, as of `Producer.begin_transaction`. Raises TransactionError where no message can join.
        """
        return None

    def joinable(self, target: Any) -> JoinableTransaction | None:  # noqa: ARG002 - likewise
        """The open transaction of such a target; None for anything else. Raises TransactionError without one."""
        return None

    def _is_bound(self, store_id: str, known: KnownLedgers) -> bool:
        """Whether a store, which remembers its ledgers in `known` from now on, knows this one as it is bound here."""
        self._known[store_id] = known
        found = self._bound.get(store_id)
        return found is not None and known.get(found.binding_id) is not None

    def _does_not_answer_yet(self, error: Exception) -> None:
        text = "%r cannot be asked whose ledger it is; the first transaction asks again: %s"
        _log.warning(text, self, error, extra=event("ledger-away"))

    def _unanswered(self, error: Exception) -> TransactionError:
        """The error of a transaction where the database did not say whose ledger it is, with the next step."""
        cause = " ".join(str(getattr(error, "orig", None) or error).split())[:200]
        step = f"Are its tables there? They are made by {self.making_tables}"
        if any(words in cause for words in _NO_PERMISSION):
            step = "Its user needs SELECT and INSERT on the tables of the ledger"
        if "read-only" in cause or "readonly" in cause:
            step = "Its transactions must be able to write: name the primary, and a user that may"
        if "locked" in cause:  # SQLite: perhaps by the very transaction that the message is sent in
            step = "make the producer when the program starts, before any transaction"
            step = f"A transaction holds SQLite's lock: {step}"
        return TransactionError(f"{self!r} cannot be asked whose ledger it is ({cause}). {step}")

    def _bind_again(self) -> None:
        """For producers that were made before the tables: within a transaction of SQLite's it would be too late."""
        for store_id, known in list(self._known.items()):
            self.bind(store_id, known)

    def _bind(self, store_id: str, transaction: Transaction) -> Binding:
        known = self._known.get(store_id)
        found = bind(transaction, self.bindings_name, store_id, self.look, time.time_ns() // 1_000_000, known)
        if known is not None:
            known.remember(found, self.table)
        self._bound[store_id] = found
        return found
