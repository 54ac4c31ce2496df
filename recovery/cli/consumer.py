"""The verbs about consumers: `dlq` and `consumer`, and the `demo`, which has everything in it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

from recovery.cli.declaration import Argument, BadParameter, Exit, Option, VerbGroup
from recovery.cli.shared import FINDINGS, WELL, AsJson, Store, examples, listing
from recovery.cli.terminal.output import print_json, print_json_list, show, warn

if TYPE_CHECKING:
    from recovery.views.dead_letters import DeadLetter

Group = Annotated[str | None, Argument(metavar="GROUP", help="A consumer group; all groups without it.")]


def dlq(
    store: Store,
    group: Group = None,
    as_json: AsJson = False,
    resend: Annotated[bool, Option("--resend", help="Send them to the group again. Writes to the store.")] = False,
    ids: Annotated[list[str] | None, Option("--id", metavar="ID", help="Only this message; may be repeated.")] = None,
    everything: Annotated[bool, Option("--all", help="Include those that were resent.")] = False,
) -> None:
    """List the dead letters of consumer groups: messages that failed in all their retries. Send them again.

    A resent message is delivered at once, with all its retries available again; --all still lists it.
    """
    import broker
    from recovery.cli.terminal import tables_consumer as screen_consume
    from recovery.views import dead_letters

    if group is None:
        if resend or ids:
            raise BadParameter("name the GROUP whose dead letters are meant", param_hint="GROUP")
        with broker.open(store, read_only=True) as opened:
            found = dead_letters.groups(opened)
        print_json(found) if as_json else show(screen_consume.dead_letter_groups(found))
        return
    wanted = ids or []
    if resend:
        with broker.open(store, create=False) as live:
            _show_letters(dead_letters.resend(live, group, wanted), as_json, resent=True)
    else:
        with broker.open(store, read_only=True) as opened:
            found_letters = (
                one
                for one in dead_letters.dead_letters(opened, group)
                if (everything or not one.resent) and (not wanted or {one.message_id, one.unique_key} & set(wanted))
            )
            _show_letters(found_letters, as_json)


def _show_letters(letters: Iterable[DeadLetter], as_json: bool, *, resent: bool = False) -> None:
    from recovery.cli.terminal import tables_consumer as screen_consume

    if as_json:
        print_json_list(one.as_json() for one in letters)
    else:
        show(screen_consume.dead_letters(list(letters), resent=resent))


def consumer(
    store: Store,
    group: Group = None,
    as_json: AsJson = False,
    topic: Annotated[str | None, Option(metavar="TOPIC", help="Only this topic.")] = None,
    reset: Annotated[
        str | None,
        Option(metavar="TO", help="first, last, a time (2026-11-21T08:00Z) or a queue offset. Writes to the store."),
    ] = None,
    queue: Annotated[int | None, Option(min=0, metavar="N", help="With --reset: only this queue.")] = None,
    pause: Annotated[
        bool | None,
        Option("--pause/--resume", help="Give the group no messages any more, or again. Writes to the store."),
    ] = None,
) -> None:
    """Show the positions and the lag of consumer groups, reset one, or pause one.

    Reads config/consumerOffset.json, which consumers write every 5 s. A reset reaches running consumers within a
    second; messages in process are delivered again if they are beyond the new position. A group is paused as in
    RocketMQ, by consumeEnable in config/subscriptionGroup.json, in every process; what is in process is finished.
    """
    import broker
    from recovery.cli.terminal import tables_consumer as screen_consume
    from recovery.views import consumer_lag as group_positions

    if pause is not None:
        if group is None or reset is not None:
            raise BadParameter("--pause and --resume need a GROUP, and no --reset", param_hint="--pause")
        with broker.open(store, create=False) as live:
            group_positions.check_group(live, group)
            live.pause_group(group) if pause else live.resume_group(group)
    if reset is None:
        with broker.open(store, read_only=True) as opened:
            found = list(group_positions.positions(opened, group, topic))
    else:
        if group is None or topic is None:
            raise BadParameter("--reset needs a GROUP and a --topic", param_hint="--reset")
        to = group_positions.place(reset)
        with broker.open(store, create=False) as live:
            if topic not in live.topics():
                raise broker.BrokerError(f"{store} has no topic {topic}: its topics are {', '.join(live.topics())}")
            group_positions.check_group(live, group)
            found = group_positions.reset(live, group, topic, to, queue)
    if as_json:
        print_json_list(one.as_json() for one in found)
    else:
        show(screen_consume.group_positions(found, group, topic))


class Switch(StrEnum):
    """A safeguard of the demo."""

    CHECK_BACK = "check-back"
    DEDUP = "dedup"
    TOMBSTONE = "tombstone"
    DISPATCH = "dispatch"


def demo(
    as_json: AsJson = False,
    seed: Annotated[int, Option(metavar="N", help="Seed of the random choices; timing differs from run to run.")] = 0,
    seconds: Annotated[
        float,
        Option(
            min=1, metavar="TIME", help="Duration of the sale; up to ten times that, until each crash hit 20 times."
        ),
    ] = 20.0,
    database: Annotated[
        str | None, Option(metavar="URL", help="SQLAlchemy URL of a PostgreSQL database; else SQLite.")
    ] = None,
    without: Annotated[
        list[Switch] | None,
        Option("--without", help="Turn a safeguard off, to see that it is needed; may be repeated."),
    ] = None,
    keep: Annotated[str | None, Option(metavar="DIR", help="Keep store and database in this new directory.")] = None,
    broker: Annotated[
        str | None,
        Option("--broker", metavar="URL", help="A cluster, rocketmq://HOST:9876, not a store."),
    ] = None,
) -> None:
    """Run a flash sale of nine processes that are killed at random, and reconcile: is anything lost or duplicated?

    Exits with 1 when the sums do not agree, or when a kind of crash hit fewer than 20 times, which proves little. In
    your own database it recreates tables named flash_sale_….
    """
    from recovery.cli.terminal import tables_consumer as screen_consume
    from recovery.demo.runner import Demo, new_directory

    say = (lambda _: None) if as_json else warn
    with tempfile.TemporaryDirectory(prefix="checkback-demo-") as temporary:
        directory = new_directory(keep) if keep else temporary
        off = [switch.value for switch in without or []]
        result = Demo(directory, database=database, seed=seed, seconds=seconds, off=off, broker=broker, say=say).run()
    print_json(result.as_json()) if as_json else show(screen_consume.reconciliation(result))
    raise Exit(WELL if result.ok else FINDINGS)


_EXAMPLES: dict[Callable[..., None], str] = {
    dlq: examples("dlq shop.store", "dlq shop.store billing", "dlq shop.store billing --resend"),
    consumer: examples(
        "consumer shop.store",
        "consumer shop.store billing --topic orders --reset first",
        "consumer shop.store billing --topic orders --reset 2026-11-21T08:00Z --json",
        "consumer shop.store billing --pause",
    ),
    demo: examples(
        "demo", "demo --seed 7 --json", "demo --database postgresql+psycopg:///shop", "demo --without dedup"
    ),
}


def register(app: VerbGroup) -> None:
    """Put these verbs on the command line."""
    for verb, epilog in _EXAMPLES.items():
        app.verb(verb, epilog=epilog, **listing(verb.__name__))
