"""Engines that wait for SQLite's one writer as long as it takes."""

from __future__ import annotations

from sqlalchemy import URL, Engine, create_engine


def waiting(url: URL) -> dict[str, int]:
    """The arguments for a connection."""
    return {"timeout": 60} if url.get_backend_name() == "sqlite" else {}


def engine_of(url: URL) -> Engine:
    return create_engine(url, connect_args=waiting(url))
