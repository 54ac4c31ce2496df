"""`checkback up --serve`: what is refused before anything starts, and the server as its child."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import pytest

import broker
from broker.remoting.codes import ResponseCode as Answer
from recovery.airflow.local.preflight import NotHere
from recovery.airflow.local.served import ServedStore
from recovery.airflow.local.standalone import Standalone
from tests.cli.command import process
from tests.server.processes import await_true
from tests.server.wire_client import WireClient


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["store", "--serve", "192.0.2.7:10911"], "--serve listens on this machine alone, not on 192.0.2.7:10911"),
        (["store", "--serve", "0.0.0.0:10911"], "--serve listens on this machine alone"),
        (["store", "--serve", "nonsense"], "an IPv4 address and a port, such as"),
        (["--stores", "stores.toml", "--serve", "127.0.0.1:0"], "--serve is for one store"),
        (["store", "--stores", "stores.toml"], "leave out STORE, --demo, --ledger and --resolver"),
        (["--demo", "--stores", "stores.toml"], "leave out STORE, --demo"),
    ],
)
def test_what_cannot_be_served_is_refused_before_anything_starts(
    tmp_path: Path, words: list[str], sentence: str
) -> None:
    done = process("up", *words, "--home", str(tmp_path / "home"))
    assert done.code != 0
    assert sentence in done.err
    assert "Traceback" not in done.err
    assert os.listdir(tmp_path) == []


def test_a_server_runs_beside_it_and_ends_well(tmp_path: Path) -> None:
    broker.open(tmp_path / "store").close()
    airflow = Standalone(str(tmp_path / "airflow"), 1, "")  # it is not started: it starts our child, and stops the rest
    server = ServedStore(airflow, str(tmp_path / "store"), "127.0.0.1:0")
    try:
        server.start()
        with WireClient(server.address) as client:
            assert client.publish("orders", b"x").code == Answer.SUCCESS
        assert not server.has_ended()
        (child,) = airflow.left()
        server.stop()
        assert airflow.left() == []
        assert not Path(f"/proc/{child}").exists()
    finally:
        server.stop()
        airflow.stop()
    assert not (tmp_path / "store" / "abort").exists(), "it ended well"
    with broker.open(tmp_path / "store", read_only=True) as store:
        assert store.queue_range("orders", 0)[1] == 1


def test_one_that_is_gone_is_noticed(tmp_path: Path) -> None:
    broker.open(tmp_path / "store").close()
    airflow = Standalone(str(tmp_path / "airflow"), 1, "")
    server = ServedStore(airflow, str(tmp_path / "store"), "127.0.0.1:0")
    server.start()
    try:
        (child,) = airflow.left()
        os.kill(child, signal.SIGKILL)
        await_true(server.has_ended, 10)
    finally:
        server.stop()
        airflow.stop()


def test_a_port_that_is_taken_gets_a_sentence(tmp_path: Path) -> None:
    broker.open(tmp_path / "store").close()
    airflow = Standalone(str(tmp_path / "airflow"), 1, "")
    try:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            server = ServedStore(airflow, str(tmp_path / "store"), f"127.0.0.1:{taken.getsockname()[1]}")
            with pytest.raises(NotHere, match=r"the server does not start: .*cannot listen on 127\.0\.0\.1"):
                server.start()
    finally:
        airflow.stop()
