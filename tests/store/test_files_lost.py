"""Files that are deleted, replaced or cut under a live process: noticed at the next sync, and nothing more is sent."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

import broker
from broker import compiled
from broker.errors import BrokerError, StoreError
from broker.live import LiveStore
from broker.store.disk.files import Disk, Map
from broker.store.read.layout import StoreLayout
from broker.store.recover.load import plan
from broker.store.recover.survey import survey
from recovery.verify.verifier import verify
from tests.compiled_module import use
from tests.house.tree import ROOT

LAYOUT = StoreLayout(1 << 20, 60_000, 24_000, 20_000, 1000, 4000)


def _send(store: LiveStore, number: int) -> None:
    store.append(broker.Message("orders", b"x" * 100, keys=[f"k{number}"]))


def _send_many(store: LiveStore) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        _send(store, 2)


def _delete(path: Path) -> None:
    path.unlink()


def _replace(path: Path) -> None:
    shutil.copy(path, path.with_suffix(".new"))
    os.replace(path.with_suffix(".new"), path)


def _delete_directory(path: Path) -> None:
    aside = path.parent.with_name("gone")  # at once: a thread of the store may put a file in it meanwhile
    path.parent.rename(aside)
    shutil.rmtree(aside)


def _replace_by_anothers(path: Path) -> None:
    """As a copy of another store over this one would."""
    text = json.loads(path.read_text())
    path.with_suffix(".new").write_text(json.dumps({**text, "id": "5" * 32}))
    os.replace(path.with_suffix(".new"), path)


LOG, CONTROL, LOCK, STORE_JSON = f"commitlog/{0:020}", "checkback/control", "lock", "checkback/store.json"
CASES: list[tuple[Callable[[Path], None], str]] = [
    (_delete, LOG), (_replace, LOG), (_delete_directory, LOG), (_delete, CONTROL), (_replace, CONTROL), (_delete, LOCK),
    (_replace, LOCK), (_delete, STORE_JSON), (_delete_directory, STORE_JSON), (_replace_by_anothers, STORE_JSON),
]  # fmt: skip


@pytest.mark.parametrize("module", [compiled.fast, None])
@pytest.mark.parametrize("sync", ["each", "group"])
@pytest.mark.parametrize(("harm", "name"), CASES)
def test_the_next_send_is_refused(
    tmp_path: Path,
    harm: Callable[[Path], None],
    name: str,
    sync: str,
    module: ModuleType | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use(monkeypatch, module)
    with broker.open(tmp_path / "store", sync=sync, layout=LAYOUT) as store:
        _send(store, 1)
        harm(tmp_path / "store" / name)
        with pytest.raises(StoreError) as caught:
            _send(store, 2)
        assert str(tmp_path / "store") in str(caught.value)
        assert "checkback verify" in str(caught.value) or "is closed" in str(caught.value)
        for number in range(3, 6):
            with pytest.raises(BrokerError):
                _send(store, number)


def test_a_file_that_goes_while_a_slow_disk_flushes_is_noticed_before_the_send_returns(tmp_path: Path) -> None:
    class SlowDisk(Disk):
        def open_map(self, path: str, size: int) -> Map:
            mapped = super().open_map(path, size)
            flush = mapped.sync

            def slow(start: int = 0, stop: int | None = None) -> None:
                flush(start, stop)
                if harmed and (tmp_path / LOG).exists() and path.endswith(LOG):
                    _delete(tmp_path / LOG)
                    time.sleep(0.01)

            mapped.sync = slow  # type: ignore[method-assign]
            return mapped

    harmed: list[bool] = []
    store = LiveStore(str(tmp_path), SlowDisk(), sync="each", layout=LAYOUT)
    _send(store, 1)
    harmed.append(True)
    with pytest.raises(StoreError, match=f"{0:020}.*was deleted"):
        _send(store, 2)
    store.close()


def test_a_store_that_was_moved_is_not_begun_again_at_its_old_place(tmp_path: Path) -> None:
    """A directory with config/ alone came into being there: a topic was lost in it, and no open took it for a store."""
    old, new = tmp_path / "store", tmp_path / "moved"
    store = broker.open(old, layout=LAYOUT)
    _send(store, 1)
    consumer = store.consumer("billing", "orders")
    message = consumer.receive(5)
    assert message is not None
    consumer.ack(message)
    old.rename(new)
    with pytest.raises(StoreError, match="was moved or deleted while it was open"):
        store.create_topic("new")
    for each in (consumer, store):
        with pytest.raises(StoreError):
            each.close()
    assert not old.exists()
    with broker.open(new) as store, store.consumer("billing", "orders") as consumer:
        assert consumer.receive(0) is None


def test_who_had_a_store_open_that_was_put_back_moves_no_group_of_the_new_one(tmp_path: Path) -> None:
    """It wrote its own positions into it every five seconds: the group was put behind messages that it never got."""
    path = tmp_path / "store"
    old = broker.open(path, layout=LAYOUT)
    _send(old, 1)
    before = old.consumer("billing", "orders")
    message = before.receive(5)
    assert message is not None
    before.ack(message)
    shutil.rmtree(path)
    with broker.open(path, layout=LAYOUT) as new:
        _send(new, 1)
        with pytest.raises(StoreError, match="deleted, replaced or cut"):
            before.close()
        old.close()
        with new.consumer("billing", "orders") as consumer:
            assert consumer.receive(5) is not None


def test_a_store_that_forces_in_the_background_notices_within_a_second(tmp_path: Path) -> None:
    with broker.open(tmp_path, sync="os", layout=LAYOUT) as store:
        _send(store, 1)
        _delete(tmp_path / LOG)
        with pytest.raises(StoreError, match=f"{0:020}.*was deleted"):
            _send_many(store)


def test_the_store_is_not_taken_for_a_healthy_one_afterwards(tmp_path: Path) -> None:
    with broker.open(tmp_path, layout=LAYOUT) as store:
        _send(store, 1)
        _delete(tmp_path / LOG)
        with pytest.raises(StoreError):
            _send(store, 2)
    with pytest.raises(StoreError, match="checkback"):
        broker.open(tmp_path)


def test_retention_and_a_new_store_json_are_no_loss(tmp_path: Path) -> None:
    with broker.open(tmp_path, layout=StoreLayout(8192, 400, 240, 200, 16, 24)) as store:
        for number in range(200):
            _send(store, number)
        _replace(tmp_path / STORE_JSON)
        assert store.retain(broker.Retention(keep_s=0, even_unread=True), now_ms=1 << 50).segments
        store.writer.parts.check_files()
        _send(store, 201)


def test_a_segment_that_is_cut_kills_or_refuses_and_acknowledges_nothing(tmp_path: Path) -> None:
    """Storing behind the end of a mapped file is SIGBUS: the process dies before it could acknowledge anything."""
    script = """
        import os, sys, broker
        from tests.store.test_files_lost import LAYOUT, LOG, _send
        store = broker.open(sys.argv[1], layout=LAYOUT)
        _send(store, 1)
        os.truncate(os.path.join(sys.argv[1], LOG), 100)
        print("cut", flush=True)
        for number in range(100):
            try:
                _send(store, number)
                print("sent", flush=True)
            except broker.BrokerError as error:
                print("refused", flush=True)
        os._exit(0)
    """
    words = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode in (0, -signal.SIGBUS), done.stderr
    assert done.stdout.split("cut")[1].count("sent") == 0
    with pytest.raises(StoreError):
        broker.open(tmp_path)


def test_the_numbers_of_queues_are_not_taken_from_a_file_that_was_deleted(tmp_path: Path) -> None:
    """Made again it is empty: the next message got the number 0, and the place of the first one in its queue."""
    path = tmp_path / "store"
    with broker.open(path, layout=LAYOUT, sync="os") as store:
        _send(store, 1)
    _delete(path / "checkback/queues")
    with broker.open(path, layout=LAYOUT, sync="os") as store:
        assert store.append(broker.Message("orders", b"second")).queue_offset == 1
        _delete(path / "checkback/queues")
        opened = f"import broker; broker.open({str(path)!r})"
        other = subprocess.run([sys.executable, "-c", opened], capture_output=True, text=True, check=False, cwd=ROOT)
        assert "checkback/queues was deleted meanwhile: close it there" in other.stderr
    with broker.open(path, layout=LAYOUT, sync="os") as store:
        assert store.append(broker.Message("orders", b"third")).queue_offset == 2


@pytest.mark.parametrize("transactions", ["state-table", "half-op"])
@pytest.mark.parametrize(
    "gone", ["index/*", "consumequeue", "consumequeue/orders/0/*", "transaction*/*", "checkback/half-op"]
)
def test_derived_files_that_were_removed_from_a_closed_store_are_made_again(
    tmp_path: Path, gone: str, transactions: str
) -> None:
    """The open trusted its page: each send failed, or nobody received what the queue had held; verify alone noticed."""
    path = tmp_path / "store"
    with broker.open(path, layout=LAYOUT, sync="os", transactions=transactions) as store:
        _send(store, 1)
        service = store.transactions
        service.commit(service.prepare(broker.Message("orders", b"sold"), "shop"))
        service.prepare(broker.Message("orders", b"in doubt"), "shop")
    found = list(path.glob(gone))
    for one in found:
        shutil.rmtree(one) if one.is_dir() else one.unlink()
    planned = plan(survey(str(path), Disk()))
    assert bool(planned.steps) == bool(found)
    with broker.open(path) as store:
        assert store.append(broker.Message("orders", b"new")).queue_offset == 2
        assert len(list(store.transactions.in_doubt())) == 1
        consumer = store.consumer("billing", "orders")
        received = [consumer.receive(10) for _ in range(3)]
        assert [message and message.body[-3:] for message in received] == [b"xxx", b"old", b"new"]
    assert verify(path).ok
