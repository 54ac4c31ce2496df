"""A PostgreSQL server of its own for the tests: in a temporary directory, on a unix socket, without the network."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PROGRAMS = ("initdb", "pg_ctl", "postgres")
_USERS = ("postgres", "nobody")


def missing() -> str:
    """Why there is no server here; empty when there is one."""
    for name in _PROGRAMS:
        if _program(name) is None:
            return f"PostgreSQL's {name} is not installed"
    if os.getuid() == 0 and shutil.which("setpriv") is None:
        return "PostgreSQL does not run as root, and setpriv is not installed"
    return ""


def _program(name: str) -> str | None:
    debian = sorted(str(path) for path in Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return shutil.which(name) or (debian[-1] if debian else None)


@contextmanager
def server(options: str = "-F -c shared_buffers=16MB", parent: Path | None = None) -> Iterator[Path]:
    """Run a server; gives the directory of its socket. It is killed and removed at the end. -F: it flushes nothing."""
    directory = Path(tempfile.mkdtemp(prefix="pg-", dir=parent))  # short: the path of a socket has at most 107 bytes
    drop: list[str] = []
    if os.getuid() == 0:
        user = next(pwd.getpwnam(name) for name in _USERS if _exists(name))
        os.chown(directory, user.pw_uid, user.pw_gid)
        drop = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
    data = directory / "data"

    def run(name: str, *arguments: str) -> None:
        program = _program(name)
        assert program is not None
        done = subprocess.run(
            [*drop, program, *arguments], cwd=directory, capture_output=True, text=True, check=False, timeout=120
        )
        assert done.returncode == 0, done.stdout + done.stderr

    try:
        run("initdb", "-D", str(data), "-U", "shop", "-A", "trust", "-N", "-E", "UTF8", "--locale=C")
        words = f"-k {directory} -h '' -c max_connections=40 {options}"
        run("pg_ctl", "-D", str(data), "-l", str(directory / "log"), "-w", "-o", words, "start")
        try:
            yield directory
        finally:
            run("pg_ctl", "-D", str(data), "-m", "immediate", "-w", "stop")
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _exists(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True
