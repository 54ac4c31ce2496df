"""Tables that several processes make at the same moment: each finds them there."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy import Engine, MetaData, event

import recovery.catalog
from broker.dedup import Processed
from broker.ledger import Ledger
from recovery.catalog import Catalog

STORE = "5" * 32


def ledger(engine: Engine) -> tuple[MetaData, Callable[[], object]]:
    made = Ledger(engine)
    return made.metadata, made.create_all


def processed(engine: Engine) -> tuple[MetaData, Callable[[], object]]:
    made = Processed()
    return made.metadata, lambda: made.create_all(engine)


def catalog(engine: Engine) -> tuple[MetaData, Callable[[], object]]:
    return recovery.catalog.metadata, lambda: Catalog(engine, STORE)


@pytest.mark.parametrize("tables", [ledger, processed, catalog])
def test_another_process_makes_the_tables_first(
    engine: Engine, other_engine: Engine, tables: Callable[[Engine], tuple[MetaData, Callable[[], object]]]
) -> None:
    """It comes between the look that finds none and the making."""
    metadata, make = tables(engine)
    came: list[int] = []

    def between(*_: object, **__: object) -> None:
        if not came:
            came.append(1)
            metadata.create_all(other_engine)

    event.listen(metadata, "before_create", between)
    try:
        make()
    finally:
        event.remove(metadata, "before_create", between)
    assert came
    make()
