"""The door: what `import broker` offers."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

import broker
from tests.store.build import Log


def test_a_store_from_any_kind_of_path(tmp_path: Path) -> None:
    log = Log()
    log.append(1)
    path = log.write(tmp_path)
    kinds: list[str | os.PathLike[str]] = [path, str(path), f"{path}/"]
    for kind in kinds:
        with broker.open(kind, read_only=True) as store:
            assert isinstance(store, broker.Store)
            assert store.path == str(path)
            assert repr(store) == f"<broker.Store {str(path)!r}, read-only>"
            assert len(list(store.records())) == 1


def test_read_only_is_named() -> None:
    with pytest.raises(TypeError):
        broker.open("shop.store", True)  # type: ignore[misc]


def test_names() -> None:
    assert dir(broker) == sorted(broker.__all__)
    with pytest.raises(AttributeError, match="module 'broker' has no attribute 'Stroe'"):
        broker.Stroe  # noqa: B018


def test_an_error_travels_between_processes() -> None:
    """One that names its place named it twice on the other side."""
    for error in (
        broker.CorruptRecord("torn", at=7, path="log"),
        broker.CorruptRecord("torn", commitlog_offset=7),
        broker.AlreadyEnded("late", message_id="A", state=8),
        broker.StoreFull("full", path="log", needed_bytes=2, free_bytes=1),
    ):
        found = pickle.loads(pickle.dumps(error))  # noqa: S301
        assert (type(found), str(found), vars(found)) == (type(error), str(error), vars(error))
