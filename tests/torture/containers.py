"""The services of docker/compose.yaml without an engine: Linux namespaces, and what the two files say, as they stand.

    with Containers(directory) as made:
        made.start("airflow-init").wait()

The file system is an overlay over this machine's, so that nothing outside changes. In it the last RUN of the Dockerfile
is carried out; a directory that a volume needs and that RUN did not make belongs to root, as Docker makes it. Commands
run unchanged as the user of the image, without capabilities, over packages that belong to root. All services share one
network and one host, and the interpreter is this tree's.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any, Self

from tests.airflow.compose import DOCKER, DOCKERFILE, SERVICES
from tests.house.tree import ROOT

ADDRESS = "172.30.91.10"  # of the service `serve`
(USER,) = re.findall(r"^USER (\S+)$", DOCKERFILE, re.MULTILINE)
STOP_S = 60.0
HOSTS = ("postgres", "airflow-api", "spark-master")
PROGRAMS = ("python", "airflow", "checkback")
PACKAGES = "/usr/local/lib/python3.11/site-packages"
OWN_IMAGE = {name: one for name, one in SERVICES.items() if one["image"].startswith("checkback:")}

# Run by root in new namespaces; $1 is an empty directory, $2 what is carried out in the new file system.
INSIDE = """
set -e
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs "$1"
mkdir "$1/upper" "$1/work" "$1/image"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/image"
mount -t proc proc "$1/image/proc"
mount --rbind /dev "$1/image/dev"
ip link set lo up
ip address add ADDRESS/32 dev lo
hostname checkback
exec chroot "$1/image" sh -ec "$2"
""".replace("ADDRESS", ADDRESS)


def missing() -> str:
    """Why there can be no containers here; empty when there can."""
    if sys.platform != "linux" or os.getuid() != 0:
        return "root on Linux is needed"
    if f"{sys.version_info[0]}.{sys.version_info[1]}" != "3.11":
        return "the image has Python 3.11"
    tried = subprocess.run(
        ["unshare", "--mount", "--net", "--pid", "--uts", "--fork", "true"], check=False, capture_output=True
    )
    return "" if tried.returncode == 0 and shutil.which("setpriv") else "no namespaces here"


def image_environment() -> dict[str, str]:
    """What ENV says in the Dockerfile."""
    (line,) = re.findall(r"^ENV (.+)$", DOCKERFILE, re.MULTILINE)
    return dict(word.split("=", 1) for word in line.split())


def last_run() -> str:
    """The command of the Dockerfile's last RUN, which makes the user and the directories."""
    return re.findall(r"^RUN ((?:.*\\\n)*.*)$", DOCKERFILE, re.MULTILINE)[-1].replace("\\\n", " ")


class Containers:
    """The services whose image is ours, and the PostgreSQL of this machine in the place of the other one."""

    def __init__(self, directory: Path, secrets: dict[str, str]) -> None:
        self.directory, self.secrets = directory, secrets
        self.logs = directory / "logs"
        self.logs.mkdir()
        self._layers = directory / "layers"
        self._layers.mkdir()
        self._started: list[subprocess.Popen[bytes]] = []
        self._init: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        words = ["unshare", "--mount", "--net", "--pid", "--uts", "--fork", "--kill-child", "sh", "-c", INSIDE, "sh"]
        with (self.logs / "image.log").open("wb") as log:
            words += [str(self._layers), self._script()]
            self._init = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
        assert self._init.stdout is not None
        if self._init.stdout.readline() != b"ready\n":
            raise AssertionError((self.logs / "image.log").read_text())
        return self

    def __exit__(self, *_: object) -> None:
        """The first process of the namespace ends, and the kernel ends all others."""
        assert self._init is not None
        assert self._init.stdin is not None
        assert self._init.stdout is not None
        for process in self._started:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        self._init.kill()
        for one in (*self._started, self._init):
            one.wait(STOP_S)
        self._init.stdin.close()
        self._init.stdout.close()

    def _script(self) -> str:
        """What makes the image, then says that it is ready and waits."""
        files = {f"/run/secrets/{name}": text for name, text in self.secrets.items()}
        files["/etc/checkback/stores.toml"] = (DOCKER / "stores.toml").read_text(encoding="utf-8")
        files["/etc/hosts"] = f"127.0.0.1 localhost {' '.join(HOSTS)}\n{ADDRESS} checkback\n"
        programs = Path(sys.executable).parent
        lines = [f"rm -rf /opt/airflow /stores /run/secrets {PACKAGES}", f"mkdir -p {os.path.dirname(PACKAGES)}"]
        closed = {one for path in (ROOT, Path(sys.base_prefix)) for one in path.resolve().parents}
        lines += [f"chmod o+x {shlex.quote(str(one))}" for one in closed if not one.stat().st_mode & 0o001]
        lines.append(f"ln -s {sysconfig.get_paths()['purelib']} {PACKAGES}")
        for name in PROGRAMS:
            text = f'#!/bin/sh\nexec {programs}/{name} "$@"'
            files[f"/usr/local/bin/{name}"] = text
        for path, text in files.items():
            lines += [f"mkdir -p {os.path.dirname(path)}", f"rm -f {path}", f"printf %s {shlex.quote(text)} > {path}"]
            lines.append(f"chmod {'755' if path.startswith('/usr') else '444'} {path}")
        lines += [last_run(), *(f"mkdir -p {place}" for place in self.volumes())]  # by root, as Docker makes them
        lines += ["chmod 1777 /tmp", "echo ready", "exec cat"]
        return "\n".join(lines)

    @staticmethod
    def volumes() -> set[str]:
        """Where the services of our image mount named volumes."""
        found = [mount.split(":") for one in OWN_IMAGE.values() for mount in one.get("volumes", [])]
        return {mount[1] for mount in found if not mount[0].startswith(".")}

    def words(self, command: list[str], environment: dict[str, str], user: str = USER) -> list[str]:
        """A command in the container, as a user."""
        assert self._init is not None
        children = Path(f"/proc/{self._init.pid}/task/{self._init.pid}/children").read_text().split()
        place = f"nsenter --target {children[0]} --mount --net --pid --uts --root"
        rights = f"setpriv --reuid={user} --regid={user} --clear-groups --no-new-privs"
        if user != "root":
            rights += " --bounding-set=-all --inh-caps=-all"
        bare = {"PATH": "/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
        settings = [f"{name}={value}" for name, value in {**bare, **environment}.items()]
        return [*f"{place} {rights} env --ignore-environment --chdir=/opt/airflow".split(), *settings, *command]

    def run(self, *command: str, user: str = "root", **environment: str) -> str:
        """Carry something out in the container, and give what it printed."""
        done = subprocess.run(
            self.words(list(command), environment, user), check=False, capture_output=True, text=True, timeout=STOP_S
        )
        assert done.returncode == 0, f"{command}: {done.stdout}\n{done.stderr}"
        return done.stdout

    def start(self, name: str) -> subprocess.Popen[bytes]:
        """A service of the compose file: its command, its environment."""
        with (self.logs / f"{name}.log").open("wb") as log:
            words = self.words(_plain(SERVICES[name]["command"]), self.environment(name))
            self._started.append(subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log))
        return self._started[-1]

    def is_healthy(self, name: str) -> bool:
        """The health check of a service, once."""
        check = SERVICES[name]["healthcheck"]["test"]
        assert check[0] == "CMD"
        words = self.words(_plain(check[1:]), self.environment(name))
        return subprocess.run(words, check=False, capture_output=True, timeout=STOP_S * 2).returncode == 0

    @staticmethod
    def environment(name: str) -> dict[str, str]:
        """What the image and the compose file say."""
        told: dict[str, Any] = SERVICES[name].get("environment", {})
        return {**image_environment(), "HOME": "/opt/airflow", **{key: _dollars(value) for key, value in told.items()}}


def _plain(command: list[str]) -> list[str]:
    return [_dollars(word) for word in command]


def _dollars(text: str) -> str:
    """Compose writes $$ for $."""
    return text.replace("$$", "$")
