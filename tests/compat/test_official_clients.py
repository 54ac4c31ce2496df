"""Unmodified official clients against `checkback serve`: they must report what they report about a real 5.3.3 broker.

Each engine of transactions has a server of its own.

The programs, and what they printed against the real broker, are in a directory beside the repository
(`CHECKBACK_WIRE_CLIENTS`); jars and builds go to `WIRE_HOME`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import broker
from tests.house.tree import ROOT
from tests.server.wire_client import WireClient

CLIENTS = Path(os.environ.get("CHECKBACK_WIRE_CLIENTS", ROOT.parent / "shared/wire/clients"))
HOME = Path(os.environ.get("WIRE_HOME", ROOT / ".cache/wire"))
JAVA = (
    "plain", "batch", "ordered", "delayed", "timer", "transaction", "retry", "broadcast", "tags", "pull", "rebalance",
    "latency", "reset", "admin",
)  # fmt: skip
GO = ("plain", "ordered", "delayed", "tags", "retry", "broadcast", "transaction", "admin")
# As the real broker was configured when the programs were recorded: real/broker.conf of the directory.
LEVELS = "1s 2s 3s 4s 5s 6s 7s 8s 9s 10s 20s 30s 1m 2m 5m 10m 30m 1h"
OPTIONS = ["--admin", "--no-sql92", "--check-every", "3", "--check-after", "6", "--delay-levels", LEVELS]
# Commands that fail on the real broker and work here: 5.3.3 lists a group that is not there among a topic's groups, and
# lacks a name that the 4.9.8 tool reads.
BETTER = ("queryMsgById ", "queryMsgByOffset ", "queryMsgByUniqueKey ", "clusterList")

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(not (CLIENTS / "clients").exists(), reason=f"the official clients are not in {CLIENTS}"),
    pytest.mark.skipif(shutil.which("mvn") is None, reason="Maven is not installed"),
]


def clients(*arguments: str) -> str:
    """What the harness prints."""
    command = [str(CLIENTS / "clients"), *arguments]
    environment = {**os.environ, "WIRE_HOME": str(HOME)}
    done = subprocess.run(  # mqadmin leaves directories where it runs: not in the tree
        command, env=environment, cwd=HOME, capture_output=True, text=True, check=False, timeout=500
    )
    return done.stdout


@pytest.fixture(scope="module", params=["state-table", "half-op"])
def address(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[str]:
    """A server in a process of its own, for all programs: each has topics and groups of its own."""
    HOME.mkdir(parents=True, exist_ok=True)
    clients("install", "--only", "java")
    store = str(tmp_path_factory.mktemp("served") / "store")
    with broker.open(store, transactions=request.param) as made:
        made.append(broker.Message("first", b"x"))  # so that no half message stands at offset 0, which counts as none
    command = [sys.executable, "-m", "recovery.cli", "serve", store, "--sync", "os"]
    with subprocess.Popen([*command, "--listen", "127.0.0.1:0", *OPTIONS], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        line = server.stdout.readline()
        found = re.search(r"on (\S+): name server", line)
        assert found, line
        try:
            yield found[1]
        finally:
            server.send_signal(signal.SIGTERM)
            assert server.wait(30) == 0
    verified = subprocess.run(
        [sys.executable, "-m", "recovery.cli", "verify", store], check=False, capture_output=True, text=True
    )
    assert verified.returncode == 0, verified.stdout


def reported(text: str) -> list[str]:
    """The lines of a program, without what changes from run to run."""
    found = []
    for line in text.splitlines():
        if line.startswith("{"):
            value: dict[str, Any] = json.loads(line)
            value.pop("v", None)
            if str(value.get("cmd", "")).startswith(BETTER):
                value["ok"] = True
            found.append(json.dumps(value, sort_keys=True, ensure_ascii=False))
    return sorted(found)


def expected(name: str) -> list[str]:
    return reported((CLIENTS / "expected" / f"{name}.jsonl").read_text(encoding="utf-8"))


@pytest.mark.parametrize("version", ["5.3.3", "4.9.8"])
@pytest.mark.parametrize("name", JAVA)
def test_a_java_program_sees_what_it_sees_on_a_real_broker(address: str, name: str, version: str) -> None:
    text = clients("run", name, "--namesrv", address, "--version", version)
    assert reported(text) == expected(f"{version}-{name}")


def test_the_java_client_of_2014_is_checked_and_every_decision_is_kept(address: str, tmp_path: Path) -> None:
    """3.1.4: its END_TRANSACTION goes to the address in the message id, and unknown ends are asked about."""
    home, pom = HOME / "3.1.4", CLIENTS.parents[1] / "rocketmq/3.1.4/pom.xml"
    if not pom.exists():
        pytest.skip(f"{pom} is not there")
    if not (home / "lib").exists():
        copy = ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies"]
        subprocess.run([*copy, f"-DoutputDirectory={home / 'lib'}"], check=True, timeout=500)
    source = CLIENTS / "java314/Generate31.java"
    (home / "probe").mkdir(parents=True, exist_ok=True)
    compiler = ["javac", "-nowarn", "-encoding", "UTF-8", "-d", str(home / "probe"), "-cp", f"{home}/lib/*"]
    subprocess.run([*compiler, str(source)], check=True, timeout=200)
    truth, seed = tmp_path / "truth.jsonl", str(os.getpid())
    opened = [f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in ("java.nio", "sun.nio.ch", "java.lang")]
    program = ["java", *opened, "-cp", f"{home}/probe:{home}/lib/*", "Generate31"]
    arguments = ["100", "3000", "25", f"wire_p31_{seed}", "8", str(truth), address]
    subprocess.run([*program, *arguments], check=True, capture_output=True, timeout=200)
    rows = [json.loads(line) for line in truth.read_text(encoding="utf-8").splitlines()]
    checked = {row["key"]: row["answer"] for row in rows if row["event"] == "check"}
    wanted = {row["key"] for row in rows if row["event"] == "plain"}
    wanted |= {
        row["key"]
        for row in rows
        if row["event"] == "half" and "COMMIT_MESSAGE" in (row["local"], checked.get(row["key"]))
    }
    assert len(checked) >= 8
    assert sorted(delivered(address, f"wire_p31_{seed}-")) == sorted(wanted)


def delivered(address: str, prefix: str) -> list[str]:
    """The keys that begin so, of all messages that the generator's topics hold."""
    found = []
    with WireClient(address) as client:
        for topic in ("OrderTopic", "PayTopic"):
            for queue_id in range(4):
                at = 0
                while records := client.pulled("reader", topic, at, queue_id=queue_id)[1]:
                    found += [record.property_map["KEYS"] for record in records]
                    at += len(records)
    return [key for key in found if key.startswith(prefix)]


@pytest.mark.parametrize("name", GO)
def test_a_go_program_sees_what_it_sees_on_a_real_broker(address: str, name: str) -> None:
    if not (HOME / "goprobe").exists():
        if shutil.which("go") is None:
            pytest.skip("Go is not installed")
        clients("install", "--only", "go")
    assert reported(clients("run", f"go-{name}", "--namesrv", address)) == expected(f"go-{name}")
