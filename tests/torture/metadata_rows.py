"""How many rows check-back of an idle store costs Airflow's database: `python -m tests.torture.metadata_rows`.

An hour of looks, thirty times as fast: 120 of them, one a second. With `watch = false` each is a run of the DAG; with a
watcher the triggerer looks, and there is one run, the hourly one. Runs that Airflow could not start in time are
extrapolated to 120. The figures are in docs/airflow.md.
"""

from __future__ import annotations

import json
import socket
import sqlite3
import sys
import tempfile
import time
from pathlib import Path

from recovery.airflow.local.rest import NoAnswer, Rest
from recovery.airflow.local.standalone import Standalone
from tests.house.tree import ROOT
from tests.jobs.shops import ANSWERS, shop

LOOKS = 120
READY_S = 300.0


def rows(database: Path) -> dict[str, int]:
    """The rows of each table."""
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=30) as connection:
        names = [name for (name,) in connection.execute("select name from sqlite_master where type = 'table'")]
        return {name: connection.execute(f'select count(*) from "{name}"').fetchone()[0] for name in names}  # noqa: S608


def measure(directory: Path, *, watch: bool) -> dict[str, int]:
    """What an hour of looks adds to each table."""
    path = shop(directory / "shop", orders=0)
    never = {f"{work}_schedule": "never" for work in ("verify", "rebuild", "retention")}
    store = {
        "path": str(path),
        "resolver": ANSWERS,
        "engine": "local",
        "check_back_every_s": 1,
        "watch": watch,
        **never,
    }
    settings = directory / "stores.json"
    settings.write_text(json.dumps({"stores": {"shop": {**store, **never}}}))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    airflow = Standalone(str(directory / "airflow"), port, str(settings), PYTHONPATH=str(ROOT))
    rest = Rest(airflow.url, airflow.login)
    with airflow:
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            try:
                if not rest.unhealthy() and "shop.check_back" in rest.dag_ids() and rest.last_runs():
                    break
            except NoAnswer:
                pass
            time.sleep(1)
        time.sleep(20)  # the first, hourly run is over, and what Airflow writes once at its start is written
        before, began = rows(directory / "airflow/airflow.db"), time.monotonic()
        time.sleep(LOOKS)
        after, took_s = rows(directory / "airflow/airflow.db"), time.monotonic() - began
    print(f"watch={watch}: {took_s:.0f} s", file=sys.stderr)
    return {name: count - before.get(name, 0) for name, count in after.items() if count != before.get(name, 0)}


def main() -> None:
    for watch in (False, True):
        with tempfile.TemporaryDirectory(prefix="rows-") as directory:
            added = measure(Path(directory), watch=watch)
        runs = added.get("dag_run", 0)
        print(json.dumps({"watch": watch, "runs": runs, "rows": sum(added.values()), "by_table": added}))


if __name__ == "__main__":
    main()
