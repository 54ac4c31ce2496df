"""The data source `rocketmq-commitlog`: a CommitLog as a table of records, or of what is wrong with it.

    spark.read.format("rocketmq-commitlog").option("kind", "half").load("shop.store")
    spark.read.format("rocketmq-commitlog").option("table", "findings").load("shop.store")
    spark.readStream.format("rocketmq-commitlog").load("shop.store")

Spark does not name to a Python source the columns that a query needs: give the schema with the columns that you
want (`recovery.spark.scan(columns=...)` does), and no other is decoded. Options: docs/spark.md.
"""

from __future__ import annotations

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from recovery.spark.following import FollowingReader
from recovery.spark.options import NAME, findings_schema, settings_of, spark_schema
from recovery.spark.readers import FindingsReader, RecordsReader
from recovery.spark.selection import BadOption


class CommitLogSource(DataSource):
    """`spark.read.format("rocketmq-commitlog")`; register it with `recovery.spark.register(spark)`."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        """All columns, or the findings'."""
        settings = settings_of(self.options)
        settings.place.files()  # a wrong path is reported here, once, not by a task
        if settings.table == "findings":
            return findings_schema()
        return spark_schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        """The records that the options choose, or the findings."""
        settings = settings_of(self.options)
        if settings.table == "findings":
            if (
                schema.fieldNames() != findings_schema().fieldNames()
            ):  # Spark would fail at the first row, if there is one
                raise BadOption("the table of findings has a schema of its own: give none, or use findings()")
            return FindingsReader(settings)
        return RecordsReader(settings, _columns(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        settings = settings_of(self.options)
        if settings.table == "findings":
            raise BadOption("a stream has records; read the table of findings without one, by findings()")
        return FollowingReader(settings, _columns(schema))


def _columns(schema: StructType) -> list[str]:
    """The columns of a schema. Raises BadOption where one has another type than the column, or is not nullable."""
    wanted = spark_schema(schema.fieldNames())
    for asked, known in zip(schema.fields, wanted.fields, strict=True):
        if asked.dataType != known.dataType:
            kinds = f"{known.dataType.simpleString()}, not {asked.dataType.simpleString()}"
            raise BadOption(f"the column {asked.name} is a {kinds}")
        if not asked.nullable:  # Spark compares it with what the tasks hand over, and says so in a traceback of theirs
            raise BadOption(
                f"the column {asked.name} has to be nullable here: leave out NOT NULL, or give nullable=True"
            )
    return list(schema.fieldNames())
