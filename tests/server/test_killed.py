"""A server that is killed: nothing that was answered is lost, transactions go on where they stood."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import broker
from broker.remoting.codes import RequestCode as Code
from broker.remoting.codes import ResponseCode as Answer
from tests.server.conftest import LAYOUT
from tests.server.wire_client import WireClient, sending

ROUNDS, SENDS = 3, 60


@contextmanager
def served(path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server in a process of its own, in the sync mode `group`, and its address."""
    command = [sys.executable, "-m", "recovery.cli", "serve", str(path), "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            found = re.search(r"on (\S+): name server", line)
            assert found, line
            yield process, found[1]
        finally:
            process.kill()


def test_what_was_answered_survives_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "store"
    broker.open(path, layout=LAYOUT).close()
    answered: set[str] = set()
    committed: set[str] = set()
    for number in range(ROUNDS):
        with served(path) as (process, address), WireClient(address) as client:
            waiting = {}
            for count in range(SENDS):
                key = f"{number}-{count}"
                half = {"TRAN_MSG": "true", "PGROUP": "shop"} if count % 3 == 0 else {}
                fields = sending("orders", UNIQ_KEY=key, **half)
                waiting[client.send(Code.SEND_MESSAGE_V2, fields, key.encode())] = (key, bool(half))
            with contextlib.suppress(OSError):
                for place, (opaque, (key, is_half)) in enumerate(waiting.items()):
                    sent = client.answer(opaque)
                    assert sent.code == Answer.SUCCESS, sent
                    if not is_half:
                        answered.add(key)
                        continue
                    end = {"producerGroup": "shop", "tranStateTableOffset": sent.ext["queueOffset"],
                           "commitLogOffset": int(sent.ext["msgId"][16:], 16), "commitOrRollback": 8}  # fmt: skip
                    if client.request(Code.END_TRANSACTION, end).code == Answer.SUCCESS:
                        committed.add(key)
                    if place > SENDS // 2:
                        process.send_signal(signal.SIGKILL)
    with broker.open(path) as store:
        store.sync_now()  # readers see what is durable; nobody waited for the last ends
        delivered = [
            str(message.unique_key)
            for queue_offset in range(store.queue_end("orders", 0))
            if (message := store.message("orders", 0, queue_offset))
        ]
        in_doubt = {str(half.unique_key) for half in store.transactions.in_doubt()}
    assert answered <= set(delivered)
    assert len(delivered) == len(set(delivered))
    assert committed <= set(delivered)  # the machine did not crash: the log has every end that was answered
    assert not in_doubt & committed
    assert len(answered) > ROUNDS * SENDS // 4


def test_sigterm_ends_it_in_order(tmp_path: Path) -> None:
    path = tmp_path / "store"
    broker.open(path, layout=LAYOUT).close()
    with served(path) as (process, address), WireClient(address) as client:
        assert client.publish("orders", b"x").code == Answer.SUCCESS
        waits = client.pull("g", "orders", 1, hold_ms=30_000)
        client.request(Code.GET_BROKER_CLUSTER_INFO)
        time.sleep(0.5)  # until the pull waits
        process.send_signal(signal.SIGTERM)
        assert client.answer(waits).remark == "OFFSET_OVERFLOW_ONE"
        assert process.wait(20) == 0
    with broker.open(path, read_only=True) as store:
        assert not store.has_abort  # a clean shutdown


def test_the_command_line_refuses_in_a_sentence(tmp_path: Path) -> None:
    for arguments, sentence in (
        ([str(tmp_path / "missing")], "there is no such"),
        ([str(tmp_path / "new"), "--create", "--listen", "192.0.2.1:1"], "--acl FILE"),
    ):
        command = [sys.executable, "-m", "recovery.cli", "serve", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 2, done.stderr
        assert "Traceback" not in done.stderr
        assert sentence in " ".join(done.stderr.split()), done.stderr
        assert not Path(arguments[0]).exists()
