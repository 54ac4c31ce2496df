"""The verbs that write a message or a decision, and `tail`, which reads on: `send tail topic end`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from enum import StrEnum
from shlex import quote
from typing import Annotated

from recovery.cli.declaration import Argument, BadParameter, Option, VerbGroup
from recovery.cli.shared import FINDINGS, AsJson, Store, examples, fail, listing
from recovery.cli.terminal.output import print_json, print_json_list, show, show_now, warn

Topic = Annotated[str, Argument(metavar="TOPIC", help="The topic.")]


class TopicType(StrEnum):
    """What a topic takes."""

    NORMAL = "NORMAL"
    FIFO = "FIFO"
    DELAY = "DELAY"
    TRANSACTION = "TRANSACTION"
    MIXED = "MIXED"


def send(
    store: Store,
    topic: Topic,
    body: Annotated[str, Option("--body", metavar="TEXT", help="The body; - reads standard input.")] = "-",
    tag: Annotated[str, Option(metavar="TAG", help="The tag that consumers select by.")] = "",
    keys: Annotated[
        list[str] | None, Option("--key", metavar="KEY", help="A key for the index; may be repeated.")
    ] = None,
    queue_id: Annotated[int, Option("--queue", min=0, metavar="N", help="The queue.")] = 0,
    properties: Annotated[list[str] | None, Option("--property", metavar="NAME=VALUE", help="May be repeated.")] = None,
    create: Annotated[bool, Option("--create", help="Make the store if there is none at the path.")] = False,
    as_json: AsJson = False,
) -> None:
    """Send one message. Writes to the store; other processes may have it open.

    The message is on disk when the command returns. A topic that does not exist is made with 4 queues and without a
    type: it takes every message. A path without a store is refused; with --create a store is created there.
    """
    from broker import Message
    from recovery.cli import messages as sending

    try:
        pairs = sending.properties_of(properties or [])
    except ValueError as error:
        raise BadParameter(str(error), param_hint="--property") from None
    content = sys.stdin.buffer.read() if body == "-" else body.encode("utf-8", "surrogateescape")
    message = Message(topic, content, tag=tag, keys=keys or (), properties=pairs)
    sent = sending.send(store, message, queue_id=queue_id, create=create)
    if as_json:
        print_json(asdict(sent))
    else:
        place = f"queue {sent.queue_id}, queue offset {sent.queue_offset}, CommitLog offset {sent.commitlog_offset}"
        show([f"Sent to {sent.topic}: {place}, unique key {sent.unique_key}"])


def tail(
    store: Store,
    topic: Topic,
    follow: Annotated[bool, Option("--follow", "-f", help="Continue with new messages.")] = False,
    begin: Annotated[
        str, Option("--from", metavar="WHERE", help="first, last, a time (ISO 8601, UTC) or milliseconds.")
    ] = "last",
    lines: Annotated[int, Option("--lines", "-n", min=0, metavar="N", help="How many --from last shows.")] = 10,
    as_json: Annotated[bool, Option("--json", help="Print a JSON list; with --follow one object per line.")] = False,
) -> None:
    """Print the messages of a topic as consumers receive them. Changes nothing on disk; a broker may be running.

    It does not move the position of any consumer group.
    """
    from recovery.cli import messages as sending

    if begin not in ("first", "last"):
        try:
            sending.moment_of(begin, "first, last, ")
        except ValueError as error:
            raise BadParameter(str(error), param_hint="--from") from None
    if not sending.has_topic(store, topic):
        more = "waiting for it" if follow else f"see those that it has with: checkback topic {quote(store)}"
        warn(f"{store} has no topic {topic}: {more}")
    if (up_to := sending.queues_up_to(store, topic)) is not None:
        more = f"see all of it with: checkback find {quote(store)} --topic {quote(topic)}"
        warn(f"anything behind CommitLog offset {up_to:,} was in the memory of the broker, not in its RocksDB: {more}")
    messages = sending.tail(store, topic, begin, last=lines, follow=follow)
    if as_json and not follow:
        print_json_list(sending.message_json(message) for message in messages)
        return
    for message in messages:
        show_now(json.dumps(sending.message_json(message)) if as_json else sending.message_line(message))


def topic(
    store: Store,
    name: Annotated[str | None, Argument(metavar="NAME", help="One topic; all topics without it.")] = None,
    create: Annotated[bool, Option("--create", help="Create or change it. Writes to the store.")] = False,
    queues: Annotated[int | None, Option(min=1, metavar="N", help="Number of queues; 4 of a new topic.")] = None,
    kind: Annotated[
        TopicType | None, Option("--type", help="Type of messages that it accepts; NORMAL of a new topic.")
    ] = None,
    perm: Annotated[
        int | None,
        Option(min=0, max=15, metavar="N", help="6 read and write, 4 read, 2 write; 6 of a new topic."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the topics of a store, show one, or create one.

    With --create a store that does not exist is created, in a directory that does. Of a topic that is there, what is
    not given stays as it is.
    """
    from recovery.cli import messages as sending

    if create:
        if name is None:
            raise BadParameter("--create needs the NAME of the topic", param_hint="NAME")
        made = sending.create_topic(store, name, queues=queues, message_type=kind, perm=perm)
        print_json(sending.topic_json(made)) if as_json else show([_topic_line(sending.topic_json(made))])
        return
    found = [sending.topic_json(one) for one in sending.topics(store) if name in (None, one.name)]
    if name is not None and not found:
        fail(f"{store} has no topic {name}. Create it: checkback topic {quote(store)} {quote(name)} --create", FINDINGS)
    if as_json:
        print_json_list(found) if name is None else print_json(found[0])
    else:
        show([_topic_line(one) for one in found])


def _topic_line(topic: dict[str, object]) -> str:
    from recovery.humanize import printable

    kind = topic["message_type"] or "any"
    read, write = topic["read_queues"], topic["write_queues"]
    queues = f"{read} queues" if read == write else f"{read} queues, {write} to write to"
    return printable(f"{topic['topic']:<40}  {kind:<11}  {queues}  perm {topic['perm']}")


def end(
    store: Store,
    name: Annotated[str, Argument(metavar="ID", help="A CommitLog offset, unique key or message id.")],
    why: Annotated[str, Option("--why", metavar="TEXT", help="The reason; stored in the end record.")],
    commit: Annotated[bool, Option("--commit", help="Deliver the message.")] = False,
    rollback: Annotated[bool, Option("--rollback", help="Never deliver it.")] = False,
    by: Annotated[str, Option("--by", metavar="NAME", help="The person who decides; by default this user.")] = "",
    as_json: AsJson = False,
) -> None:
    """Commit or roll back one half message manually. Writes to the store; the first decision is final.

    For transactions without a ledger: one whose outcome a ledger holds is refused, and settled by checkback resolve.
    Exits with 1 when the opposite decision was already recorded. To list what is in doubt: checkback pending STORE
    """
    from broker import AlreadyEnded
    from recovery.cli import messages as sending

    if commit is rollback:
        raise BadParameter("give one of --commit and --rollback", param_hint="--commit")
    if not why.strip():
        raise BadParameter("say why: it is kept with the decision", param_hint="--why")
    try:
        decided = sending.end(store, name, commit=commit, why=why, by=by)
    except AlreadyEnded as error:
        fail(str(error), FINDINGS)
    if as_json:
        print_json(decided.as_json())
        return
    state = decided.state.replace("_", " ")
    before = " before: nothing was written" if decided.again else ""
    show([f"The transaction at CommitLog offset {decided.half_offset} ({decided.topic}) was {state}{before}."])


_EXAMPLES: dict[Callable[..., None], str] = {
    send: examples(
        "send shop.store orders --body 'paid' --tag new --key 4711",
        "send new.store orders --body 'first' --create",
        "send shop.store orders --property colour=blue < order.json",
    ),
    tail: examples(
        "tail shop.store orders",
        "tail shop.store orders --follow --json | jq .body",
        "tail shop.store orders --from 2026-11-21T10:00",
    ),
    topic: examples("topic shop.store", "topic shop.store orders --create --queues 8 --type TRANSACTION"),
    end: examples(
        "end shop.store 1048576 --rollback --why 'the customer called'",
        "end shop.store 7F0000010A2B18B4AAC2000000C80001 --commit --why 'the row is there'",
    ),
}


def register(app: VerbGroup) -> None:
    """Put these verbs on the command line."""
    for verb, epilog in _EXAMPLES.items():
        app.verb(verb, epilog=epilog, **listing(verb.__name__))
