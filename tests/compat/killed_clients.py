"""Official Java and Go clients as producers and consumers that are killed, beside those of tests/server/killed_wire.py.

Jars and the Go modules are those of the official clients' checks: `WIRE_HOME`, `CHECKBACK_WIRE_CLIENTS`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import zlib
from pathlib import Path

from tests.house.tree import ROOT
from tests.server.killed_wire import TOPIC, Crowd

HERE = Path(__file__).resolve().parent / "wire"
CLIENTS = Path(os.environ.get("CHECKBACK_WIRE_CLIENTS", ROOT.parent / "shared/wire/clients"))
HOME = Path(os.environ.get("WIRE_HOME", ROOT / ".cache/wire"))
OPENED = [f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in ("java.nio", "sun.nio.ch", "java.lang")]
# Each language produces and consumes; one consumer has the store open.
NAMES = (
    "java.produce-0", "java.consume-0", "java.consume-1", "go.produce-0", "go.consume-0", "produce-0", "consume-0",
    "local-0",
)  # fmt: skip


def missing() -> str:
    """Which program is not installed; empty when the clients can be built."""
    absent = [name for name in ("java", "javac", "mvn", "go") if shutil.which(name) is None]
    if not (CLIENTS / "clients").exists():
        absent.append(str(CLIENTS))
    return ", ".join(absent)


def build() -> None:
    """Compile both programs, unless that was done; raises CalledProcessError."""
    if not (HOME / "5.3.3/probe").exists():
        subprocess.run([CLIENTS / "clients", "install", "--only", "java"], env=_environment(), check=True, timeout=900)
    if not (place := _built("Killed.java")).exists():
        compiler = ["javac", "-nowarn", "-encoding", "UTF-8", "-d", place, "-cp", f"{HOME}/5.3.3/lib/*"]
        subprocess.run([*compiler, HERE / "Killed.java"], check=True, timeout=300)
    if not (place := _built("killed.go")).exists():
        module = place.with_suffix(".module")
        module.mkdir(parents=True, exist_ok=True)
        for name in ("go.mod", "go.sum"):
            (module / name).write_bytes((CLIENTS / "go" / name).read_bytes())
        shutil.copy(HERE / "killed.go", module / "main.go")
        environment = {**os.environ, "GOFLAGS": "-mod=mod"}
        subprocess.run(["go", "build", "-o", place, "."], cwd=module, env=environment, check=True, timeout=600)


def _built(source: str) -> Path:
    """Where a program is kept, by what its source says."""
    return HOME / f"{Path(source).stem}-{zlib.crc32((HERE / source).read_bytes()):08x}"


def _environment() -> dict[str, str]:
    return {**os.environ, "WIRE_HOME": str(HOME)}


class OfficialCrowd(Crowd):
    """Official clients beside ours; `java.produce-0` is a producer in Java."""

    def words(self, name: str) -> list[str]:
        language, dot, role = name.split("-", maxsplit=1)[0].partition(".")
        if not dot:
            return super().words(name)
        arguments = [role, str(self.directory), ";".join(json.loads((self.directory / "servers").read_text())), TOPIC]
        if language == "go":
            return [str(_built("killed.go")), *arguments]
        home = [f"-Duser.home={HOME}", f"-Drocketmq.client.logRoot={HOME}/logs"]
        classes = f"{_built('Killed.java')}:{HOME}/5.3.3/lib/*"
        return ["java", "-Xmx96m", "-XX:TieredStopAtLevel=1", *OPENED, *home, "-cp", classes, "Killed", *arguments]
