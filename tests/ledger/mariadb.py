"""A MariaDB server of its own for the tests: in a temporary directory, on a unix socket, without the network."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PROGRAMS = ("mariadb-install-db", "mariadbd", "mariadb-admin")
_START_S = 60.0


def missing() -> str:
    """Why there is no server here; empty when there is one."""
    return next((f"MariaDB's {name} is not installed" for name in _PROGRAMS if _program(name) is None), "")


def _program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


@contextmanager
def server() -> Iterator[Path]:
    """Run a server whose root has no password; gives its socket. It is killed and removed at the end."""
    directory = Path(tempfile.mkdtemp(prefix="my-"))  # short: the path of a socket has at most 107 bytes
    data, socket = directory / "data", directory / "socket"
    user = pwd.getpwuid(os.getuid()).pw_name
    scratch = directory / "tmp"  # of its own: a server that starts removes what others have in a shared one
    scratch.mkdir()
    common = ["--no-defaults", f"--datadir={data}", f"--tmpdir={scratch}", f"--user={user}"]
    try:
        _run("mariadb-install-db", *common, "--auth-root-authentication-method=normal", "--skip-test-db")
        program = _program("mariadbd")
        assert program is not None
        with (directory / "log").open("wb") as log:
            options = ["--skip-networking", f"--socket={socket}", f"--pid-file={directory / 'pid'}"]
            small = ["--innodb-buffer-pool-size=16M", "--innodb-flush-log-at-trx-commit=2"]
            running = subprocess.Popen([program, *common, *options, *small], stdout=log, stderr=log)
        try:
            _wait(running, socket, directory / "log")
            yield socket
        finally:
            running.kill()
            running.wait()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _run(name: str, *arguments: str) -> None:
    program = _program(name)
    assert program is not None
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def _wait(running: subprocess.Popen[bytes], socket: Path, log: Path) -> None:
    deadline, program = time.monotonic() + _START_S, _program("mariadb-admin")
    assert program is not None
    ping = [program, "--no-defaults", "-uroot", f"-S{socket}", "ping"]
    while subprocess.run(ping, capture_output=True, check=False).returncode:
        assert running.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)
