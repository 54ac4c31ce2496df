"""What a server logs as JSON."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import broker
from broker.errors import StoreFull
from broker.remoting.codes import RequestCode as Code
from broker.remoting.codes import ResponseCode as Answer
from broker.remoting.frames import FrameSplitter
from broker.server.requests import pulls
from tests.server.conftest import Connect, Serve
from tests.server.wire_client import WireClient


def test_each_line_is_an_object_and_holds_no_body(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "recovery.cli", "serve", str(tmp_path / "s"), "--create", "--listen", "127.0.0.1:0",
             "--log", "json"]  # fmt: skip
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = process.stdout.readline().split(" on ")[1].split(":")[:2]
        with WireClient(f"{address[0]}:{address[1]}") as client:
            end = {"producerGroup": "shop", "tranStateTableOffset": 7, "commitLogOffset": 4711, "commitOrRollback": 8}
            client.publish("orders", b"secret")
            client.request(Code.END_TRANSACTION, end, b"secret")
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    lines = [json.loads(line) for line in err.splitlines()]
    assert {"info", "warning"} <= {line["level"] for line in lines}
    assert any("END_TRANSACTION of shop" in line["message"] for line in lines)
    assert "secret" not in err


def test_a_disk_without_room_is_logged_once_a_minute(
    serve: Serve, connect: Connect, store: broker.LiveStore,
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """The clients were answered, and the server's own log said nothing: of a oneway end nobody learned."""
    client = connect(serve())
    half = client.publish("orders", b"lamp", sys_flag=4, TRAN_MSG="true", PGROUP="producers")
    end = {"producerGroup": "producers", "tranStateTableOffset": half.ext["queueOffset"], "commitOrRollback": 8,
           "commitLogOffset": int(half.ext["msgId"][16:], 16)}  # fmt: skip

    def full(*_: object, **__: object) -> None:
        raise StoreFull("no space left on the device")

    monkeypatch.setattr(store.transactions, "commit", full)
    for _ in range(3):
        assert client.request(Code.END_TRANSACTION, end).code == Answer.SERVICE_NOT_AVAILABLE
    logged = [one.message for one in caplog.records if "no space left" in one.message]
    assert logged == ["what clients send is refused: no space left on the device"]


def test_a_lack_of_memory_is_no_defect_and_is_logged_once_a_minute(
    serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each request was a traceback in the log, and its sender read of a defect."""
    client = connect(serve())
    client.publish("orders", b"lamp")

    def fetch(*_: object, **__: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(pulls, "_fetch", fetch)
        for _ in range(3):
            refused = client.answer(client.pull("billing", "orders"))
            assert (refused.code, refused.remark) == (2, "[OVERLOAD] the server gets no more memory for this")
    logged = [(one.message, one.exc_info) for one in caplog.records if "memory" in one.message]
    assert logged == [("requests are refused: this process gets no more memory", None)]
    assert client.pulled("billing", "orders")[0] == Answer.SUCCESS


def test_a_connection_without_memory_is_closed_in_one_line(
    serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    client = connect(serve())
    client.publish("orders", b"lamp")

    def feed(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(FrameSplitter, "feed", feed)
        client.socket.sendall(b"x")
        assert client.is_closed()
    logged = [one for one in caplog.records if "no more memory" in one.message]
    assert [one.exc_info for one in logged] == [None]


def test_another_form_is_refused(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "recovery.cli", "serve", str(tmp_path / "s"), "--create", "--log", "xml"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert not (tmp_path / "s").exists()
