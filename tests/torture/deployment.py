"""Fifty stores on PostgreSQL and LocalExecutor: Airflow's parts as processes that are killed and started again.

46 healthy stores under traffic, one with a mistake in its settings, one whose directory is missing, one that crashed
and wants an approval, one of a RocketMQ broker.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

from recovery.airflow.local.rest import NoAnswer, Rest
from recovery.airflow.local.standalone import Standalone
from tests.house.tree import ROOT
from tests.jobs.shops import ANSWERS, killed_shop, shop

HEALTHY = 46
PARTS = ("api-server", "scheduler", "dag-processor", "triggerer")
NEVER = {f"{work}_schedule": "never" for work in ("verify", "rebuild", "retention")}
READY_S = 400.0

# One sale after another in a random store, every few seconds: two orders in doubt, the producer dies before their end.
TRAFFIC = """
import json, random, sys, time
import broker
from tests.jobs.shops import prepare
every_s, seed, log, *paths = float(sys.argv[1]), int(sys.argv[2]), sys.argv[3], *sys.argv[4:]
chance, number = random.Random(seed), 0
with open(log, "w") as said:
    while True:
        path = chance.choice(paths)
        with broker.open(path) as store:
            prepare(store, range(number, number + 2))
        print(json.dumps([path, number]), file=said, flush=True)
        number += 2
        time.sleep(every_s)
"""


class Hook:
    """What is posted to the stores' alerts."""

    def __init__(self) -> None:
        self.posts: list[dict[str, Any]] = []
        posts = self.posts

        class Taker(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                posts.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Taker)
        self._thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self._thread.start()

    def connection(self) -> dict[str, Any]:
        """As an Airflow connection."""
        return {"conn_type": "http", "host": "127.0.0.1", "port": self.server.server_port}

    def close(self) -> None:
        """Stop taking posts."""
        self.server.shutdown()
        self.server.server_close()
        self._thread.join(10)

    def about(self, store: str, text: str) -> list[dict[str, Any]]:
        """The posts about a store that have a text in their sentence."""
        return [one for one in self.posts if one.get("store") == store and text in one["text"]]


class Deployment:
    """Airflow and its stores, in a directory."""

    def __init__(self, directory: Path, socket_directory: Path, foreign: Path, hook: Hook) -> None:
        self.directory, self.foreign = directory, foreign
        self.healthy = {f"s{number:02}": shop(directory / f"s{number:02}.store", orders=0) for number in range(HEALTHY)}
        self.crashed = killed_shop(directory / "crashed.store")
        settings = directory / "stores.json"
        settings.write_text(json.dumps({"stores": self._tables()}))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        database = f"postgresql+psycopg://shop@/postgres?host={quote(str(socket_directory))}"
        environment = {
            "PYTHONPATH": str(ROOT),
            "AIRFLOW_CONN_HOOK": json.dumps(
                {"conn_type": "http", "host": "127.0.0.1", "port": hook.server.server_port}
            ),
            "AIRFLOW__DATABASE__SQL_ALCHEMY_POOL_SIZE": "3",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_MAX_OVERFLOW": "3",
            "AIRFLOW__DAG_PROCESSOR__PARSING_PROCESSES": "1",
        }
        self.airflow = Standalone(str(directory / "airflow"), port, str(settings), database=database, **environment)
        self.rest = Rest(self.airflow.url, self.airflow.login)
        self.parts: dict[str, subprocess.Popen[bytes]] = {}

    def _tables(self) -> dict[str, Any]:
        policy = {"*": {"first_check_after": "0s", "interval": "10s"}}
        shared = {"resolver": ANSWERS, "engine": "local", "policy": policy, "check_back_every_s": 5, "alerts": "hook"}
        shared |= {"backstop_s": 3600, **NEVER}
        tables = {name: {"path": str(path), **shared} for name, path in self.healthy.items()}
        tables["typo"] = {"path": str(self.directory / "typo.store"), "ask": "true", "alerts": "hook"}
        tables["gone"] = {"path": str(self.directory / "gone.store"), **shared}
        tables["crashed"] = {"path": str(self.crashed), **shared, "ask": True}
        tables["foreign"] = {"path": str(self.foreign), **shared}
        return tables

    def start(self, part: str) -> None:
        """A part of Airflow, as a process of its own."""
        with (self.directory / f"{part}.log").open("ab") as log:
            self.parts[part] = self.airflow.child(["-m", "airflow", part], log)

    def kill(self, part: str) -> None:
        """SIGKILL for a part and the processes of its session, and start it again."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.parts[part].pid, signal.SIGKILL)
        self.parts[part].wait(30)
        self.start(part)

    def stop(self) -> None:
        """End all parts, and take note of their ends."""
        self.airflow.stop()
        for process in self.parts.values():
            process.wait(60)

    def kill_a_task(self, chance: random.Random) -> bool:
        """SIGKILL for a process of the scheduler's session other than the scheduler: a worker, mostly with a task."""
        leader = self.parts["scheduler"].pid
        workers = [pid for pid in self.airflow.left() if pid != leader and os.getsid(pid) == leader]
        if not workers:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(chance.choice(workers), signal.SIGKILL)
        return True

    def until(self, is_so: Callable[[], Any], timeout_s: float) -> Any:
        """What `is_so` says as soon as it says anything."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            with contextlib.suppress(NoAnswer):
                if found := is_so():
                    return found
            time.sleep(1)
        logs = sorted(self.directory.glob("*.log"))
        raise AssertionError("\n".join(f"== {one.name}\n{one.read_text(errors='replace')[-1500:]}" for one in logs))

    def questions(self) -> list[dict[str, Any]]:
        """Those that wait for an answer."""
        path = "/api/v2/dags/~/dagRuns/~/hitlDetails?response_received=false&state=awaiting_input"
        return list(self.rest.ask("GET", path)["hitl_details"])

    def approve(self, question: dict[str, Any]) -> None:
        """Say yes."""
        task = question["task_instance"]
        where = f"dags/{task['dag_id']}/dagRuns/{quote(task['dag_run_id'], safe='')}/taskInstances/{task['task_id']}"
        body = {"chosen_options": ["Approve"], "params_input": {}}
        self.rest.ask("PATCH", f"/api/v2/{where}/{task['map_index']}/hitlDetails", body)


@contextlib.contextmanager
def traffic(made: Deployment, every_s: float) -> Iterator[Path]:
    """Sales in the healthy stores, by a process of its own; the file in which it notes what it sold."""
    log = made.directory / "traffic.jsonl"
    words = [sys.executable, "-c", TRAFFIC, str(every_s), "1", str(log), *map(str, made.healthy.values())]
    with subprocess.Popen(words, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}) as process:
        try:
            yield log
            assert process.poll() is None, "the traffic ended by itself"
        finally:
            process.terminate()
            process.wait(30)
