"""Which database is it, and whose ledger: the comparison of identities, the binding, and what the store remembers."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from sqlalchemy import URL, Engine, create_engine, event, select, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

import broker
from broker.database.ledger_binding import LEDGER_BINDING, Binding, KnownLedger, KnownLedgers
from broker.database.ledger_identity import DatabaseIdentity, difference
from broker.errors import StoreError, StoreLocked, TransactionError
from broker.ledger import Ledger, executor
from broker.store.disk import lock_calls
from broker.store.disk.files import Disk
from broker.store.read.layout import StoreLayout
from broker.testing.fixtures import crash_between_commit_and_end
from recovery.checkback.ledger_resolver import LedgerResolver
from recovery.checkback.ledgers.proof import (
    CommittedKey,
    Evidence,
    LedgerEvidence,
    LedgerFacts,
    _remember_missing,
    judge,
)
from recovery.checkback.policy import parse_policy
from recovery.checkback.service import for_producers
from tests.ledger.proven import NoStore

STORE = "5" * 32
SMALL = StoreLayout(1 << 22, 20 * 4000, 24 * 4000, 20 * 4000, 1000, 4000)
DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg", "mariadb": "mariadb+aiomysql"}

PG = DatabaseIdentity("postgresql", "7312", "5432", "shop", "16384", schema="public", timeline="00000001")
MY = DatabaseIdentity("mysql", "uuid", database="shop")
LITE = DatabaseIdentity("sqlite", database="/srv/shop.db", number="12", device="8")


@pytest.mark.parametrize(
    ("bound", "actual", "same"),
    [
        (PG, PG, True),
        (PG, replace(PG, server="7313"), False),  # another cluster: a dump that was restored there
        (PG, replace(PG, number="16999"), False),  # dropped and restored in the same cluster
        (PG, replace(PG, database="staging"), False),
        (PG, replace(PG, schema="tenant_b"), False),
        (PG, replace(PG, timeline="00000002"), True),  # a promoted standby: what it lacks tells more
        (PG, replace(PG, port="6432"), True),  # the system identifier counts, and not where it listens
        (replace(PG, server=""), PG, True),  # one of the two may not read it
        (replace(PG, server=""), replace(PG, server="", port="5433"), False),
        (MY, MY, True),
        (MY, replace(MY, dialect="mariadb"), True),  # two names of one driver
        (MY, replace(MY, server="another"), False),
        (MY, replace(MY, database="staging"), False),
        (MY, replace(MY, schema="shop"), True),  # Ledger(schema="shop"), on another or on no database of the URL
        (LITE, LITE, True),
        (LITE, replace(LITE, number="13"), False),  # a copy, or a backup that was moved into its place
        (LITE, replace(LITE, database="/data/shop.db"), True),  # the same file, as a container sees it
        (LITE, replace(LITE, device="9"), True),  # the same file, after the machine was started again
        (LITE, replace(LITE, database="/data/shop.db", device="9"), False),  # the same number by chance
        (LITE, replace(LITE, schema="ledgers"), True),  # the same file, by the name under which it was attached
        (PG, MY, False),
    ],
)
def test_what_is_the_same_database(bound: DatabaseIdentity, actual: DatabaseIdentity, same: bool) -> None:
    assert (difference(bound, actual) == "") is same
    assert DatabaseIdentity.from_json(bound.as_json()) == bound


IN_AN_OLD_LOCALE = """
import sqlite3
from contextlib import closing
from broker.database.ledger_identity import observe
with closing(sqlite3.connect("b\\u00fccher.db".encode())) as connection:
    connection.execute("CREATE TABLE ledger (number INTEGER)")
    observe(lambda statement: connection.execute(statement.text).fetchall(), "sqlite", "ledger", None)
"""


def test_a_file_of_sqlite_is_found_in_a_locale_without_utf_8(tmp_path: Path) -> None:
    """SQLite names its file in UTF-8."""
    environ = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    environ["PYTHONPATH"] = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", IN_AN_OLD_LOCALE], cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


ROW = Binding("b" * 32, STORE, PG, 3, 1)
KNOWN = KnownLedger(ROW, "checkback_ledger")
FACTS = LedgerFacts(STORE, PG, True, "", ROW, KNOWN, [KNOWN], committed=2)


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        (FACTS, ""),
        (replace(FACTS, has_table=False), "no table"),
        (replace(FACTS, row=None), "is not bound to this store"),
        (replace(FACTS, actual=replace(PG, server="7313")), "it is a copy, or was moved"),
        (replace(FACTS, known=None), "which the store does not know"),
        (replace(FACTS, known=KnownLedger(replace(ROW, identity=MY), "x")), "the store knows its ledger as"),
        (replace(FACTS, read_only="it is a standby"), "takes no tombstone"),
        (replace(FACTS, lacking=[CommittedKey("0" * 32, 4)]), "lacks 1 of the last 2"),
        (replace(FACTS, row=replace(ROW, opened=2)), "is older than the store"),
        (replace(FACTS, row=replace(ROW, opened=4)), ""),
        (replace(FACTS, actual=replace(PG, timeline="00000002")), ""),
        (replace(FACTS, actual=replace(PG, timeline="00000002"), committed=0), "a standby took over"),
    ],
)
def test_each_doubt_is_a_sentence(facts: LedgerFacts, text: str) -> None:
    said = judge(facts)
    assert text in said
    assert bool(text) == bool(said)
    assert "\n" not in said


# The binding


def test_the_first_producer_binds_and_the_next_ones_find_it(ledger: Ledger, url: URL) -> None:
    first = ledger.binding(STORE)
    engine = create_engine(url)
    second = Ledger(engine).binding(STORE)
    assert (second.binding_id, second.opened) == (first.binding_id, first.opened + 1)
    other = Ledger(engine).binding("7" * 32)
    assert other.binding_id != first.binding_id
    engine.dispose()


def test_a_producer_that_opens_during_a_proof_makes_no_backup_of_the_database(ledger: Ledger, url: URL) -> None:
    """It was counted after check-back had read the row, and remembered before check-back read what the store knows."""
    engine = create_engine(url)

    class OpenedMeanwhile(NoStore):
        def known_of(self, row: Binding) -> KnownLedger | None:
            self.known.remember(Ledger(engine).binding(STORE), ledger.rows.name)
            return super().known_of(row)

    evidence = OpenedMeanwhile(STORE)
    evidence.known.remember(bound := ledger.binding(STORE), ledger.rows.name)
    assert LedgerResolver(ledger, evidence).binding_id() == bound.binding_id
    engine.dispose()


def test_of_many_who_bind_at_once_all_get_the_same(ledger: Ledger, url: URL) -> None:
    found: list[str] = []
    gate = threading.Barrier(4)

    def work() -> None:
        engine = create_engine(url)
        gate.wait()
        found.append(Ledger(engine).binding(STORE).binding_id)
        engine.dispose()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(found), len(set(found))) == (4, 1)


def test_the_half_messages_name_the_binding_and_the_store_knows_it(
    ledger: Ledger, engine: Engine, tmp_path: Path
) -> None:
    from sqlalchemy.orm import Session

    with broker.open(tmp_path / "store", layout=SMALL) as store:
        producer = store.producer("shop", topics=["orders"], ledger=ledger)
        (known,) = KnownLedgers(store.path).all()  # before the first half message
        with Session(engine) as session, producer.begin_transaction(session) as transaction:
            producer.send(broker.Message("orders", b"1"), transaction)
        (half,) = transaction.halves
        with engine.connect() as connection:
            (row,) = connection.execute(select(ledger.bindings)).all()
            actual = ledger.look(executor(connection)).identity
        assert half.properties[LEDGER_BINDING] == row.binding_id == known.binding.binding_id
        assert difference(known.binding.identity, actual) == ""


def test_a_ledger_in_an_attached_file_is_that_of_its_file(tmp_path: Path) -> None:
    """Check-back opens the file alone: it was another file, with the same path and the same inode."""
    main, file = create_engine(f"sqlite:///{tmp_path}/shop.db"), create_engine(f"sqlite:///{tmp_path}/ledger.db")
    event.listen(main, "connect", lambda raw, _: raw.execute(f"ATTACH '{tmp_path}/ledger.db' AS ledgers"))
    attached = Ledger(main, schema="ledgers")
    attached.create_all()
    with broker.open(tmp_path / "store", layout=SMALL) as store:
        producer = store.producer("shop", topics=["orders"], ledger=attached)
        with crash_between_commit_and_end(store), Session(main) as session:
            session.execute(text("CREATE TABLE orders (id INTEGER PRIMARY KEY)"))
            producer.send(broker.Message("orders", b"1"), session)
            session.commit()
        at_once = parse_policy({"*": {"first_check_after": "0s"}})
        alone = store.producer("shop", topics=["orders"], ledger=Ledger(file))
        report = for_producers(store, [alone], policy=at_once).run_once()
        assert report is not None
        assert report.committed == 1
    main.dispose()
    file.dispose()


def test_an_async_ledger_is_bound_before_its_first_half_message(url: URL, tmp_path: Path) -> None:
    async def work() -> None:
        engine = create_async_engine(url.set(drivername=DRIVERS[url.get_backend_name()]))
        ledger = Ledger(engine)
        await ledger.create_all_async()
        async with engine.begin() as connection:
            await connection.execute(text("CREATE TABLE orders (id INTEGER PRIMARY KEY)"))
        with broker.open(tmp_path / "store", layout=SMALL) as store:
            producer = store.producer("shop", topics=["orders"], ledger=ledger)
            async with AsyncSession(engine) as session:
                await session.execute(text("INSERT INTO orders (id) VALUES (1)"))  # SQLite: it has the one lock
                async with producer.begin_transaction(session) as transaction:
                    await producer.send_async(broker.Message("orders", b"1"), transaction)
            (half,) = transaction.halves
            (known,) = KnownLedgers(store.path).all()
            assert half.properties[LEDGER_BINDING] == known.binding.binding_id
        await engine.dispose()

    asyncio.run(work())


def test_a_database_that_is_away_at_the_start_is_bound_by_the_first_transaction(
    url: URL, engine: Engine, tmp_path: Path
) -> None:
    """The tables are made after the producer, as where a migration imports the application."""
    from sqlalchemy.orm import Session

    ledger = Ledger(engine)
    with broker.open(tmp_path / "store", layout=SMALL) as store:
        producer = store.producer("shop", topics=["orders"], ledger=ledger)
        with (
            Session(engine) as session,
            pytest.raises(TransactionError, match=r"ledger\.create_all"),
            producer.begin_transaction(session) as transaction,
        ):
            producer.send(broker.Message("orders", b"0"), transaction)
        assert store.transactions.in_doubt_slots() == []
        ledger.create_all()
        with Session(engine) as session, producer.begin_transaction(session) as transaction:
            producer.send(broker.Message("orders", b"1"), transaction)
        assert len(KnownLedgers(store.path).all()) == 1


def test_a_file_that_is_damaged_is_a_sentence(tmp_path: Path) -> None:
    known = KnownLedgers(str(tmp_path))
    known.put(KNOWN)
    assert known.get(ROW.binding_id) == KNOWN
    (file,) = (tmp_path / "checkback" / "ledgers").iterdir()
    file.write_text("{}")
    with pytest.raises(StoreError, match="is damaged"):
        known.all()
    with pytest.raises(TransactionError, match="names no binding"):
        known.get("../../store")


def test_a_process_that_is_stopped_where_it_writes_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A producer waited for it without a word, and without an end."""
    known = KnownLedgers(str(tmp_path))
    known.put(KNOWN)
    monkeypatch.setattr(lock_calls, "STOPPED_S", 0.0)
    program = "import fcntl, os, signal, sys; at = os.open(sys.argv[1], os.O_RDONLY); fcntl.flock(at, fcntl.LOCK_EX)\n"
    program += "os.kill(os.getpid(), signal.SIGSTOP)"
    holder = subprocess.Popen([sys.executable, "-c", program, tmp_path / "checkback" / "ledgers"])
    try:
        os.waitpid(holder.pid, os.WUNTRACED)
        with pytest.raises(StoreLocked, match=f"process {holder.pid} is stopped while it writes there"):
            known.put(KNOWN)
    finally:
        holder.kill()
        holder.wait()
    known.put(KNOWN)


def test_what_an_operator_accepts_while_a_producer_opens_is_kept(tmp_path: Path) -> None:
    """Both read the file and write it again: the second one wrote what was there before the first."""
    KnownLedgers(str(tmp_path)).put(KNOWN)
    accepted = replace(KNOWN, accepted_ms=7, history=({"what": "accept"},))
    operator = threading.Thread(target=KnownLedgers(str(tmp_path)).put, args=(accepted,))

    class Between(Disk):
        def read(self, path: str) -> bytes:
            found = super().read(path)
            operator.start()
            operator.join(0.1)  # it waits for us, and is done else
            return found

    KnownLedgers(str(tmp_path), Between()).remember(replace(ROW, opened=9), KNOWN.table)
    operator.join()
    (kept,) = KnownLedgers(str(tmp_path)).all()
    assert (kept.accepted_ms, kept.history) == (accepted.accepted_ms, accepted.history)


def test_a_row_found_missing_is_not_remembered_when_that_was_accepted_meanwhile(tmp_path: Path) -> None:
    known = KnownLedgers(str(tmp_path))
    evidence = cast("Evidence", SimpleNamespace(known=known))
    known.put(KNOWN)
    _remember_missing(evidence, KNOWN, "k")
    assert known.all() == [replace(KNOWN, missing_key="k")]
    known.put(replace(KNOWN, accepted_ms=7))
    _remember_missing(evidence, KNOWN, "k")
    assert known.all() == [replace(KNOWN, accepted_ms=7)]


def test_the_evidence_is_the_newest_transactions_that_committed(tmp_path: Path) -> None:
    ledger = Ledger(create_engine(f"sqlite:///{tmp_path / 'shop.db'}"))
    ledger.create_all()
    with broker.open(tmp_path / "store", sync="os", layout=SMALL) as store:
        producer = store.producer("shop", topics=["orders"], ledger=ledger)
        for number in range(40):
            with Session(ledger.engine) as session:
                producer.send(broker.Message("orders", b"x", keys=[str(number)]), session)
                session.commit() if number % 4 else session.rollback()
        for _ in range(50):
            store.transactions.prepare(broker.Message("orders", b"in doubt"), "shop")
        binding = ledger.binding(store.store_id).binding_id
        committed = LedgerEvidence(store).committed(binding)
        halves = [store.transactions.message(store.transactions.half(key.commitlog_offset)) for key in committed]
    assert [half.keys for half in halves] == [(str(number),) for number in range(39, 0, -1) if number % 4]
