"""The door: what `import broker` offers."""

from __future__ import annotations

import os
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
