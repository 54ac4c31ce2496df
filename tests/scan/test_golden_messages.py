"""Every message that the producers of the golden stores sent is found by a scan, whole; the stores stay as they are."""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from broker.format.record.body import decompress
from broker.format.sysflag import compression
from recovery.scan import scan
from recovery.verify.verifier import verify
from tests.store.permissions import as_nobody

STORES = [
    "rocketmq-3.1.5-clean",
    "rocketmq-3.1.5-killed",
    "rocketmq-3.1.5-recovered",
    "rocketmq-5.3.3-clean",
    "rocketmq-5.3.3-killed",
]
ELSEWHERE = {"RMQ_SYS_TRANS_HALF_TOPIC", "SCHEDULE_TOPIC_XXXX", "TRANS_CHECK_MAX_TIME_TOPIC"}
by_store = pytest.mark.parametrize("name", STORES)
Golden = Callable[[str], Path]
Truth = Callable[[str], list[dict[str, Any]]]
Sent = tuple[str, str, int, int]  # topic, key, length and CRC of the body before it was compressed


def sent(lines: list[dict[str, Any]]) -> set[Sent]:
    """What the producers say that they sent; a batch goes as several messages to a topic of its own."""
    found = set()
    for line in lines:
        if line["event"] == "batch":
            keys = [("BatchTopic", f"{line['key']}-b{number}") for number in range(line["n"])]
        elif line["event"] in ("half", "plain"):
            keys = [(line["topic"], line["key"])]
        else:
            continue
        found |= {(topic, key, line["body_len"], line["body_crc"]) for topic, key in keys}
    return found


@by_store
def test_every_message_of_the_truth_is_there(golden: Golden, truth: Truth, name: str) -> None:
    columns = ["topic", "kind", "keys", "real_topic", "sys_flag", "body", "crc_ok"]
    found: set[Sent] = set()
    kinds: Counter[str] = Counter()
    for batch in scan(golden(name), columns=columns):
        for row in batch.to_pylist():
            assert row["crc_ok"]
            kinds[row["kind"]] += 1
            if row["kind"] in ("op", "rolled_back"):  # they carry no message
                continue
            body = decompress(row["body"], compression(row["sys_flag"]))
            topic = row["real_topic"] if row["topic"] in ELSEWHERE else row["topic"]
            found |= {(topic, key, len(body), zlib.crc32(body)) for key in (row["keys"] or "").split()}
    assert sent(truth(name)) <= found
    assert {"committed", "plain", "half" if "5.3.3" in name else "prepared"} <= kinds.keys()


def picture(store: Path) -> dict[str, tuple[int, int, str]]:
    """Of each file and directory: mode, time of the last change, and content."""
    return {
        str(path.relative_to(store)): (
            path.stat().st_mode,
            path.stat().st_mtime_ns,
            hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() and "index" not in path.parts else "",
        )
        for path in sorted(store.rglob("*"))
    }


def read_all(store: Path) -> tuple[int, str]:
    return sum(batch.num_rows for batch in scan(store)), verify(store).digest


@pytest.mark.parametrize("name", ["rocketmq-3.1.5-killed", "rocketmq-5.3.3-killed"])
def test_scanning_needs_no_write_permission_and_changes_nothing(golden: Golden, name: str) -> None:
    wanted = read_all(golden(name))  # and every module that loads late is loaded
    with tempfile.TemporaryDirectory() as directory:  # pytest's own directories let nobody else in
        Path(directory).chmod(0o755)
        store = Path(directory, "store")
        subprocess.run(["cp", "-a", "--sparse=always", golden(name), store], check=True)
        subprocess.run(["chmod", "-R", "a-w,a+rX", store], check=True)
        before = picture(store)
        with as_nobody():
            with pytest.raises(PermissionError):
                (store / "checkpoint").open("r+b")
            assert read_all(store) == wanted
        assert picture(store) == before
        subprocess.run(["chmod", "-R", "u+w", store], check=True)
