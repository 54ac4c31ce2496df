"""When a half message, and an end, are on disk: at once, when somebody waited, or soon."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from broker.store.shared.control import Word
from broker.transaction.events import WHY
from tests.transaction.opened import message, opened

pytestmark = pytest.mark.usefixtures("each_engine")


@pytest.mark.parametrize("sync", ["each", "group"])
def test_a_half_message_is_durable_when_prepare_returns(tmp_path: Path, sync: str) -> None:
    with opened(tmp_path, sync=sync) as store:
        for number in range(20):
            half = store.transactions.prepare(message(str(number)), "shop")
            assert store.visible_end >= half.end


def test_in_mode_each_it_is_whether_it_is_waited_for_or_not(tmp_path: Path) -> None:
    with opened(tmp_path, sync="each") as store:
        for number in range(20):
            half = store.transactions.prepare(message(str(number)), "shop", wait=False)
            assert store.visible_end >= half.end


def test_in_mode_each_an_end_is_durable_when_it_returns(tmp_path: Path) -> None:
    """With a reason, too, which takes another way."""
    with opened(tmp_path, sync="each") as store:
        for end in (store.transactions.commit, store.transactions.rollback):
            for extra in (None, {WHY: "a test"}):
                ended = end(store.transactions.prepare(message(), "shop"), extra_properties=extra)
                assert ended.commitlog_offset is not None
                assert store.visible_end > ended.commitlog_offset
                assert store.visible_end == store.writer.control[Word.TAIL]


def test_a_future_is_done_when_the_half_is_durable(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        futures = [store.transactions.prepare_async(message(str(number)), "shop") for number in range(50)]
        halves = [future.result(timeout=20) for future in futures]
        assert [half.slot for half in halves] == list(range(50))
        assert store.visible_end >= halves[-1].end
        assert list(store.transactions.in_doubt()) == halves


def test_an_end_becomes_visible_soon(tmp_path: Path) -> None:
    """Nobody waits for its forced write, and it comes all the same."""
    with opened(tmp_path) as store:
        ended = store.transactions.commit(store.transactions.prepare(message(), "shop"))
        assert ended.commitlog_offset is not None
        deadline_s = time.monotonic() + 20
        while store.visible_end <= ended.commitlog_offset:
            assert time.monotonic() < deadline_s
            time.sleep(0.002)
        found = store.message("orders", 0, 0)
        assert found is not None
        assert found.body == b"body"
