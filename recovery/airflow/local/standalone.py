"""Airflow's own `standalone` as a child: started with an environment of its own, and stopped with all that it started.

It leaves children behind when it is stopped by SIGTERM, and children of children when it is killed. So it has a
session of its own, whose process group gets SIGINT first. What is left of that session is killed by its ids; so is what
left the session but carries our mark in its environment. (The mark alone does not do: some of Airflow's processes give
themselves another title, and write it over their environment.)
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import IO, Self

from recovery.airflow.local.preflight import LOOPBACK

MARK = "CHECKBACK_UP"
BUNDLES = [
    {"name": "checkback", "classpath": "recovery.airflow.bundle.CheckbackDagBundle", "kwargs": {}},
    # A directory `dags` beside Airflow's files, for the user's own.
    {"name": "dags-folder", "classpath": "airflow.dag_processing.bundles.local.LocalDagBundle", "kwargs": {}},
]
PROGRAM = "recovery.airflow.local.without_log_servers"
"""What is started: Airflow's `standalone`."""
_PASSWORDS = "simple_auth_manager_passwords.json.generated"
_WORKERS = 4
_SQLITE_WAITS_S = 60
_PR_SET_PDEATHSIG = 1
_PATIENCE_S = 15.0
_LINUX = sys.platform == "linux"


class Standalone:
    """One Airflow, in one directory. `with Standalone(...)` stops it, whatever happens."""

    def __init__(
        self,
        home: str,
        port: int,
        stores: str,
        *,
        database: str | None = None,
        spark_master: str | None = None,
        **more: str,
    ) -> None:
        """`more` are environment variables over all others."""
        self.home, self.port, self.stores = os.path.abspath(home), port, stores
        self.log = os.path.join(self.home, "airflow.log")
        self._mark = secrets.token_hex(8)
        self._settings = _settings(self.home, port, stores, database, spark_master) | more | {MARK: self._mark}
        self._process: subprocess.Popen[bytes] | None = None
        self._sessions: set[int] = set()

    @property
    def url(self) -> str:
        """Where the user interface is."""
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """What its processes get, ours with its settings over it: `airflow` must be on the PATH."""
        path = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])
        return {**os.environ, **self._settings, "PATH": path}

    def start(self) -> None:
        """Begin; see `recovery.airflow.local.rest` for when it is ready."""
        self.make_home()
        os.makedirs(os.path.join(self.home, "dags"), exist_ok=True)
        with open(self.log, "ab") as log:
            self._process = self.child(["-m", PROGRAM], log)

    def make_home(self) -> None:
        """Airflow's directory, for its owner alone: Airflow writes the password of its admin, which all could read."""
        os.makedirs(self.home, mode=0o700, exist_ok=True)

    def child(self, words: list[str], out: IO[bytes]) -> subprocess.Popen[bytes]:
        """A Python program in a session of its own, with our mark: whatever becomes of us, it is stopped."""
        made = subprocess.Popen(  # noqa: S603 - our own interpreter
            [sys.executable, *words],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=self.environment,
            start_new_session=True,
            preexec_fn=_before_exec,  # noqa: PLW1509 - two system calls, before any thread of ours runs
        )
        self._sessions.add(made.pid)
        return made

    def left(self) -> list[int]:
        """The processes that were started from here and still run, as Linux says it; none elsewhere."""
        return [pid for pid in _processes() if _session(pid) in self._sessions or _has_mark(pid, self._mark)]

    def has_ended(self) -> bool:
        """Whether it is gone by itself."""
        return self._process is not None and self._process.poll() is not None

    def login(self) -> tuple[str, str] | None:
        """(user, password) that Airflow made up at its first start; None as long as it has not."""
        try:
            with open(os.path.join(self.home, _PASSWORDS), encoding="utf-8") as file:
                user, password = next(iter(json.load(file).items()))
        except (OSError, ValueError, StopIteration):
            return None
        return str(user), str(password)

    def stop(self) -> None:
        """Let it end well, then end what is left; at once when an interrupt comes meanwhile. Safe to call twice."""
        process, self._process = self._process, None
        patience_s = 0.0
        try:
            _ask_to_end(process)
            patience_s = _PATIENCE_S / 5
        finally:
            self._end_what_is_left(patience_s)
            if process is not None:
                process.wait()

    def _end_what_is_left(self, patience_s: float) -> None:
        """Kill what has not ended by itself after some seconds."""
        began = time.monotonic()
        while (left := self.left()) and (waited := time.monotonic() - began) < _PATIENCE_S:
            for pid in left if waited > patience_s else []:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.1)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _ask_to_end(process: subprocess.Popen[bytes] | None) -> None:
    """By SIGINT, as Ctrl-C does, then by SIGTERM."""
    for number in (signal.SIGINT, signal.SIGTERM):
        if process is not None and process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_PATIENCE_S)


def _processes() -> Iterator[int]:
    """Every process but this one."""
    for name in os.listdir("/proc") if os.path.isdir("/proc") else []:
        if name.isdecimal() and int(name) != os.getpid():
            yield int(name)


def _session(pid: int) -> int:
    """The session that a process is in; 0 when it is gone, or dead and waits to be taken note of."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            state, _parent, _group, session = file.read().rpartition(")")[2].split()[:4]
    except (OSError, ValueError):
        return 0
    return 0 if state in "ZX" else int(session)


def _has_mark(pid: int, mark: str) -> bool:
    """Whether a process was started with our mark in its environment."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return f"{MARK}={mark}".encode() in file.read().split(b"\0")
    except OSError:
        return False


def _before_exec() -> None:
    """In the child: Ctrl-C works although a shell ignored it for us, and when we are killed it gets a signal to end."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if _LINUX:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGINT)


def _settings(home: str, port: int, stores: str, database: str | None, spark_master: str | None) -> dict[str, str]:
    """Airflow's configuration, by environment variables."""
    found = {
        "AIRFLOW_HOME": home,
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
        "AIRFLOW__CORE__PARALLELISM": str(_WORKERS),
        "AIRFLOW__CORE__TEST_CONNECTION": "Enabled",
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://{LOOPBACK}:{port}/execution/",
        "AIRFLOW__API__HOST": LOOPBACK,
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__BASE_URL": f"http://{LOOPBACK}:{port}",
        "AIRFLOW__API__WORKERS": "1",
        "AIRFLOW__API_AUTH__JWT_SECRET": secrets.token_hex(32),
        "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps(BUNDLES),
        "AIRFLOW__CHECKBACK__STORES": stores,
        # A task whose worker, or whose scheduler, was killed holds up the next run of its DAG until Airflow looks for
        # such tasks; by default it waits five minutes.
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "60",
        "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "30",
        # All processes start at once. By default a task fails that waits 5 s for the busy API server, or that finds
        # none yet in five attempts, which are over after some ten seconds.
        "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "30",
        "AIRFLOW__WORKERS__EXECUTION_API_RETRIES": "8",
        # By default a process waits 5 s for SQLite's one writer: the scheduler of a busy machine ended for good. Both
        # are said: the environment may name the database of another Airflow.
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db?timeout={_SQLITE_WAITS_S}",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC": f"sqlite+aiosqlite:///{home}/airflow.db?timeout={_SQLITE_WAITS_S}",
    }
    if database:
        del found["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC"]
        found["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"] = database
        if "+psycopg:" in database:  # this driver does both; Airflow would ask for asyncpg
            found["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC"] = database
    if spark_master:
        found["AIRFLOW_CONN_CHECKBACK_SPARK"] = json.dumps({"conn_type": "spark", "host": spark_master})
    return found
