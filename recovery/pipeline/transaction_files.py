"""The transactions of a store as Parquet files, a row each, and a manifest beside them, written last."""

from __future__ import annotations

import json
import os
import re
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow.fs as pafs

from broker.errors import StoreError
from broker.store.disk.os_errors import FULL, not_written
from broker.store.read.detect import check_outside_stores
from broker.transaction.events import TransactionState
from recovery.pipeline.joins import PartitionResult
from recovery.pipeline.splits import SPLIT_BYTES
from recovery.pipeline.stages import Executor, InspectedLog, inspect_log, join_transactions
from recovery.pipeline.store_location import LogManifest, filesystem_of, path_within
from recovery.pipeline.transaction_rows import TRANSACTIONS, write_rows
from recovery.pipeline.verification import damages_of_files
from recovery.scan.scanner import Damage
from recovery.transactions.digest import Digest
from recovery.transactions.outcomes import STATE_NAMES
from recovery.verify.causes.log_short import short_log

MANIFEST = "_checkback.json"
_URI = re.compile(r"(\w+://)(?:([^/@:]*)(?::[^/@]*)?@)?(.*)", re.DOTALL)  # s3://KEY:SECRET@bucket; abfs://container@...
_SECRETS = ("client_secret", "sig")  # options of Azure
_TEMPORARY = "_temporary"  # readers of Parquet pass over such names


@dataclass(frozen=True, slots=True)
class TransactionFiles:
    """What was written; `as_json` is the manifest beside the Parquet files."""

    path: str
    store: str
    generation: str
    transactions: dict[str, int]
    digest: str
    records: int
    bytes: int
    begin_offset: int
    end_offset: int
    bad_crcs: int
    damages: list[dict[str, Any]]
    seconds: float

    def as_json(self) -> dict[str, Any]:
        """The manifest: read by others than may know the keys in s3://KEY:SECRET@archive."""
        values = {name: getattr(self, name) for name in self.__slots__}
        return values | {name: _without_secrets(values[name]) for name in ("path", "store")}


def write_transaction_files(
    executor: Executor,
    log: LogManifest,
    path: str,
    out: str,
    now_ms: int,
    *,
    split_bytes: int = SPLIT_BYTES,
    crc: bool = True,
) -> TransactionFiles:
    """Write the rows to the directory `out` and then the manifest: what fails leaves nothing behind.

    Raises StoreError as `check_out` does, and StoreFull where there is no room.
    """
    check_out(path, out)
    started = time.monotonic()
    filesystem, directory = filesystem_of(out)
    temporary = f"{directory}/{_TEMPORARY}"
    try:
        filesystem.create_dir(temporary, recursive=True)
        inspected = inspect_log(executor, log, split_bytes=split_bytes, crc=crc, strings=True)
        context = inspected.context(with_rows=True, now_ms=now_ms, directory=path_within(out, _TEMPORARY))
        results = join_transactions(executor, inspected, context)
        _refuse_unwritten(results, out)
        written = _manifest(inspected, results, path, out, started)
        _complete(filesystem, directory, results, written)
    except BaseException as error:
        with suppress(OSError):  # it may be the directory that could not be made: that error counts
            filesystem.delete_dir(directory)
        if isinstance(error, OSError) and error.errno in FULL:  # PyArrow's names no file
            raise not_written(OSError(error.errno, os.strerror(error.errno)), out) from error
        raise
    finally:
        executor.close()
    return written


def _refuse_unwritten(results: list[PartitionResult], out: str) -> None:
    """Raises the first error of a task, as a sentence where the task did not see the directory."""
    for error in (result.error for result in results if result.error is not None):
        if isinstance(error, FileNotFoundError):
            text = f"{out} is not there for a task of Spark, that is on the machine of an executor"
            raise StoreError(f"{text}. Give a directory that all machines share, or a URI", path=out) from error
        raise error


def _complete(filesystem: Any, directory: str, results: list[PartitionResult], written: TransactionFiles) -> None:
    """Give the files of the tasks their names, and write the manifest."""
    temporary = f"{directory}/{_TEMPORARY}"
    files = [result.file for result in results if result.file is not None]
    if not files:  # of a directory without any Spark knows no columns, and a query fails
        files = ["none"]
        write_rows(path_within(written.path, _TEMPORARY, "none"), TRANSACTIONS.empty_table())
    for number, name in enumerate(files):
        filesystem.move(f"{temporary}/{name}", f"{directory}/part-{number:05}.parquet")
    filesystem.delete_dir(temporary)  # with it, what tasks wrote that Spark then ran again
    with filesystem.open_output_stream(f"{temporary}.json") as file:
        file.write(json.dumps(written.as_json(), indent=2).encode() + b"\n")
    filesystem.move(f"{temporary}.json", f"{directory}/{MANIFEST}")


def check_out(path: str, out: str) -> None:
    """Raises StoreError unless `out` can be made: it is not there yet, and it is in no store, be it `path` or another.

    What fails later removes `out` as a whole: nobody else's files may be in it.
    """
    filesystem, directory = filesystem_of(out)
    try:
        directory.encode()
    except UnicodeEncodeError as error:
        text = "is not UTF-8, and PyArrow, which writes the rows, takes no other path. Give another directory"
        raise StoreError(f"{directory} {text}", path=out) from error
    if filesystem.get_file_info(directory.rstrip("/")).type != pafs.FileType.NotFound:
        raise StoreError(f"{out} is there already. Give a directory that is not, or remove it", path=out)
    if isinstance(filesystem, pafs.LocalFileSystem):  # a path, or file://
        check_outside_stores(directory)
    of_store, store = filesystem_of(path)
    store, place = os.path.realpath(store), os.path.realpath(directory)
    if of_store.type_name == filesystem.type_name and os.path.commonpath([store, place]) == store:
        raise StoreError(f"{out} would be in the store {path}. Give a directory outside it", path=out)


def _without_secrets(path: str) -> str:
    """A path, or a URI as others may read it: with the container or the user that it names."""
    if not (found := _URI.match(path)):
        return path
    scheme, user, rest = found.groups(default="")
    place, mark, options = rest.partition("?")
    options = "&".join(one for one in options.split("&") if one.partition("=")[0] not in _SECRETS)
    user = "" if scheme == "s3://" or not user else f"{user}@"
    return scheme + user + place + (mark + options if options else "")


def _manifest(
    inspected: InspectedLog, results: list[PartitionResult], path: str, out: str, started: float
) -> TransactionFiles:
    digest, states = Digest(), dict.fromkeys(STATE_NAMES.values(), 0)
    for result in results:
        digest.total += result.digest
        for state, count in result.states.items():
            states[STATE_NAMES[TransactionState(state)]] += count
    end = inspected.end_offset
    of_files = damages_of_files(inspected.log)  # log-short reports what a file lacks behind the last record
    lasting = [one for one in of_files if one.kind != "segment-size" or one.commitlog_offset < end]
    damages = [*lasting, *inspected.damages]
    short = short_log(inspected.log.store_files(), end, damages)
    lost = [] if short is None else [Damage(short.kind, short.commitlog_offset, 0, short.text, short.file)]
    return TransactionFiles(
        path=out,
        store=path,
        generation=inspected.generation.label,
        transactions={"total": sum(states.values()), **states},
        digest=digest.hex(),
        records=inspected.records,
        bytes=inspected.bytes,
        begin_offset=inspected.log.begin,
        end_offset=inspected.end_offset,
        bad_crcs=sum(summary.findings.counts["crc-mismatch"] for summary in inspected.summaries),
        damages=[
            {"kind": one.kind, "commitlog_offset": one.commitlog_offset, "size": one.size, "file": one.file}
            for one in (*damages, *lost)
        ],
        seconds=round(time.monotonic() - started, 3),
    )
