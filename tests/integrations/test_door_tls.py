"""The door behind TLS: the handshake passes, the refusal is answered inside or comes before it."""

from __future__ import annotations

import socket
import ssl
import subprocess
from collections.abc import Generator
from pathlib import Path
from typing import Any

import h2.config
import h2.connection
import h2.events
import pytest

from tests.integrations.serving import PATIENCE, Http1, until
from tests.integrations.test_door import Place, loops


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for this machine that signs itself."""
    folder = tmp_path_factory.mktemp("tls")
    words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=test"
    where = f"-keyout {folder}/key.pem -out {folder}/cert.pem"
    done = subprocess.run(
        ["openssl", *f"{words} {where} -addext subjectAltName=IP:127.0.0.1".split()],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder


class Secure(Http1):
    """One connection, byte by byte, inside TLS."""

    def __init__(self, port: int, folder: Path, *protocols: str) -> None:
        context = ssl.create_default_context(cafile=str(folder / "cert.pem"))
        if protocols:
            context.set_alpn_protocols(list(protocols))
        super().__init__(port)
        self.socket = context.wrap_socket(self.socket, server_hostname="127.0.0.1")


@pytest.fixture
def place(certificate: Path, request: Any) -> Generator[Any]:
    made: list[Place] = []

    def start(uvloop: bool, **settings: Any) -> Place:
        here = Place(uvloop, 60.0, None, **settings)
        here.config.certfile = str(certificate / "cert.pem")
        here.config.keyfile = str(certificate / "key.pem")
        here.thread.start()
        here.wait_until_ready()
        made.append(here)
        return here

    yield start
    for here in made:
        here.stop()
        here.thread.join(PATIENCE)
        assert not here.thread.is_alive(), "the server does not stop"
        assert here.error is None
        assert here.rule.in_transit == 0
        assert here.gate.admission.in_flight == 0


@loops
def test_an_open_door_is_not_noticed(uvloop: bool, place: Any, certificate: Path) -> None:
    here = place(uvloop)
    with Secure(here.port, certificate) as client:
        assert client.get("/a")[0] == 200
        assert client.post("/echo", b"x" * 100_000)[0] == 200


@loops
def test_a_refusal_is_answered_inside_and_exempt_paths_get_in(
    uvloop: bool, place: Any, certificate: Path
) -> None:
    here = place(uvloop)
    with Secure(here.port, certificate) as kept:
        assert kept.get("/a")[0] == 200
        here.rule.shut()
        assert kept.get("/b")[0] == 503
        assert kept.get("/healthz")[0] == 200
        with Secure(here.port, certificate) as client:
            status, headers, _ = client.get("/c")
            assert status == 503
            assert headers["connection"] == "close"
            with pytest.raises((EOFError, OSError)):
                client.get("/d")
    assert here.service.calls == ["/a", "/healthz"]
    assert here.door.counts().answered == 2


@loops
def test_a_door_that_drops_closes_before_the_handshake(
    uvloop: bool, place: Any, certificate: Path
) -> None:
    here = place(uvloop, mode="drop")
    with Secure(here.port, certificate) as kept:
        assert kept.get("/a")[0] == 200
        here.rule.shut()
        for _ in range(3):
            with pytest.raises(OSError):  # noqa: PT011  # SSL's, or a reset
                Secure(here.port, certificate)
        assert here.door.counts().dropped == 3
        assert here.gate.snapshot().refused["loop_lag"] == 3
        here.rule.shut(False)
        assert kept.get("/b")[0] == 200


@loops
def test_http2_is_told_to_go_away(uvloop: bool, place: Any, certificate: Path) -> None:
    here = place(uvloop)
    here.rule.shut()
    with Secure(here.port, certificate, "h2") as client:
        assert isinstance(client.socket, ssl.SSLSocket)
        assert client.socket.selected_alpn_protocol() == "h2"
        connection = h2.connection.H2Connection(h2.config.H2Configuration())
        connection.initiate_connection()
        connection.send_headers(
            1,
            [(":method", "GET"), (":path", "/"), (":scheme", "https"), (":authority", "a")],
            end_stream=True,
        )
        client.send(connection.data_to_send())
        events: list[Any] = []
        while data := client.socket.recv(65536):
            events += connection.receive_data(data)
    assert any(isinstance(event, h2.events.ConnectionTerminated) for event in events)
    assert here.door.counts().dropped == 1


@loops
@pytest.mark.parametrize("mode", ["answer", "drop"])
def test_whoever_does_not_speak_tls_leaves_nothing_behind(
    uvloop: bool, mode: str, place: Any, certificate: Path
) -> None:
    here = place(uvloop, mode=mode)
    for junk in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x00"):
        with socket.create_connection(("127.0.0.1", here.port), PATIENCE) as client:
            client.sendall(junk)
    with Secure(here.port, certificate) as client:
        assert client.get("/a")[0] == 200
    until(lambda: here.rule.in_transit == 0)
