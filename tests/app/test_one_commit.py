"""Handlers that could save their effects apart from the note that the message was processed, or have none at all."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL, create_engine, event, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

import broker
from broker.errors import BrokerError, TransactionError
from broker.testing.fixtures import SMALL
from recovery.views.dead_letters import dead_letters
from tests.app.shop import Base, Charge, Order, Placed, charged, count, place, received, shop_app, until
from tests.consumer.messages import kill_connection

ONCE = broker.Retry(2, delays_s=(0,))


def test_an_engine_in_autocommit_is_refused(tmp_path: Path, sqlite_url: URL) -> None:
    """The note would be saved at once, and stay when the handler fails: the message would never be processed."""
    engine = create_engine(sqlite_url, isolation_level="AUTOCOMMIT")
    Base.metadata.create_all(engine)
    tries: list[int] = []
    with broker.App(tmp_path / "shop.store", engine=engine, layout=SMALL, sync="os") as app:
        app.topic("orders", Placed)

        @app.on("orders", group="billing", retry=ONCE)
        def charge(placed: Placed, session: Session) -> None:
            tries.append(placed.order_id)

        app.send_now("orders", Placed(1))
        with app.workers():
            until(lambda: list(dead_letters(app.store, "billing")))
        (letter,) = dead_letters(app.store, "billing")
    engine.dispose()
    assert not tries
    assert "AUTOCOMMIT" in letter.why


async def _charge(placed: Placed) -> None:
    raise AssertionError(placed)  # never called


def _logged(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator as people write them, for functions that are not async."""

    @functools.wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        return function(*args, **named)

    return call


def _generator(placed: Placed, session: Session) -> Iterator[None]:
    session.add(Charge(order_id=placed.order_id))
    yield


async def _async_generator(placed: Placed) -> AsyncIterator[Placed]:
    yield placed


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("handler", [_logged(_charge), _logged(_generator), _logged(_async_generator)])
def test_a_handler_that_only_makes_what_would_run_has_failed(app: broker.App, handler: Callable[..., Any]) -> None:
    app.on("orders", group="billing", retry=broker.Retry(0))(handler)
    place(app, "lamp")
    with app.workers():
        until(lambda: list(dead_letters(app.store, "billing")))
    (letter,) = dead_letters(app.store, "billing")
    assert "which nobody runs" in letter.why
    assert charged(app.engine) == []


@pytest.mark.parametrize(
    "commit",
    [lambda session: session.connection().commit(), lambda session: session.execute(text("COMMIT"))],
    ids=["connection", "sql"],
)
def test_a_handler_that_commits_past_its_session_and_fails(app: broker.App, commit: Callable[[Session], Any]) -> None:
    """Its note would stay, and the message would never be processed."""
    tries: list[int] = []

    @app.on("orders", group="billing", retry=ONCE)
    def charge(placed: Placed, session: Session) -> None:
        tries.append(placed.order_id)
        if len(tries) == 1:
            with contextlib.suppress(BrokerError):
                commit(session)
            raise ValueError
        session.add(Charge(order_id=placed.order_id))

    place(app, "lamp")
    with app.workers():
        until(lambda: charged(app.engine))
    assert charged(app.engine) == [1]


def test_a_handler_whose_database_rolled_back_behind_an_error_that_it_caught(app: broker.App) -> None:
    """Its message was acknowledged, and its effects were gone. The dead letter states why."""

    @app.on("orders", group="billing", retry=broker.Retry(0))
    def charge(placed: Placed, session: Session) -> None:
        session.execute(text("INSERT INTO charges VALUES (1, 7)"))
        with contextlib.suppress(IntegrityError):
            session.execute(text("INSERT OR ROLLBACK INTO charges VALUES (1, 8)"))

    place(app, "lamp")
    with app.workers():
        until(lambda: list(dead_letters(app.store, "billing")))
    (letter,) = dead_letters(app.store, "billing")
    assert "rolled back past its session" in letter.why


@pytest.mark.parametrize("database", ["postgres", "mariadb"])
def test_a_handler_that_leaves_its_connection_in_another_schema(
    request: pytest.FixtureRequest, tmp_path: Path, database: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A tenant's, with notes of its own: read again where an error was caught, and when the message comes again."""
    url: URL = request.getfixturevalue(f"{database}_url")
    tenant = f"tenant_{url.database}"
    choose = "SET search_path TO" if database == "postgres" else "USE"
    with shop_app(tmp_path, url) as app:
        assert app.engine is not None
        with app.engine.begin() as connection:
            connection.execute(text(f"CREATE SCHEMA {tenant}"))
            connection.execute(text(f"CREATE TABLE {tenant}.charges (order_id INTEGER UNIQUE)"))
        broker.Processed(schema=tenant).create_all(app.engine)

        @app.on("orders", group="billing", retry=ONCE)
        def charge(placed: Placed, session: Session) -> None:
            session.execute(text(f"{choose} {tenant}"))
            with contextlib.suppress(IntegrityError), session.begin_nested():
                session.execute(text("INSERT INTO charges VALUES (0), (0)"))
            session.execute(text("INSERT INTO charges SELECT 1 + count(*) FROM charges"))

        place(app, "lamp")
        for _ in range(4):  # the pool has several connections
            with app.workers() as workers:
                until(lambda workers=workers: workers.handled)
            with app.store.consumer("billing", "orders") as consumer:
                for topic, queue in list(consumer.positions()):
                    consumer._positions.reset("billing", topic, 0, queue)
        with app.engine.begin() as connection:
            found = connection.execute(text(f"SELECT * FROM {tenant}.charges")).scalars().all()  # noqa: S608
            connection.execute(text(f"DROP SCHEMA {tenant}" + " CASCADE" * (database == "postgres")))
        app.engine.dispose()
    assert (found, caplog.messages) == ([1], [])


def test_the_schema_of_new_connections_counts(postgres_url: URL) -> None:
    """Of one application in one test after another; not the schema that a transaction left on a connection."""
    engine, processed = create_engine(postgres_url, pool_size=1), broker.Processed()
    for schema in ("first", "second"):
        with engine.begin() as connection:
            connection.execute(text(f"CREATE SCHEMA {schema}"))
            connection.execute(text(f"ALTER DATABASE {postgres_url.database} SET search_path TO {schema}"))
        engine.dispose()
        processed.create_all(engine)
        broker.Processed(schema="public").create_all(engine)
        with engine.begin() as connection:
            connection.execute(text("SET search_path TO public"))
        processed.stay_in_place(engine)
        assert processed.rows.schema == schema
    engine.dispose()


def test_the_schema_is_found_when_the_database_is_back(postgres_url: URL, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it did not answer when workers started, a search_path that was left led all their notes elsewhere."""
    engine, processed = create_engine(postgres_url), broker.Processed()
    processed.create_all(engine)
    with monkeypatch.context() as away:
        away.setattr(engine, "connect", create_engine("postgresql+psycopg:///?host=/nowhere").connect)
        processed.stay_in_place(engine)
        processed.find_place()
    assert processed.rows.schema is None
    processed.find_place()
    assert processed.rows.schema == "public"
    engine.dispose()


def test_the_schema_is_found_when_the_password_is_there(postgres_url: URL) -> None:
    """An event that asks another service for it raises what that raises: a worker ended by it."""
    engine, processed, errors = create_engine(postgres_url), broker.Processed(), [OSError("no token")] * 2
    processed.create_all(engine)
    engine.dispose()

    @event.listens_for(engine, "do_connect")
    def _password(*_: object) -> None:
        if errors:
            raise errors.pop()

    processed.stay_in_place(engine)
    processed.find_place()
    assert processed.rows.schema is None
    processed.find_place()
    assert processed.rows.schema == "public"
    engine.dispose()


def test_a_forgotten_await_in_a_block(app: broker.App) -> None:
    """Whose transaction is not async: there is nothing to await, and nothing is saved."""
    with pytest.raises(TransactionError, match="nothing awaited it"), app.transaction() as session:  # noqa: PT012
        session.add(Order(item="silent"))
        app.send_async("orders", Placed(1)).close()
    assert (count(app.engine, Order), received(app)) == (0, [])


def test_a_handler_that_fails_after_its_connection_died(
    tmp_path: Path, postgres_url: URL, caplog: pytest.LogCaptureFixture
) -> None:
    """Its message is delivered again as its policy says, and its error is in the log."""
    tries: list[int] = []
    with shop_app(tmp_path, postgres_url) as app:
        assert app.engine is not None

        @app.on("orders", group="billing", retry=ONCE)
        def charge(placed: Placed, session: Session) -> None:
            tries.append(placed.order_id)
            if len(tries) == 1:
                assert app.engine is not None
                kill_connection(app.engine, session)
                raise ValueError("no card")
            session.add(Charge(order_id=placed.order_id))

        place(app, "lamp")
        with app.workers():
            until(lambda: charged(app.engine))
        found = charged(app.engine)
        app.engine.dispose()
    assert found == [1]
    assert "no card" in caplog.text
