"""The code that executors need, as one zip for `--py-files`, or sent by a running session.

    python -m recovery.cli.spark_job package checkback.zip
    spark-submit --py-files checkback.zip ...

Executors need NumPy and PyArrow besides: from their own Python, or from a packed environment (docs/spark.md).
"""

from __future__ import annotations

import os
import re
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import broker
import recovery
from broker.errors import BrokerError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONNECT = (
    "has no context of the driver, by which code is sent and jobs are watched. "
    "Give Spark's own master, such as spark://host:7077"
)
"""Why a session of Spark Connect cannot be used, and what can."""

SPARK_MIN = (4, 1)
"""The oldest Spark that a session may be of, as pyproject.toml has it: 4.0 lacks what the jobs call."""

_TIME = (1980, 1, 1, 0, 0, 0)  # the same code makes the same zip


def package(path: str | os.PathLike[str]) -> str:
    """Write `broker` and `recovery` into a zip; returns its path. The same code makes the same bytes.

    Raises OSError when the file cannot be written.
    """
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, file in _sources():
            archive.writestr(zipfile.ZipInfo(name, _TIME), file.read_bytes())
    return os.fspath(path)


def _sources() -> Iterator[tuple[str, Path]]:
    for module in (broker, recovery):
        root = Path(str(module.__file__)).parent
        for file in sorted(root.rglob("*.py")):
            yield str(Path(root.name) / file.relative_to(root)), file


# The zips that executors fetch while their session lives, by its id; removed when this process ends.
_SENT: dict[str, tempfile.TemporaryDirectory[str]] = {}


def ship(spark: SparkSession) -> None:
    """Send the code to the executors of a session, once; on one machine they have it already.

    Raises BrokerError for what is not a session, and for one of Spark Connect.
    """
    _check_session(spark)
    context = spark.sparkContext
    session_id = str(context.applicationId)
    if str(context.master).partition("[")[0] == "local" or session_id in _SENT:
        return
    directory = _SENT[session_id] = tempfile.TemporaryDirectory(prefix="checkback-")
    context.addPyFile(package(os.path.join(directory.name, "checkback.zip")))


def why_too_old(version: str) -> str:
    """Why a version of Spark is refused, in a sentence; empty where it is not."""
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None or (int(found[1]), int(found[2])) >= SPARK_MIN:
        return ""
    least = ".".join(map(str, SPARK_MIN))
    return f"pyspark is {version}, and checkback needs {least} or newer. Install it: pip install 'pyspark>={least},<5'"


def _check_session(spark: object) -> None:
    from pyspark import __version__
    from pyspark.sql import SparkSession

    if reason := why_too_old(__version__):
        raise BrokerError(reason)
    if type(spark).__module__.startswith("pyspark.sql.connect."):
        raise BrokerError(f"this session is one of Spark Connect, which {CONNECT}")
    if not isinstance(spark, SparkSession):
        raise BrokerError(f"spark is a SparkSession, as recovery.spark.session() makes one, not {spark!r:.60}")
