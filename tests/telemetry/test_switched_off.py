"""What telemetry costs an application that does not switch it on: nothing that runs for a message."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest

import broker
from broker.errors import BrokerError
from broker.live import LiveStore

PROGRAM = """
import sys
import broker
with broker.open("shop.store", layout=broker.StoreLayout(segment_bytes=1 << 20)) as store:
    producer = store.producer("web")
    producer.send(broker.Message("orders", b"1"))
    with store.consumer("billing", "orders") as consumer:
        consumer.ack(consumer.receive(10))
    print(type(producer._destination).__name__, type(consumer).__name__)
found = [name for name in sys.modules if name.startswith(("opentelemetry", "broker.telemetry"))]
print(found)
"""


def test_nothing_of_it_is_loaded(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "StoreDestination Consumer\n[]\n"


def files_called(run: Callable[[], object]) -> set[str]:
    """The files whose functions run."""
    files: set[str] = set()

    def note(frame: FrameType, what: str, _: object) -> None:
        if what == "call":
            files.add(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    return files


def test_no_function_of_it_runs_for_a_message(tmp_path: Path) -> None:
    """Observers are asked when a producer or a consumer is made, and never again."""
    with broker.open(tmp_path / "store", layout=broker.StoreLayout.small()) as store:
        producer, half = _producers(store)
        consumer = store.consumer("billing", "orders")

        def work() -> None:
            producer.send(broker.Message("orders", b"1"))
            with half.begin_transaction() as transaction:
                half.send(broker.Message("orders", b"2"), transaction)
            for _ in range(2):
                message = consumer.receive(10)
                assert message is not None
                consumer.ack(message)

        files = files_called(work)
        consumer.close()
    assert any(file.endswith("broker/producer.py") for file in files)
    assert not [file for file in files if "broker/telemetry/" in file or file.endswith("broker/observing.py")]


def _producers(store: LiveStore) -> tuple[broker.Producer, broker.Producer]:
    store.create_topic("orders", message_type="MIXED")
    return store.producer("web"), store.producer("shop", topics=["orders"], resolver=lambda _: None)


def test_without_opentelemetry_there_is_one_sentence(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "from broker import telemetry\n"
        "try: telemetry.switch_on()\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "BrokerError telemetry needs opentelemetry: install checkback with its extra 'telemetry'\n"


@pytest.mark.parametrize(
    "url", ["127.0.0.1:4318", "http://", "http://:4318", "http://127.0.0.1:99999", "http://host:otlp", "http://a b"]
)
def test_an_address_that_is_none(url: str) -> None:
    """The exporter would say so when it sends the first spans, to standard error."""
    from broker import telemetry

    with pytest.raises(BrokerError, match="is not the address of an OTLP collector"):
        telemetry.export_to(url, service="web")
