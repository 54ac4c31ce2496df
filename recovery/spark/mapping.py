"""`mapInArrow` for an environment without pandas.

Spark 4 runs such a function on Arrow batches alone, yet refuses to make one where pandas is not installed. Then the
same few calls are made here without that question (`pyspark.sql.pandas.map_ops`, 4.3.0).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

Function = Callable[[Iterable["pa.RecordBatch"]], Iterator["pa.RecordBatch"]]


def mapped(frame: DataFrame, function: Function, schema: str) -> DataFrame:
    """`frame.mapInArrow(function, schema)`."""
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
