"""The data source: a CommitLog as a table, in Spark itself."""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import broker
from broker.errors import BrokerError, CorruptStore, NotAStore, StoreError
from recovery.pipeline.splits import plan
from recovery.pipeline.store_location import StoreLocation
from recovery.pipeline.transaction_files import check_out
from recovery.scan import scan as local_scan
from recovery.spark import findings, rebuild, register, scan, stream, transactions, verify
from recovery.spark.options import NAME, OPTIONS, settings_of, spark_schema
from recovery.spark.readers import RecordsReader
from recovery.spark.selection import BadOption
from recovery.spark.source import CommitLogSource
from tests.scan.logs import Chunk, Log, Wanted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STORE = "rocketmq-5.3.3-clean"


def _all(path: Path) -> pa.Table:
    return pa.Table.from_batches(local_scan(path))


def _rows(table: pa.Table) -> list[dict[str, Any]]:
    return table.sort_by("commitlog_offset").to_pylist()


@pytest.mark.parametrize("split_bytes", [1 << 30, 300_000])
def test_all_columns_are_those_of_the_local_scan(
    spark: SparkSession, golden: Callable[[str], Path], split_bytes: int
) -> None:
    """Every value of every record, whatever the splits."""
    path = golden(STORE)
    assert _rows(scan(spark, str(path), splitBytes=split_bytes).toArrow()) == _rows(_all(path))


def test_a_relative_path_is_that_of_the_caller(
    spark: SparkSession, golden: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A notebook changes its directory after Spark started: the process that plans the query keeps the old one."""
    path = golden(STORE)
    monkeypatch.chdir(path.parent)
    assert scan(spark, STORE, columns=["topic"]).count() == len(_all(path))
    assert findings(spark, STORE).count() == 0


def test_a_schema_chooses_columns(spark: SparkSession, golden: Callable[[str], Path]) -> None:
    """Only what is asked for is decoded, in that order; a count needs none."""
    path = golden(STORE)
    frame = scan(spark, str(path), columns=["topic", "commitlog_offset"])
    assert frame.columns == ["topic", "commitlog_offset"]
    assert _rows(frame.toArrow()) == _rows(_all(path).select(["topic", "commitlog_offset"]))
    assert frame.count() == len(_all(path))


@pytest.mark.parametrize("setting", ["true", "false"])
def test_a_filter_is_of_its_own_query_alone(spark: SparkSession, golden: Callable[[str], Path], setting: str) -> None:
    """Spark keeps the reader of a DataFrame: the filter of one query stayed with the next, and a union lacked rows."""
    kinds = _all(golden(STORE))["kind"].to_pylist()
    spark.conf.set("spark.sql.python.filterPushdown.enabled", setting)
    try:
        frame = scan(spark, golden(STORE), columns=["commitlog_offset", "kind"])
        half, op = frame.where("kind = 'half'"), frame.where("kind = 'op'")
        for _ in range(2):
            assert half.count() == kinds.count("half")
            assert frame.count() == len(kinds)
            assert frame.where("kind = 'op' or commitlog_offset < 0").count() == kinds.count("op")
            assert half.union(op).count() == kinds.count("half") + kinds.count("op")
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_options_choose_the_records_that_a_filter_would(spark: SparkSession, golden: Callable[[str], Path]) -> None:
    path = golden(STORE)
    register(spark)
    reader = spark.read.format(NAME).options(kind="half", topic="RMQ_SYS_TRANS_HALF_TOPIC", endOffset=400_000)
    found = _rows(reader.load(str(path)).toArrow())
    assert scan(spark, str(path)).where("kind = 'half' and commitlog_offset < 400000").count() == len(found)
    every = _all(path)
    below = pc.less(every["commitlog_offset"], 400_000)
    assert found == _rows(every.filter(pc.and_(below, pc.equal(every["kind"], "half"))))


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A log of 40 records, one of which lost its head and one of which has a body that changed."""
    log = Log(8192)
    offsets = [log.append(Wanted(chunks=(Chunk("bytes", b"x" * 300),))) for _ in range(40)]
    log.segments[0][offsets[5] + 4] ^= 0xFF
    log.segments[0][offsets[9] + 100] ^= 0xFF
    return log.write(tmp_path)


def test_damage_is_reported_passed_over_or_fatal(spark: SparkSession, damaged: Path) -> None:
    """onCorrupt: report keeps what can be read, skip leaves out what fails its CRC, fail says where and ends."""
    path = str(damaged)
    assert scan(spark, path, splitBytes=2000).where("not crc_ok").count() == 1
    assert scan(spark, path, splitBytes=2000).count() == 39
    assert scan(spark, path, splitBytes=2000, crc=True, onCorrupt="skip").count() == 38
    found = findings(spark, path, splitBytes=2000).orderBy("commitlog_offset").collect()
    assert [row["kind"] for row in found] == ["corrupt-region", "crc-mismatch"]
    with pytest.raises(Exception, match=r"no record begins here.*onCorrupt=report"):
        scan(spark, path, onCorrupt="fail").count()


def test_damage_is_fatal_in_the_range_that_is_read(damaged: Path) -> None:
    """A range that begins in it lost records in silence; a segment that is missing elsewhere hinders no query."""
    shutil.copy(damaged / "commitlog" / f"{0:020}", damaged / "commitlog" / f"{3 * 8192:020}")
    places = _all(damaged)["commitlog_offset"].to_pylist()
    hurt = next(after for at, after in pairwise(places) if after - at > 500) - 100

    def read(**options: str) -> list[int]:
        settings = settings_of({"path": str(damaged), "onCorrupt": "fail", **options})
        reader = RecordsReader(settings, ["commitlog_offset"])
        return [at for part in reader.partitions() for batch in reader.read(part) for at in batch.column(0).to_pylist()]

    with pytest.raises(CorruptStore, match="no record begins here"):
        read(startOffset=str(hurt), endOffset="8192")
    later = hurt + 200
    assert read(startOffset=str(later), endOffset="8192") == [at for at in places if later <= at < 8192]
    with pytest.raises(CorruptStore, match="is missing"):
        read(startOffset=str(later))


@pytest.mark.parametrize(("suffix", "compression"), [("gz", "gzip"), ("zst", "zstd"), ("lz4", "lz4")])
def test_compressed_segments(
    spark: SparkSession, golden: Callable[[str], Path], tmp_path: Path, suffix: str, compression: str
) -> None:
    """An archive with compressed segments is the same table."""
    path = golden(STORE)
    (tmp_path / "commitlog").mkdir()
    for segment in (path / "commitlog").iterdir():
        target = str(tmp_path / "commitlog" / f"{segment.name}.{suffix}")
        with pa.output_stream(target, compression=compression) as file:
            file.write(segment.read_bytes())
    columns = ["commitlog_offset", "topic", "body"]
    assert _rows(scan(spark, str(tmp_path), columns=columns).toArrow()) == _rows(_all(path).select(columns))


def test_uris(spark: SparkSession, golden: Callable[[str], Path], tmp_path: Path) -> None:
    """A store that a URI names is the same table, archived or not."""
    path = golden(STORE)
    archive = tmp_path / "archive" / "commitlog"
    archive.mkdir(parents=True)
    for segment in (path / "commitlog").iterdir():
        (archive / f"{segment.name}.gz").write_bytes(gzip.compress(segment.read_bytes(), 1))
    columns = ["commitlog_offset", "topic", "body"]
    expected = _rows(_all(path).select(columns))
    for place in (str(archive.parent), archive.parent.as_uri(), path.as_uri()):
        assert _rows(scan(spark, place, columns=columns, splitBytes=100_000).toArrow()) == expected


def test_segments_that_go_while_the_query_runs(spark: SparkSession, tmp_path: Path) -> None:
    """One expires and one is cut after the splits were planned: the other records come, and no task fails."""
    log = Log(8192)
    offsets = [log.append(Wanted(chunks=(Chunk("bytes", b"x" * 700),))) for _ in range(40)]
    path = log.write(tmp_path)
    segments = sorted((path / "commitlog").iterdir())
    frame = scan(spark, str(path), columns=["commitlog_offset"], splitBytes=3000)
    frame._jdf.queryExecution().executedPlan()  # now the splits are planned
    segments[0].unlink()
    segments[2].write_bytes(segments[2].read_bytes()[:3000])
    found = {row[0] for row in frame.collect()}
    cut_at = 2 * 8192 + 3000
    lost = {at for at in offsets if at < 8192 or (at < 3 * 8192 and at + len(log.records[at]) > cut_at)}
    assert len(lost) > 10
    assert found == set(offsets) - lost


def test_a_segment_that_goes_while_the_query_runs_is_fatal_where_damage_is(damaged: Path) -> None:
    """Retention removed it after the splits were planned: a query that is to fail left its records out in silence."""
    reader = RecordsReader(settings_of({"path": str(damaged), "onCorrupt": "fail"}), ["commitlog_offset"])
    part = list(reader.partitions())[-1]
    (damaged / "commitlog" / f"{8192:020}").unlink()
    with pytest.raises(CorruptStore, match="8192: the segment was removed before it was read"):
        list(reader.read(part))


@pytest.mark.parametrize("table", ["records", "findings"])
def test_an_executor_that_does_not_see_the_store_finds_no_empty_one(damaged: Path, table: str) -> None:
    """A cluster where the store lies on the driver's own disk had no rows, or those of some machines alone."""
    source = CommitLogSource({"path": str(damaged), "table": table})
    reader = source.reader(source.schema())
    parts = list(reader.partitions())
    shutil.rmtree(damaged / "commitlog")
    for part in parts:
        with pytest.raises(NotAStore, match=r"commitlog is not there for a task of Spark, .* under one path"):
            list(reader.read(part))


@pytest.mark.parametrize("door", [scan, findings, stream])
def test_mistakes_are_said_on_the_driver(door: Any, tmp_path: Path) -> None:
    """A wrong path, an option, a column there is not: one sentence, before Spark is asked for anything."""
    no_spark = None
    with pytest.raises(NotAStore, match="holds no commitlog"):
        door(no_spark, tmp_path)
    with pytest.raises(NotAStore, match="there is no such directory"):
        door(no_spark, str(tmp_path / "nowhere"))
    with pytest.raises(BadOption, match="no option colour; it has"):
        door(no_spark, tmp_path, colour="red")
    if door is not findings:
        with pytest.raises(BadOption, match="no column colour; it has"):
            door(no_spark, tmp_path, columns=["colour"])


@pytest.mark.parametrize("value", [["orders"], ("orders", "bills"), b"orders"])
def test_an_option_that_is_a_list_is_refused(value: Any, damaged: Path) -> None:
    """It became a text that no topic has: the table was empty."""
    with pytest.raises(BadOption, match="the option topic is one text, several words with commas between them, not "):
        scan(cast("SparkSession", None), damaged, topic=value)


def test_an_option_that_is_none_is_not_given(spark: SparkSession, damaged: Path) -> None:
    """As Spark's own readers have it; None was a topic that no record has."""
    assert scan(spark, damaged, columns=["kind"], topic=None, kind=None, startOffset=None).count() == 39


@pytest.mark.parametrize("door", [scan, findings, stream, verify, transactions, rebuild])
@pytest.mark.parametrize("path", [None, b"shop.store", ""])
def test_what_is_not_a_path_is_a_sentence(door: Any, path: Any) -> None:
    """The same that the local engine says, before Spark is asked for anything."""
    with pytest.raises(BrokerError, match=r"the path of a store is a str or a pathlib\.Path, not "):
        door(None, path)


def test_a_schema_without_nulls_is_a_sentence(damaged: Path) -> None:
    """Spark failed at the first row with the schemas of two batches, in a traceback of a task; a stream, too."""
    source = CommitLogSource({"path": str(damaged)})
    schema = spark_schema(["topic"])
    schema.fields[0].nullable = False
    for reader in (source.reader, source.streamReader):
        with pytest.raises(BadOption, match="the column topic has to be nullable here: leave out NOT NULL"):
            reader(schema)


def test_what_is_not_a_whole_number_is_a_sentence(damaged: Path) -> None:
    """A size such as 128e6 or "128m", and a datetime for milliseconds, were a TypeError, or one of a task."""
    for size in (128e6, "128m"):
        with pytest.raises(BrokerError, match="split_bytes is a whole number, not "):
            plan(StoreLocation(str(damaged)).log(), cast(int, size))
    with pytest.raises(BrokerError, match="now_ms is a whole number, not '5'"):
        transactions(cast("SparkSession", None), damaged, now_ms=cast(int, "5"))


def test_a_wrong_path_of_sparks_own_reader_is_named(spark: SparkSession, tmp_path: Path) -> None:
    register(spark)
    with pytest.raises(Exception, match="holds no commitlog"):
        spark.read.format(NAME).load(str(tmp_path))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({}, "needs the path"),
        ({"path": "x", "colour": "red"}, "no option colour; it has path"),
        ({"path": "x", "paths": "[]"}, "no option paths; it has path"),
        (
            {"owner": "me", "provider": "rocketmq-commitlog", "option.kind": "half"},
            "a view instead: CREATE TEMPORARY VIEW",
        ),
        ({"path": "x", "kind": "hlaf"}, "knows plain, prepared.*not hlaf"),
        ({"path": "x", "kind": "all,half"}, "is all, or some of plain, prepared.*: leave out one or the other"),
        ({"path": "x", "splitBytes": "many"}, "whole number"),
        ({"path": "x", "splitBytes": "10"}, "at least 1024"),
        ({"path": "x", "crc": "maybe"}, "true or false"),
        ({"path": "x", "onCorrupt": "explode"}, "report, skip, fail"),
        ({"path": "x", "table": "chairs"}, "records or findings"),
        ({"path": "x", "rows": "0"}, "the option rows is at least 1"),
        ({"path": "x", "table": "findings", "kind": "half"}, "the option kind chooses records"),
        ({"path": "x", "table": "findings", "endOffset": "9"}, "the option endOffset chooses records"),
    ],
)
def test_options_are_checked(options: dict[str, str], sentence: str) -> None:
    """Each mistake names what is allowed."""
    with pytest.raises(BadOption, match=sentence):
        settings_of(options)


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [([], "at least one column"), (["kind", "kind"], "each once"), ("kind", r'a list of names, as \["kind"\]')],
)
def test_columns_are_checked(columns: Any, sentence: str) -> None:
    """None at all made a table without rows, and one that was named twice a Java exception."""
    with pytest.raises(BadOption, match=sentence):
        spark_schema(columns)


def test_where_nothing_can_be_wanted_there_is_no_row(spark: SparkSession, golden: Callable[[str], Path]) -> None:
    """A filter or a range that leaves no split: Spark makes up a partition then, which is no split of ours."""
    path, columns = str(golden(STORE)), ["commitlog_offset"]
    assert scan(spark, path, columns=columns).where("commitlog_offset > 999999999999").count() == 0
    assert scan(spark, path, columns=columns, startOffset=1000, endOffset=10).count() == 0


def test_a_store_without_records_has_no_rows(spark: SparkSession, tmp_path: Path) -> None:
    """One that was made a moment ago."""
    broker.open(tmp_path / "new.store", layout=broker.StoreLayout.small()).close()
    assert scan(spark, tmp_path / "new.store", columns=["kind"]).count() == 0
    assert findings(spark, str(tmp_path / "new.store")).count() == 0


def test_findings_are_no_records(spark: SparkSession, damaged: Path) -> None:
    """Columns of records for the table of findings are refused, before there is a finding."""
    with pytest.raises(Exception, match="the table of findings has a schema of its own"):
        scan(spark, str(damaged), table="findings").count()


def test_options_ignore_case_and_are_documented() -> None:
    """Spark's options do; the page has a line for each."""
    assert settings_of({"PATH": "x", "SPLITBYTES": "2048"}).split_bytes == 2048
    page = (Path(__file__).parents[2] / "docs" / "spark.md").read_text(encoding="utf-8")
    for name in (*OPTIONS, *spark_schema().fieldNames()):
        assert f"`{name}`" in page, name


def test_the_scheme_that_spark_has_for_s3_is_named() -> None:
    """Its own readers want s3a://, PyArrow knows s3:// alone."""
    with pytest.raises(StoreError, match=r"Unrecognized filesystem type .*\. Write s3://archive/shop\.store$"):
        StoreLocation("s3a://archive/shop.store").log()


def test_what_hadoops_file_system_needs_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """PyArrow alone says that it cannot load libjvm, or libhdfs, and where it looked in a hundred lines."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("HADOOP_HOME", str(tmp_path))
    sentence = r"Unable to load lib\w+\. It needs JAVA_HOME, HADOOP_HOME, and in CLASSPATH what `hadoop "
    with pytest.raises(StoreError, match=sentence):
        StoreLocation("hdfs://127.0.0.1:1/shop.store").log()


def test_the_form_in_which_spark_prints_a_path_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`file:/data` was a directory called `file:` in the current one: what was to be written landed there."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file:" / "shop.store" / "commitlog").mkdir(parents=True)
    for act in (lambda: StoreLocation("file:/shop.store").log(), lambda: check_out("shop.store", "file:/shop.store")):
        with pytest.raises(StoreError, match=r"Write file:///shop\.store, or \./file:/shop\.store for a directory"):
            act()
    StoreLocation("./file:/shop.store").log()


def test_a_wrong_path_is_a_sentence() -> None:
    """The same that the other verbs say."""
    with pytest.raises(NotAStore, match="there is no such directory"):
        StoreLocation("nowhere/at/all").log()
