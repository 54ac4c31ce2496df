"""Real RocketMQ brokers on this machine, for tests: jars from Maven Central, everything on 127.0.0.1.

`Cluster` is a name server and a broker on one store; `generate` runs one of our Java programs against it. Nothing here
reads a store or knows what is right: it only makes real stores.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

HERE = Path(__file__).resolve().parent
CACHE = Path(os.environ.get("CHECKBACK_ROCKETMQ", HERE.parents[1] / ".cache" / "rocketmq"))
VERSIONS = ("3.1.4", "5.3.3")
_PROGRAMS = {"5.4.0": "5.3.3", "5.5.0": "5.3.3"}  # whose Java programs a version runs, where it has none of its own
# Whose installation runs the programs, where a version's own client lacks what they use.
_CLIENTS = {"4.9.7": "5.3.3", "5.0.0": "5.3.3", "5.1.4": "5.3.3"}
NAME_SERVER = "5.3.3"  # serves both generations; that of 3.1.4 is not in Maven Central

STATE_TABLE_PROPERTIES: dict[str, object] = {
    "mapedFileSizeCommitLog": 4 << 20,
    "mapedFileSizeConsumeQueue": 60_000,
    "tranStateTableMapedFileSize": 24_000,
    "tranRedoLogMapedFileSize": 20_000,
    "maxHashSlotNum": 1000,
    "maxIndexNum": 4000,
    "checkTransactionMessageEnable": "true",
    "checkTransactionMessageAtleastInterval": 5000,
    "checkTransactionMessageTimerInterval": 10_000,
}
HALF_OP_PROPERTIES: dict[str, object] = {
    "mappedFileSizeCommitLog": 4 << 20,
    "mappedFileSizeConsumeQueue": 60_000,
    "mappedFileSizeTimerLog": 1 << 20,
    "maxHashSlotNum": 1000,
    "maxIndexNum": 4000,
    "transactionCheckInterval": 5000,
    "transactionTimeOut": 4000,
    "transactionCheckMax": 3,
    "bindAddress": "127.0.0.1",
}
COMMON_PROPERTIES: dict[str, object] = {
    "brokerClusterName": "DefaultCluster",
    "brokerName": "broker-a",
    "brokerId": 0,
    "brokerIP1": "127.0.0.1",
    "brokerRole": "ASYNC_MASTER",
    "flushDiskType": "ASYNC_FLUSH",
    "messageDelayLevel": "1s 1s 2s 2s 3s 3s",
}
PROGRAM_SECONDS = 400
BOOT_SECONDS = 240  # a 5.x broker takes 10 s of processor time, of which a busy machine gives little
OPENED = ("java.nio", "java.lang", "java.net", "sun.nio.ch", "jdk.internal.ref")


class NotToBeHad(Exception):
    """Java, Maven or the jars are missing; the text says which, for the reason of a skipped test."""


class BrokerFailed(Exception):
    """A Java process ended or did not come up; the text holds the end of what it printed."""


@dataclass(frozen=True)
class Installation:
    """One RocketMQ version with our compiled programs."""

    version: str
    lib: Path
    classes: Path
    client: Installation | None = None  # that runs our programs, where it is another one

    @property
    def package(self) -> str:
        return "com.alibaba.rocketmq" if self.version == "3.1.4" else "org.apache.rocketmq"

    @property
    def default_properties(self) -> dict[str, object]:
        return STATE_TABLE_PROPERTIES if self.version == "3.1.4" else HALF_OP_PROPERTIES

    def command(self, home: Path, main: str, *words: str, heap: str = "512m") -> list[str]:
        """The Java command line of one main class whose "any address" is 127.0.0.1."""
        opened = [f"--add-{how}=java.base/{name}=ALL-UNNAMED" for name in OPENED for how in ("opens", "exports")]
        return [
            "java",
            *opened,
            "-Djava.net.preferIPv4Stack=true",
            f"-Duser.home={home}",
            "-Drocketmq.client.rebalance.waitInterval=2000",
            f"-Xmx{heap}",
            f"-XX:MaxDirectMemorySize={heap}",
            "-XX:TieredStopAtLevel=1",
            "-cp",
            f"{(self.client or self).classes}:{self.lib}/*",
            "Loopback",
            main,
            *words,
        ]


def install(version: str, cache: Path = CACHE) -> Installation:
    """Get the jars once and compile our programs when they changed. Raises `NotToBeHad`."""
    for tool in ("java", "javac"):
        if shutil.which(tool) is None:
            raise NotToBeHad(f"{tool} is not installed: real brokers need a Java 17 development kit")
    place = cache / version
    place.mkdir(parents=True, exist_ok=True)
    if not (place / "complete").exists():
        _fetch_jars(version, place)
    if version in _CLIENTS:
        return Installation(version, place / "lib", place / "classes", install(_CLIENTS[version], cache))
    directories = (HERE / "java" / "common", HERE / "java" / _PROGRAMS.get(version, version))
    sources = [source for directory in directories for source in sorted(directory.glob("*.java"))]
    classes = place / "classes"
    stamp = classes / "stamp"
    if not stamp.exists() or any(source.stat().st_mtime > stamp.stat().st_mtime for source in sources):
        classes.mkdir(exist_ok=True)
        words = ["javac", "-nowarn", "-encoding", "UTF-8", "-d", str(classes), "-cp", f"{place}/lib/*"]
        done = subprocess.run([*words, *map(str, sources)], capture_output=True, text=True, check=False)
        if done.returncode:
            raise NotToBeHad(f"our Java programs do not compile here: {done.stderr[-2000:]}")
        stamp.touch()
    return Installation(version, place / "lib", classes)


def _fetch_jars(version: str, place: Path) -> None:
    if shutil.which("mvn") is None:
        raise NotToBeHad("mvn is not installed: the jars of real brokers come from Maven Central")
    goal = ["dependency:copy-dependencies", f"-DoutputDirectory={place / 'lib'}"]
    pom = HERE / "java" / version / "pom.xml"
    done = subprocess.run(["mvn", "-q", "-B", "-f", str(pom), *goal], capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotToBeHad(f"Maven cannot get RocketMQ {version}: {(done.stdout + done.stderr)[-1000:]}")
    (place / "complete").touch()


def jdbc_driver(cache: Path = CACHE) -> Path:
    """The directory with the jar of a driver for SQLite. Raises `NotToBeHad`."""
    return jars_of("jdbc", cache)


def jars_of(name: str, cache: Path = CACHE) -> Path:
    """The directory with the jars that tests/compat/java/NAME/pom.xml lists. Raises `NotToBeHad`."""
    place = cache / name
    place.mkdir(parents=True, exist_ok=True)
    if not (place / "complete").exists():
        _fetch_jars(name, place)
    return place / "lib"


def free_port(neighbours: range = range(-2, 2)) -> int:
    """A port on 127.0.0.1 that is free together with its neighbours (a broker opens four in a row)."""
    for _ in range(100):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        if port + neighbours.stop < 65536 and all(_is_free(port + step) for step in neighbours):
            return port
    raise BrokerFailed("no four free ports in a row on 127.0.0.1")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


class Java:
    """One Java process and what it prints."""

    def __init__(self, name: str, command: list[str], home: Path) -> None:
        self.name = name
        self.log = home / f"{name}-{time.monotonic_ns()}.log"
        environment = {**os.environ, "ROCKETMQ_HOME": str(home)}
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=environment, cwd=home
            )

    def printed(self) -> str:
        return self.log.read_text("utf-8", "replace")

    def await_text(self, text: str, seconds: float = 60) -> None:
        end = time.monotonic() + seconds
        while text not in self.printed():
            if self.process.poll() is not None or time.monotonic() > end:
                self.kill()
                raise BrokerFailed(f"{self.name} did not say {text!r}: {self.printed()[-3000:]}")
            time.sleep(0.1)

    def stop(self, seconds: float = 90) -> None:
        """SIGTERM: the process ends as its authors meant it."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise BrokerFailed(f"{self.name} did not end within {seconds} s of SIGTERM") from None

    def kill(self) -> None:
        """SIGKILL: a crash."""
        self.process.kill()
        self.process.wait()


class Cluster:
    """A name server and, once `start_broker` is called, a broker on a store; what still runs at the end is killed."""

    def __init__(self, installation: Installation, store: Path, **properties: object) -> None:
        self.installation = installation
        self.store = store
        self.properties = properties
        self.home = Path(tempfile.mkdtemp(prefix="rocketmq-home-"))
        self.name_port = free_port(range(1))
        self.broker_port = free_port()
        self.broker: Java | None = None
        self._others: list[Java] = []

    @property
    def namesrv(self) -> str:
        return f"127.0.0.1:{self.name_port}"

    def __enter__(self) -> Self:
        configuration = self.home / "conf"
        configuration.mkdir(parents=True)
        for part in ("namesrv", "broker"):
            quiet = '<configuration><root level="ERROR"/></configuration>'
            (configuration / f"logback_{part}.xml").write_text(quiet)
        settings = self._write("namesrv.properties", {"listenPort": self.name_port, "bindAddress": "127.0.0.1"})
        serving = install(NAME_SERVER)
        main = f"{serving.package}.namesrv.NamesrvStartup"
        server = Java("namesrv", serving.command(self.home, main, "-c", str(settings), heap="128m"), self.home)
        self._others.append(server)
        server.await_text("boot success", BOOT_SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        for process in [*self._others, *([self.broker] if self.broker else [])]:
            if process.process.poll() is None:
                process.kill()
        shutil.rmtree(self.home, ignore_errors=True)

    def start_broker(self, **more: object) -> Java:
        """Start the broker on the store (which it recovers first, if it was not closed) and wait until it serves."""
        self.store.mkdir(parents=True, exist_ok=True)
        settings = {
            **COMMON_PROPERTIES,
            **self.installation.default_properties,
            "namesrvAddr": self.namesrv,
            "listenPort": self.broker_port,
            "haListenPort": self.broker_port + 1,
            "storePathRootDir": self.store,
            "storePathCommitLog": self.store / "commitlog",
            **self.properties,
            **more,
        }
        file = self._write("broker.properties", settings)
        main = f"{self.installation.package}.broker.BrokerStartup"
        self.broker = Java("broker", self.installation.command(self.home, main, "-c", str(file)), self.home)
        self.broker.await_text("boot success", BOOT_SECONDS)
        return self.broker

    def start_master(self, name: str, store: Path, port: int, *, heap: str = "256m", **more: object) -> Java:
        """Start one more master of the same cluster, on a port with three neighbours, and wait until it serves."""
        store.mkdir(parents=True, exist_ok=True)
        settings = {
            **COMMON_PROPERTIES, **self.installation.default_properties, "namesrvAddr": self.namesrv,
            "brokerName": name, "listenPort": port, "haListenPort": port + 1, "storePathRootDir": store,
            "storePathCommitLog": store / "commitlog", **self.properties, **more,
        }  # fmt: skip
        file = self._write(f"{name}.properties", settings)
        main = f"{self.installation.package}.broker.BrokerStartup"
        java = Java(name, self.installation.command(self.home, main, "-c", str(file), heap=heap), self.home)
        self._others.append(java)
        java.await_text("boot success", BOOT_SECONDS)
        return java

    def start(self, program: str, truth: Path, *, more_jars: Path | None = None, **options: object) -> Java:
        """Start one of our programs of tests/compat/java against this cluster."""
        given = {"namesrv": self.namesrv, "broker": f"127.0.0.1:{self.broker_port}", "truth": truth, **options}
        words = [f"{name}={value}" for name, value in given.items()]
        installation = self.installation.client or self.installation
        command = installation.command(self.home, program, *words, heap="256m")
        if more_jars is not None:
            command = [f"{word}:{more_jars}/*" if word.endswith(f"{installation.lib}/*") else word for word in command]
        java = Java(program, command, self.home)
        self._others.append(java)
        return java

    def run(self, program: str, truth: Path, **options: object) -> None:
        """Run one of our programs to its end."""
        java = self.start(program, truth, **options)
        try:
            code = java.process.wait(PROGRAM_SECONDS)
        except subprocess.TimeoutExpired:
            java.kill()
            code = -1
        if code:
            raise BrokerFailed(f"{program} ended with {code}: {java.printed()[-3000:]}")

    def _write(self, name: str, settings: Mapping[str, object]) -> Path:
        file = self.home / name
        file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        return file


@contextmanager
def running(installation: Installation, store: Path, **properties: object) -> Iterator[Cluster]:
    """A cluster whose broker already serves."""
    with Cluster(installation, store, **properties) as cluster:
        cluster.start_broker()
        yield cluster


def read_truth(file: Path) -> list[dict[str, Any]]:
    """The events of a truth file; a last line cut by a kill is left out."""
    events = []
    for line in file.read_bytes().split(b"\n") if file.exists() else []:
        try:
            events.append(json.loads(line))
        except ValueError:
            continue
    return events


def await_events(truth: Path, enough: Callable[[list[dict[str, Any]]], bool], seconds: float = 120) -> None:
    """Wait until the truth file says enough."""
    end = time.monotonic() + seconds
    while not enough(read_truth(truth)):
        if time.monotonic() > end:
            raise BrokerFailed(f"{truth} did not come to what was awaited within {seconds} s")
        time.sleep(0.2)
