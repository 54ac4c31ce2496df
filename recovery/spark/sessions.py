"""Start a Spark session as these jobs need it, and say in a sentence why it cannot start.

As in:

    spark = session("local[*]")
    spark = session("spark://master:7077", memory="4g")
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from broker.errors import BrokerError
from recovery.spark.shipping import CONNECT, why_too_old

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_MIN = 17
_MEMORY = ("spark.driver.memory", "spark.executor.memory")
_SECRET = re.compile("secret|password|token|access.?key", re.IGNORECASE)  # Spark: spark.redaction.regex
_MASTER = re.compile(  # what SparkContext takes (4.3.0); of a cluster with a scheme the rest is its own affair
    r"local(\[(\*|[1-9]\d*)(\s*,\s*\d+)?\])?|local-cluster\[\s*\d+\s*,\s*\d+\s*,\s*\d+\s*\]|yarn|[a-z][\w+.-]*://.+"
)
_WITHOUT_JAVA = ("An error occurred while", "Answer from Java side", "Error while", "[Errno ")  # Py4J, and the system
_SOCKETS = "/tmp"  # noqa: S108 - a socket's path has at most 107 bytes, and Java's own temporary directory may be longer


class SparkNotReady(BrokerError):
    """Spark cannot start here; the sentence says what is missing."""


class SparkJobFailed(BrokerError):
    """Spark gave a job up; the sentence says why."""


def check_installation() -> str:
    """The version of Spark that will run, as text.

    Raises SparkNotReady without pyspark, with one before 4.1, without Java 17 or newer, or when another distribution
    wrote over pyspark.
    """
    try:
        stated = version("pyspark")
        from pyspark import __version__ as found
    except (PackageNotFoundError, ImportError) as error:
        raise SparkNotReady("pyspark is not installed: install checkback with its extra 'spark'") from error
    if found != stated:
        raise SparkNotReady(
            f"pyspark is damaged: its metadata says {stated}, its files are of {found}. Another distribution "
            "(pyspark-client, which the Spark provider of Airflow brings from 6.0 on) wrote over them. "
            "Make a new environment without it"
        )
    if reason := why_too_old(found):
        raise SparkNotReady(reason)
    check_java()
    return found


def check_java() -> None:
    """Raises SparkNotReady when there is no Java, or an older one than Spark 4 needs."""
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    where = "JAVA_HOME" if home else "PATH"
    if not java or not os.path.exists(java):
        raise SparkNotReady(f"Spark needs Java {JAVA_MIN} or newer, and {where} leads to none. Install a JDK")
    try:
        asked = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SparkNotReady(f"{java} does not run ({error}). Spark needs Java {JAVA_MIN} or newer") from error
    found = java_version(asked.stderr)
    if found is not None and found < JAVA_MIN:
        raise SparkNotReady(f"Spark needs Java {JAVA_MIN} or newer, and {java} is Java {found}. Install a newer JDK")


def java_version(version_text: str) -> int | None:
    """The major version in what `java -version` says: 17 for "17.0.9", 8 for "1.8.0_392"; None when it says none."""
    match = re.search(r'version "(\d+)(?:\.(\d+))?', version_text)
    if match is None:
        return None
    first, second = int(match[1]), int(match[2] or 0)
    return second if first == 1 else first


def session(
    master: str | None = None,
    *,
    app: str | None = None,
    memory: str | None = None,
    config: Mapping[str, str] | None = None,
) -> SparkSession:
    """The running Spark session, or a new one; `master` is Spark's: local[N], spark://host:port, yarn, k8s://...

    `memory` is the heap of the driver and of each executor, as Spark writes it (`4g`); `app` the name that its pages
    show. None is what spark-submit was given, else local[*], 1g, checkback. `config` are further settings of Spark,
    which win; a secret among them is on no command line. Workers run the Python that `spark.pyspark.python` in `config`
    or PYSPARK_PYTHON names, else that of this process; logs are quiet, on one machine Spark listens on the loopback
    only, and the session knows the format `rocketmq-commitlog`. Raises SparkNotReady for a Spark Connect server, for
    what is not a master, without a right installation (see `check_installation`) and when Spark does not start.
    """
    submitted = _submitted()
    master = submitted.get("spark.master", "local[*]") if master is None else master
    if not _MASTER.fullmatch(master):
        raise SparkNotReady(
            f"{master!r:.60} is not a master of Spark: give local[*], local[2], spark://HOST:7077, or yarn"
        )
    if master.startswith("sc://"):
        raise SparkNotReady(f"{master} is a Spark Connect server: a session there {CONNECT}")
    _refuse_connect({**submitted, **(config or {})})
    check_installation()
    from pyspark.sql import SparkSession

    local = master.startswith("local")
    _ready_environment(local=local)
    given = {} if memory is None else dict.fromkeys(_MEMORY, memory)
    given |= {"spark.master": master, "spark.app.name": app or submitted.get("spark.app.name") or "checkback"}
    settings: dict[str, Any] = {**_settings(local=local), **submitted, **given, **(config or {})}
    builder = SparkSession.builder.config(map=settings)
    try:
        with _ended_when_interrupted(), _workers_run((config or {}).get("spark.pyspark.python")):
            _start_jvm(settings)
            started = builder.getOrCreate()
    except Exception as error:
        raise SparkNotReady(f"Spark did not start with the master {master}: {_reason(error)}") from error
    from recovery.spark.tables import register  # which imports pyspark

    register(started)
    return started


@contextlib.contextmanager
def _ended_when_interrupted() -> Iterator[None]:
    """End the JVM where an interrupt comes while it starts.

    PySpark (4.3.0) removes the directory in which the JVM is to say its port; the JVM fails to, and stays.
    """
    from pyspark import SparkContext, java_gateway

    started: list[subprocess.Popen[bytes]] = []
    popen = java_gateway.__dict__["Popen"]

    def noted(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(popen(*arguments, **options))
        return started[-1]

    java_gateway.__dict__["Popen"] = noted
    try:
        yield
    finally:
        java_gateway.__dict__["Popen"] = popen
        if SparkContext._gateway is None:  # noqa: SLF001 - else it ends with this process, and may be used again
            for process in started:
                process.kill()
                process.wait()


def _reason(error: Exception) -> str:
    """What Spark says in a line. Py4J says first which call failed, then, behind a colon, what Java raised."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    reason = next((line.removeprefix(": ") for line in lines if line.startswith(": ")), lines[0])
    if "stopped SparkContext" in reason:  # a driver that no master took for a minute stops itself
        reason = "no master took the application. See that it runs, and that this machine reaches its port"
    return reason


@contextlib.contextmanager
def running(
    master: str | None = None, *, memory: str | None = None, config: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """A session for one piece of work, stopped after it; one that this process had already goes on.

    The arguments are as of `session`. Raises SparkNotReady; SparkJobFailed for what Spark raises within.
    """
    check_installation()
    _refuse_connect(config or {})  # PySpark would look for a session of it, with libraries that are not here
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    try:
        before = SparkSession.getActiveSession()
    except (Py4JError, OSError) as error:
        text = "the Java process of this program's Spark ended, and PySpark starts no second one in a process"
        raise SparkNotReady(f"{text}. Start the program again") from error
    made = session(master, memory=memory, config=config)
    try:
        yield made
    except (PySparkException, Py4JError, ConnectionError) as error:  # the last where the driver's JVM is gone
        reason = why_given_up(str(error))
        raise SparkJobFailed(f"Spark gave up the job: {reason}. {_step_after(reason)}") from error
    finally:
        if before is None:
            with contextlib.suppress(OSError, Py4JError):
                made.stop()


def why_given_up(text: str) -> str:
    """Why Spark gave up a job, in a line of what it says: a traceback of Python, or one of Java through Py4J."""
    lines = [line.strip() for line in text.partition("JVM stacktrace:")[0].splitlines() if line.strip()]
    if "Traceback (most recent call last):" in lines:
        return lines[-1]
    of_java = [line for line in lines if line.startswith((": ", "Caused by: "))]
    reasons = [re.sub(r"^(Caused by)?: ([\w.$]+: )?", "", line).rstrip(" :") for line in of_java]
    said = [reason for reason in reasons if not reason.startswith("Exception thrown in awaitResult")]
    if said:
        return said[0]
    has_ended = not lines or of_java or lines[0].startswith(_WITHOUT_JAVA)
    return "the Java process of the driver ended" if has_ended else lines[0]


def _step_after(reason: str) -> str:
    if reason.startswith(("ModuleNotFoundError", "ImportError")):
        return "Install it for the Python of the workers, or name another Python by spark.pyspark.python"
    return "Run it again; Spark's own log has the details"


def _start_jvm(settings: Mapping[str, str]) -> None:
    """Start the driver's JVM without its secrets, if there are any; the session hands them over by Py4J.

    Spark would give all settings to the JVM on a command line, which each user of the machine can read.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    shown = [(name, str(value)) for name, value in settings.items() if not _SECRET.search(name)]
    if len(shown) < len(settings) and SparkContext._gateway is None:  # noqa: SLF001 - PySpark has no public door
        gateway = launch_gateway(SparkConf(loadDefaults=False).setAll(shown))  # type: ignore[no-untyped-call]
        SparkContext._ensure_initialized(gateway=gateway)  # noqa: SLF001


@contextlib.contextmanager
def _workers_run(python: str | None) -> Iterator[None]:
    """Name the Python of a session's workers in the environment, where alone PySpark (4.3.0) reads it, as it starts.

    Of this session: the next one may name none.
    """
    before = os.environ.get("PYSPARK_PYTHON") or sys.executable
    os.environ["PYSPARK_PYTHON"] = python or before
    try:
        yield
    finally:
        os.environ["PYSPARK_PYTHON"] = before


def _ready_environment(*, local: bool) -> None:
    """What Spark reads from the environment before its JVM starts; what a user set stays."""
    # Py4J logs what it raises, with a traceback: a Ctrl-C that comes while it waits for the JVM would show one.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


def _submitted() -> dict[str, str]:
    """The settings of the spark-submit that started this process, its options among them; none without one.

    To Spark what a program sets goes before them.
    """
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # PySpark's own sign
        return {}
    check_installation()
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()  # noqa: SLF001 - PySpark has no public door
    return dict(SparkConf().getAll())


def _refuse_connect(settings: Mapping[str, str]) -> None:
    if asked := _asks_for_connect(settings, os.environ):
        raise SparkNotReady(f"{asked} asks for a session of Spark Connect, which {CONNECT}, without {asked}")


def _asks_for_connect(settings: Mapping[str, str], environment: Mapping[str, str]) -> str:
    """The setting or the variable by which PySpark would make a session of Spark Connect; empty without one."""
    if settings.get("spark.api.mode", "").lower() == "connect":
        return "spark.api.mode=connect"
    if settings.get("spark.remote"):
        return "spark.remote"
    return next((name for name in ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED") if name in environment), "")


def _settings(*, local: bool) -> dict[str, str]:
    settings = {
        **dict.fromkeys(_MEMORY, "1g"),
        "spark.api.mode": "classic",  # not SPARK_API_MODE of the environment: a master was given
        "spark.log.level": "ERROR",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.python.worker.faulthandler.enabled": "true",
        "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
    }
    if local:
        settings["spark.ui.enabled"] = "false"
        settings["spark.driver.host"] = settings["spark.driver.bindAddress"] = "127.0.0.1"
        if os.access(_SOCKETS, os.W_OK | os.X_OK):  # rows take a tenth less time than by TCP
            settings["spark.python.unix.domain.socket.enabled"] = "true"
            settings["spark.python.unix.domain.socket.dir"] = _SOCKETS
    return settings
