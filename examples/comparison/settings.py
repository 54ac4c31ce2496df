"""What a process of the comparison is given, by one variable of the environment: COMPARISON, as JSON."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass


@dataclass(frozen=True)
class ShopSettings:
    """Where the databases are, and which process this is; `die` names a point at which it kills itself."""

    stock: str  # conninfo of psycopg: postgresql://...
    orders: str
    directory: str
    name: str = "setup"
    die: str = ""

    def alchemy(self, url: str) -> str:
        """The URL for SQLAlchemy."""
        return url.replace("postgresql://", "postgresql+psycopg://", 1)


def settings() -> ShopSettings:
    """Of this process."""
    return ShopSettings(**json.loads(os.environ["COMPARISON"]))
