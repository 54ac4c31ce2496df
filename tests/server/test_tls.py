"""TLS on the port that plain clients use, too."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

import pytest

import broker
from broker.remoting.codes import RequestCode as Code
from broker.remoting.codes import ResponseCode as Answer
from broker.server.connection import Connection
from broker.server.tls import TlsLayer
from tests.server.conftest import Connect, Serve


def _certificate(directory: Path) -> tuple[Path, Path]:
    """A certificate and its key."""
    certificate, key = directory / "cert.pem", directory / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=shop", "-days", "1"]
    subprocess.run([*command, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    return certificate, key


@pytest.mark.parametrize("loop", ["asyncio", "auto"])
def test_a_handshake_that_fails_is_answered_with_an_alert(
    serve: Serve, connect: Connect, tmp_path: Path, loop: str
) -> None:
    """A client with an old version of TLS read that the connection ended: nothing said why."""
    certificate, key = _certificate(tmp_path)
    client = connect(serve(certificate=str(certificate), private_key=str(key), loop=loop))
    client.socket.sendall(b"\x16\x03\x01\0\x05hello")
    assert client.socket.recv(7)[:6] == b"\x15\x03\x03\0\x02\x02"  # an alert of two bytes, which is fatal
    assert client.is_closed()


def test_tls_and_plain_clients_share_a_port(serve: Serve, connect: Connect, tmp_path: Path) -> None:
    certificate, key = _certificate(tmp_path)
    context = ssl.create_default_context(cafile=str(certificate))
    context.check_hostname = False
    server = serve(certificate=str(certificate), private_key=str(key))
    secret, plain = connect(server, context=context), connect(server)
    big = b"x" * 3_000_000
    assert secret.publish("orders", big).code == Answer.SUCCESS
    assert plain.pulled("g", "orders")[1][0].body == big
    assert secret.pulled("g", "orders")[1][0].body == big
    strict = serve(certificate=str(certificate), private_key=str(key), tls_only=True)
    refused = connect(strict)
    refused.send(Code.GET_BROKER_CLUSTER_INFO)
    assert refused.is_closed()


@pytest.mark.parametrize("loop", ["asyncio", "auto"])
def test_a_client_that_ends_tls_is_not_kept_waiting(serve: Serve, connect: Connect, tmp_path: Path, loop: str) -> None:
    """It waited for the server's word for two minutes, and what it had sent before is worked on all the same."""
    certificate, key = _certificate(tmp_path)
    context = ssl.create_default_context(cafile=str(certificate))
    context.check_hostname = False
    server = serve(certificate=str(certificate), private_key=str(key), loop=loop)
    client, other = connect(server, context=context), connect(server, context=context)
    assert isinstance(client.socket, ssl.SSLSocket)
    assert client.publish("orders", b"lamp").code == Answer.SUCCESS
    client.socket.settimeout(10)
    with client.socket.unwrap() as plain:
        assert plain.recv(1) == b""
    assert other.publish("orders", b"lamp").code == Answer.SUCCESS


def test_an_answer_behind_the_end_of_tls_goes_nowhere(
    serve: Serve, connect: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To a client that ends TLS and reads nothing: its connection stays for a while, and the log had a traceback."""
    certificate, key = _certificate(tmp_path)
    context = ssl.create_default_context(cafile=str(certificate))
    context.check_hostname = False
    end_tls, late = Connection._end_tls, list[bool]()

    def ended(connection: Connection, tls: TlsLayer) -> None:
        end_tls(connection, tls)
        connection.send(b"late")
        connection._flush()
        late.append(connection.is_closed)

    monkeypatch.setattr(Connection, "_end_tls", ended)
    client = connect(serve(certificate=str(certificate), private_key=str(key)), context=context)
    assert isinstance(client.socket, ssl.SSLSocket)
    client.socket.settimeout(10)
    with client.socket.unwrap() as plain:
        assert plain.recv(1) == b""
    assert late == [False]


def test_a_key_with_a_pass_phrase_is_refused_without_a_question(store: broker.LiveStore, tmp_path: Path) -> None:
    """OpenSSL asked for it on the terminal, and the server waited."""
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-keyout", key, "-out", certificate, "-days", "2"]
    subprocess.run([*make, "-subj", "/CN=127.0.0.1", "-passout", "pass:abcd"], check=True, capture_output=True)
    with pytest.raises(broker.BrokerError, match="is encrypted"):
        broker.serve(store, "127.0.0.1:0", certificate=str(certificate), private_key=str(key))
