"""Messages as lines of JSON that `checkback replay` sends again: one header, then one message a line.

    export("shop.store", Query(topic="orders"), "orders.jsonl")

Bodies are in Base64, so that any bytes survive. The format is ours; `version` says which.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import broker
from broker.errors import BrokerError, StoreError
from broker.format import properties as names
from broker.message import ReceivedMessage
from broker.store.disk.opening import new_text
from broker.store.disk.os_errors import not_written
from broker.store.read.detect import check_outside_stores
from recovery.views.messages.find import Progress, Query, find

VERSION = 1
_WHAT = "checkback messages"
_NOT_A_MESSAGE = (
    ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError, binascii.Error, BrokerError,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ExportedMessage:
    """One line of an export."""

    message: broker.Message
    queue_id: int
    commitlog_offset: int  # in the store that it comes from
    message_id: str
    store_timestamp_ms: int
    unique_key: str


def export(path: str, query: Query, out: str, limit: int | None = None, progress: Progress | None = None) -> int:
    """Write the messages that a query means; returns how many. `out` must not be there, nor lie in a store.

    Raises StoreError, StoreFull.
    """
    _check_is_new(out)
    above = os.path.dirname(os.path.abspath(out))
    if not os.path.isdir(above):
        raise StoreError(
            f"{out} cannot be made: there is no directory {above}. Make it, or give another file", path=out
        )
    check_outside_stores(out)
    beside = f"{out}.{os.getpid()}.unfinished"  # of two at once, each writes its own
    count = 0
    try:
        with new_text(beside) as file:
            file.write(json.dumps({"what": _WHAT, "version": VERSION, "store": os.path.abspath(path)}) + "\n")
            for message in find(path, replace(query, is_delivered_only=True), limit, progress):
                file.write(json.dumps(_line(message)) + "\n")
                count += 1
            file.flush()
            os.fsync(file.fileno())
        _check_is_new(out)
        os.rename(beside, out)
    except OSError as error:
        raise not_written(error, out) from error
    finally:
        if os.path.lexists(beside):
            os.remove(beside)
    return count


def _check_is_new(out: str) -> None:
    if os.path.lexists(out):
        raise StoreError(f"{out} is there already. Give another file", path=out)


def _line(message: ReceivedMessage) -> dict[str, Any]:
    own = {name: value for name, value in message.properties.items() if name not in names.RESERVED}
    return {
        "topic": message.topic,
        "queue_id": message.queue_id,
        "tag": message.tag,
        "keys": list(message.keys),
        "properties": own,
        "body": base64.b64encode(message.body).decode(),
        "commitlog_offset": message.commitlog_offset,
        "message_id": message.message_id,
        "store_timestamp_ms": message.store_timestamp_ms,
        "unique_key": message.unique_key or "",
    }


def exported(file: str) -> Iterator[ExportedMessage]:
    """The messages of an export. Raises StoreError that names the line for anything else."""
    if not os.path.isfile(file):
        why = "is a directory" if os.path.isdir(file) else "is not there"
        text = f"{file} {why}: give the file that checkback export wrote (checkback export STORE FILE --topic TOPIC)"
        raise StoreError(text, path=file)
    if os.path.getsize(file) == 0:
        raise StoreError(f"{file} is empty: it was cut, for an export has a first line at least", path=file)
    with open(file, encoding="utf-8", errors="surrogateescape") as lines:  # so that what is not UTF-8 has its line
        for number, line in enumerate(lines, 1):
            try:
                value = json.loads(line)
                if number == 1:
                    if (value.get("what"), value.get("version")) != (_WHAT, VERSION):
                        raise ValueError("it does not begin as an export of this version does")
                    continue
                yield _message(value)
            except _NOT_A_MESSAGE as error:
                text = f"{file}, line {number}, is not a message of checkback export: {error}"
                raise StoreError(text, path=file) from error


def _message(value: dict[str, Any]) -> ExportedMessage:
    body = base64.b64decode(value["body"], validate=True)
    message = broker.Message(value["topic"], body, value["tag"], value["keys"], value["properties"])
    return ExportedMessage(
        message, int(value["queue_id"]), int(value["commitlog_offset"]), str(value["message_id"]),
        int(value["store_timestamp_ms"]), str(value["unique_key"]),
    )  # fmt: skip
