"""What a stranger found in the C module: interrupts, subclasses, enums of texts, headers that say nonsense."""

from __future__ import annotations

import enum
import gc
import os
import shutil
import signal
import sysconfig
from pathlib import Path
from types import FrameType

import pytest

import broker
from broker import compiled
from broker.errors import MessageRejected, StoreError
from broker.store.shared.control import Word
from broker.transaction.events import TransactionState


class Kind(str, enum.Enum):  # noqa: UP042 - formats itself as its name, which a StrEnum does not
    ORDER = "orders"


def test_the_module_is_there_where_it_can_be_built() -> None:
    """A compile error leaves it out without a word."""
    if shutil.which("cc") is None or not Path(sysconfig.get_path("include"), "Python.h").exists():
        pytest.skip("there is no C compiler, or no headers of Python")
    assert compiled.fast is not None or os.environ.get("CHECKBACK_PURE") == "1", "make setup"


def test_an_interrupt_stays_an_interrupt(tmp_path: Path) -> None:
    """It comes between two lines of Python; in the rare case that the lock stays taken the store tells so."""
    caught, told = 0, list[str]()

    def interrupt(_number: int, frame: FrameType | None) -> None:
        if frame is None or frame.f_code.co_name not in ("__del__", "_remove"):  # there Python prints what is raised
            raise KeyboardInterrupt

    message = broker.Message("orders", b"x", keys=["k"])
    before = signal.signal(signal.SIGALRM, interrupt)
    store = broker.open(tmp_path / "store", sync="os")
    gc.disable()  # nor may it come to what the collector calls for other tests
    try:
        while caught < 100:
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0005)
                for _ in range(5_000):  # then the timer starts again: one that nobody caught fills no disk
                    store.append(message)
            except KeyboardInterrupt:
                caught += 1
            except StoreError as error:
                signal.setitimer(signal.ITIMER_REAL, 0)
                told.append(str(error))
                store.close()
                store = broker.open(tmp_path / "store", sync="os")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        gc.enable()
    store.append(message)
    store.close()
    assert len(told) < 10
    assert all("already inside an append" in text for text in told)


def test_a_subclass_keeps_its_own_checks_and_properties(tmp_path: Path) -> None:
    class Order(broker.Message):
        def __post_init__(self) -> None:
            super().__post_init__()
            if b"amount" not in self.body:
                raise MessageRejected("an order has an amount")

        @property
        def stored_properties(self) -> dict[str, str]:
            return {**super().stored_properties, "TENANT": "7"}

    with pytest.raises(MessageRejected, match="an amount"):
        Order("orders", b"nothing")
    with broker.open(tmp_path / "store", sync="os") as store:
        store.append(Order("orders", b"amount 5"))
        received = store.message("orders", 0, 0)
        assert received is not None
        assert received.properties["TENANT"] == "7"


def test_an_enum_of_texts_is_its_value(tmp_path: Path) -> None:
    with broker.open(tmp_path / "store", sync="os", transactions="half-op") as store:
        message = broker.Message(Kind.ORDER, b"x", tag=Kind.ORDER, keys=[Kind.ORDER], properties={"kind": Kind.ORDER})
        assert {type(text) for text in (message.topic, message.tag, *message.keys, *message.properties.values())} == {
            str
        }
        store.transactions.commit(store.transactions.prepare(message, Kind.ORDER))
        received = store.message("orders", 0, 0)
        assert received is not None
        assert (received.tag, received.keys, received.properties["kind"]) == ("orders", ("orders",), "orders")
        assert (received.properties["REAL_TOPIC"], received.properties["PGROUP"]) == ("orders", "orders")


def test_no_commit_is_stored_when_its_thread_cannot_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cannot() -> None:
        raise RuntimeError("can't start new thread")

    with broker.open(tmp_path / "store", sync="os") as store:
        half = store.transactions.prepare(broker.Message("orders", b"x"), "shop")
        with monkeypatch.context() as patch:
            patch.setattr(store.writer.upkeep, "runs", bytearray(1))
            patch.setattr(store.writer.upkeep, "start", cannot)
            with pytest.raises(RuntimeError, match="new thread"):
                store.transactions.commit(half)
        assert store.transactions.state(half) is TransactionState.PREPARED


def test_an_index_that_counts_nonsense_gets_a_successor(tmp_path: Path) -> None:
    with broker.open(tmp_path / "store", sync="os") as store:
        store.append(broker.Message("orders", b"x", keys=["k"]))
        number, view = store.writer.dispatcher.index.newest
        view[36:40] = b"\x7f\xff\xff\xff"
        store.append(broker.Message("orders", b"y", keys=["k"]))
        assert store.writer.control[Word.INDEX] > number
