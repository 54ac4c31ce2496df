"""Carry a store to a cluster: the plan, and the move.

    plan_move("shop.store", settings)                       nothing is changed
    move("shop.store", settings, ledgers=[...])             goes on where a run was killed

Nobody may have the store open meanwhile, and nobody opens it for writing afterwards: STORE/checkback/moved.json says
so to `broker.open`.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain

from broker.cluster.network.settings import ClientSettings
from broker.errors import StoreError
from broker.format.commitlog import Record
from broker.format.topics import SCHEDULE_TOPIC
from broker.ledger import Ledger
from broker.remoting.bodies import MessageQueue
from broker.store.disk.files import Disk
from broker.store.disk.paths import Paths, path_of_store
from broker.store.disk.store_lock import StoreLock
from recovery.humanize import count
from recovery.moving.catalog import MoveCatalog
from recovery.moving.contents import DoubtfulTransaction, StoreContents
from recovery.moving.conversion import PROPERTIES_MAX, BrokerAbility, carried
from recovery.moving.ledger_carry import prepare
from recovery.moving.read_back import ReadBack
from recovery.moving.report import MovePlan, MoveReport, TopicPlan
from recovery.moving.sending import Progress, Sending
from recovery.moving.target import MoveTarget

VERSION_MIN = 273
"""V4_3_0: brokers before it keep half messages elsewhere. RocketMQ: MQVersion (5.3.3)."""

_ADDED_MAX = 1024  # bytes that a message's properties get on their way


def plan_move(path: str | os.PathLike[str], settings: ClientSettings, *, has_ledgers: bool = False) -> MovePlan:
    """What would be carried, and what stands in the way. Raises NotAStore, StoreError, StoreLocked, ClusterError."""
    with StoreContents(path) as contents, MoveTarget(settings) as target:
        with _alone(contents.path):
            pass
        return _plan(contents, target, is_resumed=_is_begun(contents.path), has_ledgers=has_ledgers)


def move(
    path: str | os.PathLike[str],
    settings: ClientSettings,
    *,
    ledgers: Sequence[Ledger] = (),
    progress: Progress = lambda _done, _total: None,
) -> MoveReport:
    """Carry everything, read it back, and mark the store as moved.

    Raises StoreLocked when another process has the store open, StoreError when the plan has a refusal, WrongLedger,
    ClusterError when the cluster cannot be reached for a while: then run it again.
    """
    path = path_of_store(path)
    paths = Paths(path)
    with MoveTarget(settings) as target:
        is_begun = _is_begun(path)
        with StoreContents(path) as contents:
            if is_begun and (done := _done(paths, contents, target)) is not None:
                return done
            with _alone(path):
                pass
            plan = _plan(contents, target, is_resumed=is_begun, has_ledgers=bool(ledgers))
        if plan.refusals:
            more = f" ({len(plan.refusals) - 1} more: without --apply all are listed)" if plan.refusals[1:] else ""
            raise StoreError(f"nothing was moved: {plan.refusals[0]}{more}", path=path)
        bindings = {} if is_begun else prepare(path, target.cluster_id, ledgers)
        with _alone(path), StoreContents(path) as contents, MoveCatalog(paths) as catalog, catalog.sentences():
            bindings = catalog.begin(contents.store_id, target.cluster, bindings)
            _mark(paths, target.url, is_done=False)
            report = _work(contents, target, catalog, bindings, progress, is_resumed=is_begun)
            if report.ok:
                catalog.put_fact("report", report.as_json())
                _mark(paths, target.url, is_done=True)
        return report


def _work(
    contents: StoreContents, target: MoveTarget, catalog: MoveCatalog, bindings: Mapping[str, str],
    progress: Progress, *, is_resumed: bool,
) -> MoveReport:  # fmt: skip
    report = MoveReport(contents.path, target.url, target.cluster)
    sending = Sending(contents, target, catalog, report, is_resumed=is_resumed, progress=progress)
    read_back = ReadBack(contents, target, catalog, report)

    async def work() -> None:
        made = set(catalog.fact("made") or ())
        for config, queues in contents.topics():
            if config.name not in made and len(await target.topic(config.name)) < len(target.brokers):
                made.add(config.name)
                catalog.put_fact("made", sorted(made))
                await target.make_topic(config, queues)
        for group in contents.groups():
            await target.make_group(group)
        await sending.queues()
        places = await read_back.queues()
        if report.ok:
            await read_back.put_positions(places)
            await sending.singles(bindings)
            await read_back.singles(sending, [*sending.delayed(), *sending.in_doubt(bindings)])
            for config, queues in contents.topics():
                if config.name in made:
                    await target.make_topic(config, queues, is_final=True)

    target.run(work())
    return report


# The plan


def _plan(contents: StoreContents, target: MoveTarget, *, is_resumed: bool, has_ledgers: bool) -> MovePlan:
    in_doubt, positions = contents.in_doubt(_now_ms()), contents.positions()
    delayed = list(contents.delayed())
    due_ms = [contents.due_ms(one) for one in delayed]
    messages = Counter[str]()
    for queue in contents.queues():
        messages[queue.topic] += queue.end - queue.first
    topics: list[TopicPlan] = []
    notes, refusals = list[str](), list[str]()

    async def ask() -> None:
        for config, queues in contents.topics():
            there = await target.topic(config.name)
            topics.append(TopicPlan(config.name, queues, messages[config.name], bool(there)))
            if fewer := [one for one in there if one.queues < queues]:
                number, place = fewer[0].queues, fewer[0].broker_name
                text = f"the topic {config.name} has {count(number, 'queue')} at {place}, and {queues:,} here"
                refusals.append(f"{text}: change it there (mqadmin updateTopic -r {queues} -w {queues})")
            elif there and not is_resumed:
                refusals.extend(await _used(target, config.name, [one.broker_name for one in there], queues))
        for group in contents.groups():
            if number := await target.members(group.name):
                consumers, are = count(number, "consumer"), "is" if number == 1 else "are"
                text = f"{consumers} of the group {group.name} {are} connected to the cluster"
                refusals.append(f"{text}: stop them until its positions are there, at the end of the move")
        for name in target.brokers:
            refusals.extend(_unable(name, await target.ability(name), max(due_ms, default=0)))

    target.run(ask())
    if not is_resumed:
        refusals += _not_carried(contents, [*delayed, *(contents.record(one.commitlog_offset) for one in in_doubt)])
    refusals += _of_ledgers(in_doubt, has_ledgers=has_ledgers or is_resumed)
    notes += _notes(in_doubt)
    by_group = Counter(one.producer_group for one in in_doubt)
    return MovePlan(
        contents.path, target.url, target.cluster, topics, len(delayed), dict(by_group),
        sum(one.is_parked for one in in_doubt), len({group for _, group in positions}),
        sum(len(queues) for queues in positions.values()), notes, refusals,
    )  # fmt: skip


async def _used(target: MoveTarget, topic: str, brokers: list[str], queues: int) -> list[str]:
    """A refusal for a topic that has messages: no position could say what a group had of both."""
    for name in brokers:
        for queue_id in range(queues):
            first, end = await target.range(MessageQueue(topic, queue_id, name))
            if end > first:
                text = f"the topic {topic} has {count(end - first, 'message')} in queue {queue_id} at {name}"
                return [f"{text}: move into topics without any, and let producers send there when the move is over"]
    return []


def _not_carried(contents: StoreContents, waiting: Sequence[Record]) -> list[str]:
    """A refusal for the first message that cannot be carried: in the middle of a move there would be no way on."""
    try:
        for record in chain(waiting, contents.large(PROPERTIES_MAX - _ADDED_MAX)):
            carried(record, contents.store_id, due_ms=record.topic == SCHEDULE_TOPIC)
    except StoreError as error:
        return [str(error)]
    return []


def _unable(name: str, ability: BrokerAbility, last_due_ms: int) -> list[str]:
    """Refusals for what a broker cannot keep."""
    if ability.version < VERSION_MIN:
        return [f"the broker {name} is older than RocketMQ 4.3, whose half messages it cannot keep: use a newer one"]
    try:
        ability.delay_of(last_due_ms, _now_ms())
    except StoreError as error:
        return [f"a delayed message cannot be kept by {name}: {error}"]
    return []


def _of_ledgers(in_doubt: Sequence[DoubtfulTransaction], *, has_ledgers: bool) -> list[str]:
    named = sum(bool(one.binding_id) for one in in_doubt)
    if not named or has_ledgers:
        return []
    name = count(named, "transaction in doubt names", "transactions in doubt name")
    text = f"{name} a ledger: give it (--ledger URL), for the checks of the cluster"
    return [f"{text}; or settle them first: checkback check-back STORE --ledger URL"]


def _notes(in_doubt: Sequence[DoubtfulTransaction]) -> list[str]:
    found = []
    if parked := sum(one.is_parked for one in in_doubt):
        found.append(f"{parked:,} of the transactions in doubt are parked here, and checked again there")
    if delayed := sum(one.is_delayed for one in in_doubt):
        text = f"{delayed:,} of the transactions in doubt have a delay, which a broker drops"
        found.append(f"{text}: settle them first to keep it (checkback check-back)")
    return found


# Who may write to the store


@contextmanager
def _alone(path: str) -> Iterator[None]:
    """Nobody else has the store open for writing. Raises StoreLocked."""
    lock = StoreLock(Paths(path).lock, Disk())
    if not lock.try_exclusive():
        raise lock.locked()
    try:
        yield
    finally:
        lock.release()


def _mark(paths: Paths, url: str, *, is_done: bool) -> None:
    Disk().write_file(paths.moved, json.dumps({"url": url, "is_done": is_done}, indent=1).encode())


def _is_begun(path: str) -> bool:
    return Disk().entry(Paths(path).move_catalog) is not None


def _done(paths: Paths, contents: StoreContents, target: MoveTarget) -> MoveReport | None:
    """The report of a move that is done; None while it is not. Raises StoreError for one to another cluster."""
    with MoveCatalog(paths) as catalog:
        catalog.begin(contents.store_id, target.cluster, {})
        report = catalog.fact("report")
    if report is None:
        return None
    if Disk().entry(paths.moved) is None:
        text = f"{contents.path} was moved before, and its mark was removed, so it may have changed since"
        text += f". To move it once more, into topics without messages: remove {paths.move_catalog}"
        raise StoreError(text, path=contents.path)
    _mark(paths, target.url, is_done=True)
    made = MoveReport.of(report)
    made.was_done = True
    return made


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
