"""The program for spark-submit and for schedulers that start one: transactions and verification on Spark.

    python -m recovery.cli.spark_job transactions shop.store out/ --master local[*]
    spark-submit --py-files checkback.zip job.py verify shop.store

where job.py says `from recovery.cli.spark_job import main; main()`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from broker.errors import BrokerError
from recovery.cli.terminal.output import print_json, warn
from recovery.pipeline.splits import SPLIT_BYTES, SPLIT_BYTES_MIN


def main(arguments: Sequence[str] | None = None) -> int:
    """`python -m recovery.cli.spark_job`: transactions STORE OUT, verify STORE, package OUT; JSON on standard output.

    Returns the exit code: 0 ok, 1 findings, 2 what the sentence on standard error says.
    """
    try:
        return _run(_parsed(arguments))
    except (BrokerError, OSError) as error:
        warn(str(error))
        return 2


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m recovery.cli.spark_job", description=main.__doc__)
    parser.add_argument("--master", default=None, help="Spark's master (else spark-submit's, or local[*])")
    parser.add_argument("--memory", default=None, help="heap of the driver and of each executor (else as there, or 1g)")
    parser.add_argument("--split-bytes", type=_split_bytes, default=SPLIT_BYTES)
    verbs = parser.add_subparsers(dest="verb", required=True)
    listing = verbs.add_parser("transactions", help="Parquet files, a row for each transaction")
    listing.add_argument("store")
    listing.add_argument("out")
    verbs.add_parser("verify", help="verify a store").add_argument("store")
    verbs.add_parser("package", help="the code for --py-files").add_argument("out")
    return parser.parse_args(arguments)


def _split_bytes(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) >= SPLIT_BYTES_MIN):
        raise argparse.ArgumentTypeError(f"a whole number of at least {SPLIT_BYTES_MIN}, not {text!r}")
    return int(text)


def _run(given: argparse.Namespace) -> int:
    from recovery.pipeline.store_location import StoreLocation
    from recovery.pipeline.transaction_files import check_out
    from recovery.spark.jobs import write_transactions
    from recovery.spark.sessions import running
    from recovery.spark.shipping import package
    from recovery.spark.verification import verify

    if given.verb == "package":
        package(given.out)
        return 0
    StoreLocation(given.store).files()  # a wrong path is reported before Spark starts
    if given.verb == "transactions":
        check_out(given.store, given.out)
    with running(given.master, memory=given.memory) as spark:
        if given.verb == "transactions":
            written = write_transactions(spark, given.store, given.out, split_bytes=given.split_bytes)
            made, is_ok = written.as_json(), True
        else:
            report = verify(spark, given.store, split_bytes=given.split_bytes)
            made, is_ok = report.as_json(), report.ok
    print_json(made)  # behind the block, which takes a closed pipe for Spark's
    return 0 if is_ok else 1


if __name__ == "__main__":
    raise SystemExit(main())
