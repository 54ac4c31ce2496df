"""Triggers and sensors, without a triggerer: each fires when it should, once, and can be made anew from its JSON."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import TaskDeferred
from airflow.sdk import Asset
from airflow.sdk.module_loading import import_string
from airflow.triggers.base import BaseEventTrigger

import broker
from broker.store.maintain import background as upkeep
from recovery.airflow.operating import looks
from recovery.airflow.sensors import CrashSensor, InDoubtSensor, MessageSensor
from recovery.airflow.triggers import CrashTrigger, InDoubtTrigger, MessageTrigger
from recovery.jobs.tasks import queue_ends
from tests.airflow.watching import FAST_S, AssetState, begins, first, tells_nothing, told
from tests.jobs.shops import SMALL, in_child, killed_shop, park, shop, spoil_slot


def again(trigger: BaseEventTrigger) -> BaseEventTrigger:
    """As the triggerer makes it: from the class's path and arguments that went through JSON."""
    path, arguments = trigger.serialize()
    return import_string(path)(**json.loads(json.dumps(arguments)))  # type: ignore[no-any-return]


def test_a_crash_is_told_once_and_the_next_one_too(tmp_path: Path) -> None:
    """While nothing changes there is no second event; after the recovery another crash is news."""
    path = killed_shop(tmp_path / "shop")
    trigger = again(CrashTrigger(path=str(path), poll_s=FAST_S))

    async def watch() -> None:
        events = trigger.run()
        assert (await first(events))["path"] == str(path)
        with pytest.raises(asyncio.TimeoutError):
            await first(events, 10 * FAST_S)

    asyncio.run(watch())

    async def watch_again() -> None:
        events = CrashTrigger(path=str(path), poll_s=FAST_S).run()
        await first(events)
        pending = asyncio.ensure_future(anext(events))
        with broker.open(str(path)):
            await asyncio.sleep(5 * FAST_S)
        await asyncio.sleep(5 * FAST_S)
        assert not pending.done()
        in_child(lambda: (broker.open(str(path)), os.kill(os.getpid(), signal.SIGKILL)))  # type: ignore[arg-type,return-value]
        assert (await asyncio.wait_for(pending, 10)).payload["path"] == str(path)

    asyncio.run(watch_again())


def test_a_look_that_fails_makes_nothing_news(monkeypatch: pytest.MonkeyPatch) -> None:
    """As while a volume is away: the crash that was told before was told again, and a recovery offered twice."""
    looks: list[Any] = [{"abort": "a"}, OSError("away"), {"abort": "a"}, None, {"abort": "a"}]

    def look(_: CrashTrigger) -> Any:
        found = looks.pop(0) if looks else None
        if isinstance(found, OSError):
            raise found
        return found

    monkeypatch.setattr(CrashTrigger, "look", look)

    async def watch() -> None:
        events = CrashTrigger(path="/srv/shop", poll_s=FAST_S).run()
        await first(events)
        await first(events)
        assert looks == [], "the second event is of the crash after the store was seen in order"

    asyncio.run(watch())


def test_a_store_that_is_not_there_yet_is_waited_for(tmp_path: Path) -> None:
    """A trigger that failed would take its DAG's start with it."""
    path = tmp_path / "shop"

    async def watch() -> None:
        pending = asyncio.ensure_future(
            anext(MessageTrigger(path=str(path), topic="news", poll_s=FAST_S, starts={}).run())
        )
        await asyncio.sleep(5 * FAST_S)
        with broker.open(str(path), layout=SMALL) as store:
            store.append(broker.Message("news", b"first"))
        event = await asyncio.wait_for(pending, 10)
        assert event.payload["queues"] == {"0": [0, 1]}

    asyncio.run(watch())


def test_old_doubts_are_told_and_parked_ones_are_not(tmp_path: Path) -> None:
    """The oldest names the event: it is told once."""
    path = shop(tmp_path / "shop", orders=2)

    async def watch(older_than_s: float, within_s: float) -> dict[str, Any]:
        trigger = again(InDoubtTrigger(path=str(path), older_than_s=older_than_s, poll_s=FAST_S, once=True))
        return await first(trigger.run(), within_s)

    assert asyncio.run(watch(0.0, 10))["count"] == 2
    with pytest.raises(asyncio.TimeoutError):
        asyncio.run(watch(3600.0, 0.3))
    park(path)
    with pytest.raises(asyncio.TimeoutError):
        asyncio.run(watch(0.0, 0.3))


def test_messages_are_told_in_ranges_and_none_twice(tmp_path: Path) -> None:
    """What was there before counts as known; three at once are one event."""
    with broker.open(str(tmp_path / "shop"), layout=SMALL) as store:
        store.append(broker.Message("news", b"old"))

        async def watch() -> None:
            events = again(MessageTrigger(path=store.path, topic="news", poll_s=FAST_S)).run()
            pending = asyncio.ensure_future(anext(events))
            await asyncio.sleep(0.5)
            store.append_batch([broker.Message("news", b"%d" % number) for number in range(3)])
            event = await asyncio.wait_for(pending, 10)
            assert event.payload["queues"] == {"0": [1, 4]}
            assert event.payload["count"] == 3
            store.append(broker.Message("news", b"more"), queue_id=1)
            assert (await first(events))["queues"] == {"1": [0, 1]}

        asyncio.run(watch())


def test_messages_of_a_store_that_took_the_place_are_told(tmp_path: Path) -> None:
    """Its queues end before the positions that are known: nothing was told until it had passed them."""
    path = tmp_path / "shop"
    with broker.open(str(path), layout=SMALL) as store:
        store.append_batch([broker.Message("news", b"%d" % number) for number in range(5)])
    trigger = MessageTrigger(path=str(path), topic="news", starts={"0": 5}, poll_s=FAST_S)
    shutil.rmtree(path)
    with broker.open(str(path), layout=SMALL) as store:
        store.append(broker.Message("news", b"of the next store"))

        async def watch() -> None:
            pending = asyncio.ensure_future(anext(trigger.run()))
            await asyncio.sleep(0.3)
            store.append(broker.Message("news", b"after that"))
            assert (await asyncio.wait_for(pending, 5)).payload["queues"] == {"0": [1, 2]}

        asyncio.run(watch())


def test_airflows_own_queue_trigger_is_ours(tmp_path: Path) -> None:
    """MessageQueueTrigger finds us among the providers that are installed; the triggerer makes ours from its JSON."""
    messaging = pytest.importorskip("airflow.providers.common.messaging.triggers.msg_queue")
    MessageQueueTrigger = messaging.MessageQueueTrigger  # noqa: N806
    path = str(tmp_path / "shop")
    with broker.open(path, layout=SMALL) as store:
        store.append(broker.Message("news", b"first"))
    trigger = MessageQueueTrigger(scheme="checkback", path=path, topic="news", starts={}, poll_s=FAST_S)
    made = again(trigger)
    assert type(made) is MessageTrigger
    for one in (trigger, made):
        assert asyncio.run(first(one.run()))["queues"] == {"0": [0, 1]}
    with pytest.raises(ValueError, match="not recognized"):
        _ = MessageQueueTrigger(scheme="nobody", path=path).trigger


def test_what_is_not_yet_forced_to_disk_has_not_arrived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut could take it back; once it is forced it is there, and when the store is closed everything is."""
    monkeypatch.setattr(upkeep.BackgroundTasks, "start", lambda self: None)  # nobody forces but this test
    path = str(tmp_path / "shop")
    with broker.open(path, layout=SMALL, sync="os") as store:
        for number in range(3):
            store.append(broker.Message("news", b"%d" % number))
        store.sync_now()
        store.append_batch([broker.Message("news", b"%d" % number) for number in range(5)])
        assert queue_ends(path, "news") == {"0": 3}
        store.sync_now()
        assert queue_ends(path, "news") == {"0": 8}
        store.append(broker.Message("news", b"last"))
    assert queue_ends(path, "news") == {"0": 9}


def test_positions_outlive_the_triggerer(tmp_path: Path) -> None:
    """As an asset's watcher it goes on where the last one stopped: what came meanwhile is told."""

    state = AssetState()
    with broker.open(str(tmp_path / "shop"), layout=SMALL) as store:
        store.append(broker.Message("news", b"old"))

        def started() -> MessageTrigger:
            trigger = MessageTrigger(path=store.path, topic="news", poll_s=FAST_S)
            trigger.asset_state_store = state  # type: ignore[assignment]
            return trigger

        async def begin() -> None:
            with pytest.raises(asyncio.TimeoutError):
                await first(started().run(), 0.5)

        asyncio.run(begin())
        store.append(broker.Message("news", b"while nobody looked"))

        async def go_on() -> None:
            assert (await first(started().run()))["queues"] == {"0": [1, 2]}

        asyncio.run(go_on())


def test_a_watcher_of_two_assets_knows_what_each_heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow has one trigger for equal ones, and its accessor does not say which asset is meant: neither DAG ever
    started, and the triggerer logged an error every two seconds."""
    accessors = pytest.importorskip("airflow.sdk.execution_time.context")
    if not hasattr(accessors, "AssetStateStoreAccessors"):
        pytest.skip("no state of assets before Airflow 3.3")
    states: dict[str, AssetState] = {}
    monkeypatch.setattr(accessors, "AssetStateStoreAccessor", lambda name: states.setdefault(name, AssetState()))

    def of(*names: str) -> Any:
        return accessors.AssetStateStoreAccessors([Asset(name) for name in names])

    path = str(killed_shop(tmp_path / "shop"))
    orders = partial(MessageTrigger, path=path, topic="orders", poll_s=FAST_S)
    assert asyncio.run(told(orders(starts={}), of("billing")))["queues"] == {"0": [0, 1]}
    assert asyncio.run(tells_nothing(orders(), of("billing", "shipping")))
    crash = partial(CrashTrigger, path=path, poll_s=FAST_S)
    assert asyncio.run(told(crash(), of("billing")))
    assert asyncio.run(told(crash(), of("billing", "shipping"))), "shipping has not heard of it"
    assert asyncio.run(tells_nothing(crash(), of("billing", "shipping")))


def test_an_asset_may_have_watchers_of_two_stores(tmp_path: Path) -> None:
    """They noted their positions under one name: what came while no triggerer ran was missed."""
    state, paths = AssetState(), [str(killed_shop(tmp_path / name)) for name in ("shop", "other")]

    def watcher(path: str) -> MessageTrigger:
        return MessageTrigger(path=path, topic="orders", poll_s=FAST_S)

    for path in paths:
        asyncio.run(begins(watcher(path), state))
    with broker.open(paths[0]) as store:
        store.append(broker.Message("orders", b"1"), queue_id=0)
        store.append(broker.Message("orders", b"2"), queue_id=0)
    assert asyncio.run(told(watcher(paths[0]), state))["queues"] == {"0": [1, 3]}
    with broker.open(paths[1]) as store:
        store.append(broker.Message("orders", b"while no triggerer ran"), queue_id=0)
    assert asyncio.run(told(watcher(paths[1]), state))["queues"] == {"0": [1, 2]}


@pytest.mark.usefixtures("quiet")
def test_a_sensor_defers_with_where_the_queues_end(tmp_path: Path, connection: Callable[..., str]) -> None:
    """Nothing falls between the task and its trigger; the event is the task's result."""
    with broker.open(str(tmp_path / "shop"), layout=SMALL) as store:
        store.append(broker.Message("news", b"old"))
    sensor = MessageSensor(
        task_id="wait", connection=connection("shop", path=tmp_path / "shop"), topic="news", deferrable=True
    )
    with pytest.raises(TaskDeferred) as deferred:
        sensor.execute({})  # type: ignore[typeddict-item]
    trigger = deferred.value.trigger
    assert (trigger.starts, trigger.once) == ({"0": 1}, True)
    assert sensor.execute_complete({}, {"count": 1}) == {"count": 1}  # type: ignore[typeddict-item]


@pytest.mark.usefixtures("quiet")
def test_a_sensor_can_poke(tmp_path: Path) -> None:
    """Where there is no triggerer."""
    path = str(killed_shop(tmp_path / "shop"))
    assert CrashSensor(task_id="wait", path=path, deferrable=False).execute({})["abort"]  # type: ignore[typeddict-item]
    old = InDoubtSensor(task_id="old", path=path, older_than_s="0", deferrable=False)  # type: ignore[arg-type]
    assert old.execute({})["count"] == 10  # type: ignore[typeddict-item]
    news = MessageSensor(task_id="news", path=path, topic="orders", starts={}, deferrable=False)
    assert news.execute({})["queues"] == {"0": [0, 1]}  # type: ignore[typeddict-item]


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("deferrable", [True, False])
def test_a_sensor_does_not_wait_where_no_store_is(tmp_path: Path, deferrable: bool) -> None:
    """With a wrong path it waited a week for a crash, and said nothing."""
    for sensor in (
        CrashSensor(task_id="crash", path=str(tmp_path / "shpo"), deferrable=deferrable),
        InDoubtSensor(task_id="old", path=str(tmp_path / "shpo"), older_than_s=1, deferrable=deferrable),
        MessageSensor(task_id="news", path=str(tmp_path / "shpo"), topic="news", deferrable=deferrable),
    ):
        with pytest.raises(broker.NotAStore, match="shpo: there is no such directory"):
            sensor.execute({})  # type: ignore[typeddict-item]


def test_watching_a_hundred_stores_is_cheap(tmp_path: Path) -> None:
    """A look at a store in order is a few system calls."""
    from recovery.jobs.tasks import crashed

    path = str(shop(tmp_path / "shop", orders=1))
    began = time.process_time()
    for _ in range(100):
        assert crashed(path) is None
    assert time.process_time() - began < 0.5


def test_check_back_starts_when_a_transaction_is_due_and_not_before(tmp_path: Path) -> None:
    """An idle store has no event; one in doubt has one when the policy says; answered, there is none again."""
    from recovery.airflow.triggers import DueTrigger
    from recovery.jobs import tasks
    from recovery.jobs.due import DueWatch
    from tests.jobs.shops import ANSWERS, LATE_MS

    path = str(shop(tmp_path / "shop", orders=3))
    now = time.time_ns() // 1_000_000
    watch = DueWatch(path)
    assert watch.look(now, {}).event is None, "no transaction is six seconds old"
    assert watch.look(now, {"*": {"first_check_after": "0s"}}).event["due"] == 3  # type: ignore[index]
    late = watch.look(now + LATE_MS, {})
    assert late.event["due"] == 3  # type: ignore[index]
    assert (late.gauges["in_doubt"], late.gauges["crashed"]) == (3, 0)
    assert late.gauges["oldest_in_doubt_s"] >= LATE_MS / 1000
    tasks.check_back(path, now_ms=now + LATE_MS, resolver="tests.jobs.shops:knows_nothing")
    assert watch.look(now + LATE_MS, {}).event is None, "they were queried, and wait for their next turn"
    assert DueWatch(path).look(now + LATE_MS, None).event["due"] == 3, "without the policy each counts"  # type: ignore[index]
    tasks.check_back(path, now_ms=now + 3 * LATE_MS, resolver=ANSWERS)
    assert DueWatch(path).look(now + 9 * LATE_MS, None).event is None
    assert type(again(DueTrigger(path=path, policy={}, metrics_as="shop"))) is DueTrigger


def test_what_a_rebuild_puts_in_doubt_again_is_due(tmp_path: Path) -> None:
    """Nothing was appended, so that it waited for the run of check-back that comes each hour."""
    from recovery.jobs import tasks
    from recovery.jobs.due import READ_AGAIN_MS, DueWatch

    path = shop(tmp_path / "shop", orders=3)
    spoil_slot(path, 0)
    watch, now = DueWatch(str(path)), time.time_ns() // 1_000_000
    assert watch.look(now, None).gauges["in_doubt"] == 2
    tasks.rebuild_table(str(path), now_ms=now)
    found = watch.look(now + READ_AGAIN_MS, None)
    assert found.event == {"due": 3, "commitlog_offset": 0}
    assert found.gauges["in_doubt"] == 3


def test_a_crashed_store_is_not_due_and_says_so(tmp_path: Path) -> None:
    """Its recovery comes first."""
    from recovery.jobs.due import DueWatch

    found = DueWatch(str(killed_shop(tmp_path / "shop"))).look(time.time_ns() // 1_000_000, None)
    assert (found.event, found.gauges["crashed"], found.gauges["in_doubt"]) == (None, 1, 10)


def test_stores_whose_disk_hangs_hold_up_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They had all threads that asyncio gives: no crash of another store was seen, and nothing was checked back."""
    monkeypatch.setattr(looks, "HANGS_S", 0.01)
    path, comes_back = killed_shop(tmp_path / "shop"), threading.Event()

    async def watch() -> None:
        gone = [CrashTrigger(path=f"/srv/{number}.store", poll_s=FAST_S) for number in range(40)]
        for trigger in gone:
            monkeypatch.setattr(trigger, "look", comes_back.wait)
        hanging = [asyncio.ensure_future(anext(trigger.run())) for trigger in gone]
        try:
            assert (await first(CrashTrigger(path=str(path), poll_s=FAST_S).run(), 5))["path"] == str(path)
        finally:
            comes_back.set()
            for one in hanging:
                one.cancel()

    asyncio.run(watch())
