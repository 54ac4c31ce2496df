"""The verbs that look messages up and carry them elsewhere: `find copy export replay`."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

from recovery.cli.declaration import Argument, BadParameter, Exit, Option, VerbGroup
from recovery.cli.shared import FINDINGS, WELL, AsJson, Store, examples, listing
from recovery.cli.terminal.output import Bar, print_json, print_json_list, show, warn
from recovery.humanize import moment, printable, size

if TYPE_CHECKING:
    from recovery.views.messages.find import Query

Identifier = Annotated[str, Option("--id", metavar="ID", help="A CommitLog offset, or an offset message id.")]
UniqueKey = Annotated[str, Option("--unique-key", metavar="KEY", help="The id that the producer gave it.")]
Key = Annotated[str, Option("--key", metavar="KEY", help="One of its keys.")]
Topic = Annotated[str, Option("--topic", metavar="TOPIC", help="Only this topic.")]
Since = Annotated[str, Option("--since", metavar="TIME", help="Stored at or after (ISO 8601, UTC) or ms.")]
Until = Annotated[str, Option("--until", metavar="TIME", help="Stored before.")]
Limit = Annotated[int | None, Option(min=0, metavar="N", help="At most N messages.")]


def find(
    store: Store,
    identifier: Identifier = "",
    unique_key: UniqueKey = "",
    key: Key = "",
    topic: Topic = "",
    since: Since = "",
    until: Until = "",
    limit: Limit = None,
    as_json: AsJson = False,
) -> None:
    """Find messages by id, unique key, key, topic or time; all that is given must hold.

    Half messages are among them. Changes nothing on disk; a broker may be running. Exits with 1 when nothing is found.
    """
    from recovery.cli.messages import message_json, message_line
    from recovery.views.messages.find import find as look_up
    from recovery.views.messages.find import found_json

    found, query = 0, _query(identifier, unique_key, key, topic, since, until)
    with Bar("Reading") as progress:
        messages = progress.between(look_up(store, query, limit, progress))
        if as_json:
            found = print_json_list({**found_json(message), **message_json(message)} for message in messages)
        else:
            for message in messages:
                what = f"{found_json(message)['what']} at {message.commitlog_offset}"
                show([printable(f"{message.topic}  {what}  {message.unique_key or ''}"), f"  {message_line(message)}"])
                found += 1
    if not found and not as_json:
        warn(f"no message in {printable(store)} is like that")
    raise Exit(WELL if found else FINDINGS)


def copy(
    store: Store,
    to: Annotated[str, Argument(metavar="OUT", help="A directory that does not exist.")],
    link: Annotated[bool, Option("--link", help="Hard links for full segments; for reading only.")] = False,
    with_ledgers: Annotated[
        bool, Option("--with-ledgers", help="The copy takes the place of the original, which is gone.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Copy a store while it is in use. The copy verifies without findings, and opens as after a power cut.

    STORE is only read. Of a running RocketMQ broker's store the derived files are made from the copied log. Check-back
    refuses the copy, because its transactions are the original's, unless --with-ledgers is given.
    """
    from recovery.repair.copying import copy_store

    with Bar("Copying") as progress:
        report = copy_store(store, to, link=link, with_ledgers=with_ledgers, progress=progress)
    if as_json:
        print_json(report.as_json())
        return
    how = "; it was in use, or not closed" if report.was_live else ""
    made = "; derived files were made from the copied log" if report.is_rebuilt else ""
    links = f", {report.linked:,} of them links" if report.linked else ""
    show([f"Copied {report.files:,} files ({size(report.bytes)}){links} to {printable(report.out)}{how}{made}"])


def export(
    store: Store,
    file: Annotated[str, Argument(metavar="FILE", help="A file that does not exist.")],
    identifier: Identifier = "",
    unique_key: UniqueKey = "",
    key: Key = "",
    topic: Topic = "",
    since: Since = "",
    until: Until = "",
    limit: Limit = None,
) -> None:
    """Write messages to a file, a line of JSON each, for checkback replay.

    Half messages, and messages that wait for their delay, are left out. Changes nothing in the store. Exits with 1 when
    nothing is found; then the file holds its first line only.
    """
    from recovery.views.messages.export import export as write

    with Bar("Reading") as progress:
        count = write(store, _query(identifier, unique_key, key, topic, since, until), file, limit, progress)
    show([f"{count:,} messages written to {printable(file)}"])
    raise Exit(WELL if count else FINDINGS)


def replay(
    file: Annotated[str, Argument(metavar="FILE", help="What checkback export wrote.")],
    store: Annotated[str, Argument(metavar="STORE", help="The store that they are sent to.")],
    topic: Annotated[str, Option("--topic", metavar="TOPIC", help="Send them to this topic instead.")] = "",
    apply: Annotated[bool, Option("--apply", help="Send them. Without it nothing is sent.")] = False,
    as_json: AsJson = False,
) -> None:
    """Send exported messages again, as new messages; without --apply say what would be sent.

    The file is read whole before the first message is sent. A run that was killed goes on where it was.
    """
    from recovery.repair.replaying import plan_replay
    from recovery.repair.replaying import replay as send

    if apply:
        with Bar("Sending") as progress:
            plan = send(file, store, topic, progress)
    else:
        plan = plan_replay(file, store, topic)
    if as_json:
        print_json(plan.as_json())
        return
    verb = "Sent" if apply else "Would send"
    for name, count in sorted(plan.topics.items()):
        show([printable(f"{verb} {count:,} messages to {name}")])
    if plan.done:
        show([f"{plan.done:,} messages were sent by an earlier run"])
    if plan.total:
        show([f"stored {moment(plan.first_stored_ms)} to {moment(plan.last_stored_ms)} UTC at first"])
        if not apply:
            words = ["checkback", "replay", file, store, *(["--topic", topic] if topic else []), "--apply"]
            show([f"Nothing was sent. To send: {printable(shlex.join(words))}"])
    else:
        show(["Nothing is left to send."])


def _query(identifier: str, unique_key: str, key: str, topic: str, since: str, until: str) -> Query:
    from recovery.cli.messages import moment_of
    from recovery.views.messages.find import Query

    if not (identifier or unique_key or key or topic or since or until):
        raise BadParameter("give at least one of --id --unique-key --key --topic --since --until")
    times: dict[str, Any] = {}
    for name, text in (("since", since), ("until", until)):
        try:
            times |= {f"{name}_ms": moment_of(text)} if text else {}
        except ValueError as error:
            raise BadParameter(str(error), param_hint=f"--{name}") from None
    if since and until and times["since_ms"] >= times["until_ms"]:
        raise BadParameter(f"{since} is not before --until {until}: nothing is between them", param_hint="--since")
    return Query(identifier, unique_key, key, topic, **times)


_EXAMPLES: dict[Callable[..., None], str] = {
    find: examples(
        "find shop.store --key 4711",
        "find shop.store --id 7F00000100002A9F0000000000000064 --json",
        "find shop.store --topic orders --since 2026-11-21T10:00 --until 2026-11-21T10:05",
    ),
    copy: examples("copy shop.store /backup/shop.store", "copy shop.store /tmp/look --link"),
    export: examples("export shop.store lost.jsonl --topic orders --since 2026-11-21T10:00 --until 2026-11-21T10:05"),
    replay: examples("replay lost.jsonl shop.store", "replay lost.jsonl shop.store --apply"),
}


def register(app: VerbGroup) -> None:
    """Put these verbs on the command line."""
    for verb, epilog in _EXAMPLES.items():
        app.verb(verb, epilog=epilog, **listing(verb.__name__))
