"""Watch a live store in Spark: which transactions are in doubt, while they are.

    python examples/spark_in_doubt.py shop.store

A stream of the log's records, and in each micro-batch the half messages that came and the ends that named one. What is
left is in doubt. The judgement of a whole store, with all of RocketMQ's rules, is `recovery.spark.transactions`.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from recovery.spark import session, stream

COLUMNS = ["commitlog_offset", "kind", "topic", "keys", "prepared_transaction_offset"]


class InDoubt:
    """The prepared messages that no end has named yet, by their CommitLog offset."""

    def __init__(self) -> None:
        self.halves: dict[int, str] = {}

    def take(self, batch: Any, _number: int) -> None:
        """One micro-batch."""
        for row in batch.orderBy("commitlog_offset").toLocalIterator():
            if row["kind"] in ("prepared", "half"):
                self.halves[row["commitlog_offset"]] = row["keys"] or ""
            elif row["kind"] in ("committed", "rolled_back"):
                self.halves.pop(row["prepared_transaction_offset"], None)
        print(f"{len(self.halves)} in doubt: {', '.join(sorted(self.halves.values())[:10])}", flush=True)


def main(path: str) -> None:
    """Until Ctrl-C."""
    spark = session("local[2]")
    kinds = "prepared,half,committed,rolled_back"
    query = stream(spark, path, columns=COLUMNS, kind=kinds).writeStream.foreachBatch(InDoubt().take).start()
    try:
        while query.isActive:
            time.sleep(1)  # in Python: a call to the JVM that waits cannot be interrupted in one piece
        query.awaitTermination()  # says why it ended
    except KeyboardInterrupt:
        query.stop()
    spark.stop()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python examples/spark_in_doubt.py STORE")
    main(sys.argv[1])
