"""What a worker of Spark runs: `mapInArrow`, also in an environment without pandas, and without needless collections.

Spark 4 runs such a function on Arrow batches alone, yet refuses to make one where pandas is not installed. Then the
same few calls are made here without that question (`pyspark.sql.pandas.map_ops`, 4.3.0).
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

Function = Callable[[Iterable["pa.RecordBatch"]], Iterator["pa.RecordBatch"]]


def set_imports_aside() -> None:
    """Spark's daemon collects garbage after each task (20 ms once NumPy and PyArrow are there): let it pass by modules.

    They live as long as the worker does. What was garbage before the first task is small, and stays.
    """
    if not gc.get_freeze_count():
        gc.freeze()


@dataclass(frozen=True)
class _WorkerFunction:
    """A function as a worker calls it."""

    function: Function

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        set_imports_aside()
        return self.function(batches)


def mapped(frame: DataFrame, work: Function, schema: str) -> DataFrame:
    """`frame.mapInArrow(work, schema)`."""
    function = _WorkerFunction(work)
    if find_spec("pandas") is not None or not hasattr(frame, "_jdf"):
        return frame.mapInArrow(function, schema)
    from pyspark.sql.classic.dataframe import DataFrame as Classic
    from pyspark.sql.pandas import functions
    from pyspark.util import PythonEvalType

    make: Any = functions.__dict__["vectorized_udf"]  # Spark's stubs do not know it
    udf = make(function, returnType=schema, functionType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
    column = udf(*(frame[name] for name in frame.columns))
    jdf = frame._jdf.mapInArrow(column._jc, False, None)  # noqa: SLF001
    return Classic(jdf, frame.sparkSession)
