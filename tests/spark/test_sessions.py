"""Why Spark cannot start here, in a sentence."""

from __future__ import annotations

import gc
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyspark
import pytest

import broker
from broker.errors import BrokerError
from recovery.spark import findings, rebuild, register, scan, sessions, shipping, stream, transactions, verify
from recovery.spark.mapping import mapped
from recovery.spark.sessions import SparkNotReady, check_installation, java_version
from tests.house.tree import ROOT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ('openjdk version "17.0.9" 2023-10-17', 17),
        ('java version "1.8.0_392"', 8),
        ('openjdk version "21" 2023-09-19', 21),
        ("no such thing", None),
    ],
)
def test_the_version_of_java(said: str, version: int | None) -> None:
    """Java counted from 1.x once."""
    assert java_version(said) == version


def _java(directory: Path, said: str) -> None:
    file = directory / "java"
    file.write_text(f"#!/bin/sh\necho '{said}' >&2\n")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)


def test_an_old_java_or_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Spark itself only says that its gateway exited."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SparkNotReady, match="PATH leads to none"):
        check_installation()
    _java(tmp_path, 'openjdk version "11.0.2" 2019-01-15')
    with pytest.raises(SparkNotReady, match=r"needs Java 17 or newer, and .*java is Java 11"):
        check_installation()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    with pytest.raises(SparkNotReady, match="JAVA_HOME leads to none"):
        check_installation()


def test_pyspark_that_another_distribution_wrote_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its metadata and its files do not say the same."""
    monkeypatch.setattr(sessions, "version", lambda _: "4.2.0")
    with pytest.raises(SparkNotReady, match=r"damaged: its metadata says 4\.2\.0.*pyspark-client"):
        check_installation()


def test_a_spark_that_is_too_old(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With 4.0.1 a verification ended as a defect of checkback: KeyError."""
    assert f'"pyspark>={".".join(map(str, shipping.SPARK_MIN))},<5"' in (ROOT / "pyproject.toml").read_text("utf-8")
    assert not any(map(shipping.why_too_old, ("4.1.0", "4.1.0.dev0", "4.10.2", "5.0.0")))
    broker.open(tmp_path / "shop.store").close()
    monkeypatch.setattr(sessions, "version", lambda _: "4.0.1")
    monkeypatch.setattr(pyspark, "__version__", "4.0.1")
    refused = r"^pyspark is 4\.0\.1, and checkback needs 4\.1 or newer\. Install it: pip install 'pyspark>=4\.1,<5'$"
    with pytest.raises(SparkNotReady, match=refused):
        check_installation()
    with pytest.raises(BrokerError, match=refused):
        scan(None, tmp_path / "shop.store")  # type: ignore[arg-type] # a session of the user's own


def test_no_pyspark(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra is named."""
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(SparkNotReady, match="install checkback with its extra 'spark'"):
        check_installation()


def test_spark_connect_is_refused() -> None:
    """With the reason, not with a missing attribute later."""
    with pytest.raises(SparkNotReady, match=r"Spark Connect server.*spark://host:7077"):
        sessions.session("sc://somewhere")


@pytest.mark.parametrize(
    ("variables", "config", "asked"),
    [
        ({"SPARK_REMOTE": "sc://somewhere"}, {}, "SPARK_REMOTE"),
        ({"SPARK_CONNECT_MODE_ENABLED": "1"}, {}, "SPARK_CONNECT_MODE_ENABLED"),
        ({}, {"spark.remote": "local[*]"}, "spark.remote"),
        ({"SPARK_API_MODE": "classic"}, {"spark.api.mode": "Connect"}, "spark.api.mode=connect"),
    ],
)
def test_what_asks_for_spark_connect_is_refused(
    variables: dict[str, str], config: dict[str, str], asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PySpark's own error reached the user, with its traceback; or Spark was said not to start."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    refused = pytest.raises(SparkNotReady, match=rf"^{asked} asks for a session of Spark Connect.*, without {asked}$")
    with refused:
        sessions.session("local[2]", config=config)
    with refused, sessions.running("local[2]", config=config):
        pass


@pytest.mark.parametrize("door", [scan, stream, findings, transactions, verify, rebuild, register])
def test_what_is_no_session_of_sparks_own_is_refused(door: Any, tmp_path: Path) -> None:
    """A session of Spark Connect that a notebook made, and what is not a session, were a missing attribute."""
    broker.open(tmp_path / "shop.store").close()
    connect = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    path = () if door is register else (tmp_path / "shop.store",)
    with pytest.raises(BrokerError, match=r"this session is one of Spark Connect, which .*spark://host:7077"):
        door(connect, *path)
    with pytest.raises(BrokerError, match=r"spark is a SparkSession, as recovery\.spark\.session\(\) makes one"):
        door("local[2]", *path)


def test_each_session_of_a_process_knows_the_format(spark: SparkSession, tmp_path: Path) -> None:
    """A notebook's session is one of several: Spark refused a second one, for the first knew the format already."""
    broker.open(tmp_path / "shop.store").close()
    for one in (spark.newSession(), spark, spark.newSession()):
        assert scan(one, tmp_path / "shop.store", columns=["topic"]).count() == 0
        assert one.read.format("rocketmq-commitlog").load(str(tmp_path / "shop.store")).count() == 0


@pytest.mark.parametrize("master", ["", "lokal[1]", "local[0]", "local[x]", "local[*", "localhost:7077", "spark://"])
def test_what_is_not_a_master_is_refused(master: str) -> None:
    """Before Java starts: what it says of it are forty lines."""
    with pytest.raises(SparkNotReady, match=r"is not a master of Spark: give local\[\*\]"):
        sessions.session(master)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (
            "An error occurred while calling x.\n: org.apache.SparkException: no host\n\tat org.apache",
            "SparkException: no host",
        ),
        (
            "[JAVA_GATEWAY_EXITED] Java gateway process exited.\nand more",
            "[JAVA_GATEWAY_EXITED] Java gateway process exited.",
        ),
        ("", "RuntimeError"),
        (
            "An error occurred.\n: java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext.",
            "no master took the application. See that it runs, and that this machine reaches its port",
        ),
    ],
)
def test_the_reason_is_what_java_raised(said: str, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Py4J's first line names the call that failed, and nothing else."""

    def refuse(_settings: object) -> None:
        raise RuntimeError(said)

    monkeypatch.setattr(sessions, "check_installation", lambda: None)
    monkeypatch.setattr(sessions, "_start_jvm", refuse)
    with pytest.raises(SparkNotReady) as raised:
        sessions.session("spark://nowhere:7077")
    assert str(raised.value).endswith(reason)


def test_an_interrupt_leaves_no_jvm_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while Spark starts: each time a JVM stayed, of 200 MiB, after the command had ended."""
    from pyspark import SparkContext, java_gateway

    started: list[subprocess.Popen[bytes]] = []

    def interrupted(_settings: object) -> None:
        started.append(java_gateway.__dict__["Popen"](["sleep", "60"]))
        raise KeyboardInterrupt

    monkeypatch.setattr(sessions, "check_installation", lambda: None)
    monkeypatch.setattr(sessions, "_start_jvm", interrupted)
    monkeypatch.setattr(SparkContext, "_gateway", None)
    with pytest.raises(KeyboardInterrupt):
        sessions.session("local[1]")
    assert started[0].poll() is not None
    assert java_gateway.__dict__["Popen"] is subprocess.Popen


def test_the_session_runs_this_python(spark: SparkSession) -> None:
    """Not the first python3 on the path, which may lack everything."""
    assert spark.sparkContext.pythonExec == sys.executable
    assert spark.sparkContext.parallelize([0], 1).map(lambda _: sys.executable).collect() == [sys.executable]


def test_a_session_knows_the_format(
    spark: SparkSession, golden: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's own way to read a table, before any function of ours: it raised ClassNotFoundException."""
    path, registered = golden("kinds/rocketmq-5.3.3-plain"), list[object]()
    assert spark.read.format("rocketmq-commitlog").load(str(path)).count() == 40
    monkeypatch.setattr("recovery.spark.tables.register", registered.append)
    assert registered == [sessions.session("local[2]")] == [spark]


def test_workers_set_their_modules_aside(spark: SparkSession) -> None:
    """Else Spark's daemon looks through all of them for garbage after each task."""

    def aside(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield pa.RecordBatch.from_arrays([pa.array([gc.get_freeze_count()])], names=["modules"])

    (row,) = mapped(spark.range(0, 1, 1, 1), aside, "modules bigint").collect()
    assert row.modules > 10_000


def test_sockets_lie_where_their_path_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever Java's temporary directory is; where nobody may write there, Spark goes on with TCP."""
    directory, enabled = "spark.python.unix.domain.socket.dir", "spark.python.unix.domain.socket.enabled"
    assert len(sessions._settings(local=True)[directory]) + len("/.") + 36 + len(".sock") < 100
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert enabled not in sessions._settings(local=True)


AWAITED = (
    "An error occurred while calling o9.getResult.\n: a.SparkException: Exception thrown in awaitResult: \n\tat a.B\n"
)
LOST = "Job aborted due to stage failure: Lost task 0.0 (executor 3): Python worker exited unexpectedly (crashed)"
PYTHON = "An exception was thrown from the Python worker:\nTraceback (most recent call last):\n  File 'a', line 1\n"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            f"{AWAITED}Caused by: a.SparkException: {LOST}: \n\tat a.B\nCaused by: EOFException\n\t... 24 more\n",
            LOST,
        ),
        (f"{AWAITED}Caused by: a.B: [SPARK_JOB_CANCELLED] Job 1 cancelled\n", "[SPARK_JOB_CANCELLED] Job 1 cancelled"),
        (f"{PYTHON}OSError: [Errno 5] AWS Error\n\nJVM stacktrace:\na.B\n", "OSError: [Errno 5] AWS Error"),
        ("[PATH_NOT_FOUND] Path does not exist: a\nmore", "[PATH_NOT_FOUND] Path does not exist: a"),
        ("requirement failed: -1\n\nJVM stacktrace:\na.B", "requirement failed: -1"),
        ("[Errno 111] Connection refused", "the Java process of the driver ended"),
        ("An error occurred while calling o192.getResult", "the Java process of the driver ended"),
        ("An error occurred while trying to connect to the Java server", "the Java process of the driver ended"),
    ],
)
def test_why_spark_gave_up_a_job(text: str, reason: str) -> None:
    assert sessions.why_given_up(text) == reason


def test_a_job_that_spark_gives_up_ends_with_a_sentence(spark: SparkSession) -> None:
    """A killed worker was called a defect of checkback, with the traceback of Java behind it."""

    def die(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            os._exit(9)
        yield from ()

    sentence = r"^Spark gave up the job: .*Python worker exited.* Run it again"
    with pytest.raises(sessions.SparkJobFailed, match=sentence), sessions.running() as running:
        mapped(running.range(1), die, "id bigint").toArrow()
    assert spark.range(3).count() == 3


def test_the_workers_run_the_python_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The setting was without effect, and without a word: PySpark reads the environment alone.

    Of a later session that names none it is not the Python.
    """
    at_start = []

    def fail(_: object) -> None:
        at_start.append(os.environ["PYSPARK_PYTHON"])
        raise RuntimeError("far enough")

    monkeypatch.setattr(sessions, "_start_jvm", fail)
    for before, named, expected in (
        (None, {}, sys.executable),
        ("/opt/python", {}, "/opt/python"),
        ("/opt/python", {"spark.pyspark.python": "./env/bin/python"}, "./env/bin/python"),
    ):
        monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
        if before is not None:
            monkeypatch.setenv("PYSPARK_PYTHON", before)
        with pytest.raises(SparkNotReady, match="far enough"):
            sessions.session("local[2]", config=named)
        assert at_start.pop() == expected
        assert os.environ["PYSPARK_PYTHON"] == (before or sys.executable)


def test_a_module_that_the_workers_lack_is_to_be_installed(spark: SparkSession) -> None:
    """To run it again, as the sentence said, does not help."""

    def load(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import not_on_workers  # type: ignore[import-not-found] # noqa: F401 - as it ought to be

        yield from batches

    sentence = r"ModuleNotFoundError: No module named 'not_on_workers'\. Install it for the Python of the workers"
    with pytest.raises(sessions.SparkJobFailed, match=sentence), sessions.running() as running:
        mapped(running.range(1), load, "id bigint").toArrow()
    assert spark.range(3).count() == 3


WITHOUT_JAVA = """
from pyspark import SparkContext
from recovery.spark import sessions

for _ in range(2):
    try:
        with sessions.running("local[1]") as spark:
            SparkContext._gateway.proc.kill()
            SparkContext._gateway.proc.wait()
            spark.range(3).count()
    except sessions.BrokerError as error:
        print(type(error).__name__, error)
"""


def test_a_program_whose_java_process_ended_is_to_be_started_again() -> None:
    """The next job in it ended with the traceback of a refused connection."""
    done = subprocess.run([sys.executable, "-c", WITHOUT_JAVA], capture_output=True, text=True, check=False, cwd=ROOT)
    first, second = done.stdout.splitlines()
    assert first.startswith("SparkJobFailed Spark gave up the job: the Java process of the driver ended"), done.stderr
    assert second.startswith("SparkNotReady the Java process of this program's Spark ended"), done.stderr


SUBMITTED = """
from recovery.spark.sessions import running

with running({arguments}) as spark:
    conf = spark.sparkContext.getConf()
    print(spark.sparkContext.master, conf.get("spark.executor.memory"), spark.sparkContext.appName)
"""


@pytest.mark.parametrize(
    ("arguments", "found"), [("", "local[1] 777m mine"), ("'local[2]', memory='700m'", "local[2] 700m mine")]
)
def test_a_submitted_program_runs_where_it_was_submitted_to(tmp_path: Path, arguments: str, found: str) -> None:
    """The job of a cluster ran in the driver alone; then spark-submit's master went before one that was given."""
    (tmp_path / "job.py").write_text(SUBMITTED.format(arguments=arguments))
    submit = Path(str(pyspark.__file__)).parent / "bin" / "spark-submit"
    options = ["--master", "local[1]", "--conf", "spark.executor.memory=777m", "--name", "mine"]
    words = [str(submit), *options, str(tmp_path / "job.py")]
    here = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT, env={**os.environ, **here})
    assert done.stdout.splitlines()[:1] == [found], done.stderr


SECRETIVE = """
import contextlib, os
from pathlib import Path
from recovery.spark import session

spark = session("local[1]", config={"spark.authenticate.secret": "s3cret", "spark.executor.memory": "700m"})
lines = []
for one in filter(str.isdigit, os.listdir("/proc")):
    with contextlib.suppress(OSError):
        lines.append(Path(f"/proc/{one}/cmdline").read_bytes())
java = [line for line in lines if b"SparkSubmit" in line and b"700m" in line and b"recovery.spark" not in line]
print(len(java) > 0, any(b"s3cret" in line for line in java), spark.conf.get("spark.executor.memory"))
print(spark.sparkContext.getConf().get("spark.authenticate.secret"))
spark.stop()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_secret_is_on_no_command_line() -> None:
    done = subprocess.run([sys.executable, "-c", SECRETIVE], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.split() == ["True", "False", "700m", "s3cret"]
