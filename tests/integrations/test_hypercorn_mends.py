"""Without the door, and on trio, one client cannot harm the others either."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.integrations.served import Served, living
from tests.integrations.serving import PATIENCE, Http1, Http2

POLICY = """
[concurrency]
algorithm = "fixed"
initial = 1

[queue]
max_wait = 20.0
"""

APP = living(
    """
import anyio

async def stream(send):
    while True:
        await send({"type": "http.response.body", "body": b"part", "more_body": True})
        await anyio.sleep(0.002)

async def app(scope, receive, send):
    if scope["type"] == "websocket":
        await receive()
        await anyio.sleep(0.2)                          # the client does not wait for this
        await send({"type": "websocket.accept"})
        message = await receive()
        await send({"type": "websocket.send", "text": message.get("text", "nothing")})
        await send({"type": "websocket.close"})
        return
    if scope["path"] == "/slow":
        await anyio.sleep(0.3)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    if scope["path"] == "/broken":
        await send({"type": "http.response.body", "body": b"0" * 10, "more_body": True})
        return
    if scope["path"] == "/stream":
        async with anyio.create_task_group() as group:
            group.start_soon(stream, send)
            while (await receive())["type"] != "http.disconnect":
                pass
            group.cancel_scope.cancel()
        return
    await send({"type": "http.response.body", "body": b"0"})
"""
)


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


@pytest.mark.parametrize("backend", ["trio", "uvloop"])
def test_hostile_connections_leave_nothing_behind_and_end_nobody(
    tmp_path: Path, backend: str
) -> None:
    (tmp_path / "policy.toml").write_text(POLICY)
    options = ("--policy", "policy.toml", "--backend", backend, "--door", "off")
    with Served(tmp_path, *options, app=APP) as served:
        port = int(served.url.rpartition(":")[2])
        assert served.get("/").status_code == 200
        before = descriptors(served.process.pid)

        with Http1(port) as client:
            client.send(client.upgrade("/socket") + b"\x81\x85\0\0\0\0early")
            seen = b""
            while b"early" not in seen:
                data = client.socket.recv(1000)
                assert data, seen
                seen += data
        for _ in range(5):
            with Http1(port) as client:
                client.send(client.upgrade("/socket") + b"\x81\xff\xff" * 10_000)
        with Http1(port) as client:
            client.send(b"CONNECT a:80 HTTP/1.1\r\nhost: a\r\n\r\n")
            assert client.read()[0] == 501
        for _ in range(5):
            with Http2(port) as leaving:
                leaving.request("GET", "/slow")
        for path in ("/broken", "/stream"):
            for _ in range(5):
                with Http1(port) as client:
                    client.send(client.head("GET", path, None) * 3)
                    assert client.socket.recv(1000)
        assert served.get("/").status_code == 200

        end = time.monotonic() + PATIENCE
        while descriptors(served.process.pid) > before:
            assert time.monotonic() < end
            time.sleep(0.05)
        assert served.get("/").status_code == 200
        assert served.metric("loadgate_in_flight") == 0
