"""The same requests on six servers: what differs is written down in docs/servers.md."""

from __future__ import annotations

import json
import random
import socket
import threading
from typing import Any

import anyio
import pytest

from tests.integrations.asgi_client import controller
from tests.integrations.every_server import every, others, stage
from tests.integrations.serving import Http1, Http2, Service, told, until


class Streams(Service):
    """`/stream` sends chunks until the client leaves, `/big` one large body."""

    def __init__(self) -> None:
        super().__init__()
        self.left = 0
        self.sent = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.accept"})
            while (await receive())["type"] != "websocket.disconnect":
                pass
            return
        if scope.get("path") == "/stream":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            async with anyio.create_task_group() as group:
                group.start_soon(self._listen, receive, group.cancel_scope)
                while True:
                    body = {"type": "http.response.body", "body": b"x" * 100, "more_body": True}
                    await send(body)
                    self.sent += 1
                    await anyio.sleep(0.002)
        elif scope.get("path") == "/big":
            headers = [(b"content-length", b"16000000")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": b"x" * 16_000_000})
            self.left += 1
        else:
            await super().__call__(scope, receive, send)

    async def _listen(self, receive: Any, scope: anyio.CancelScope) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.left += 1
        scope.cancel()


@others
def test_refused_requests_with_bodies_get_their_answer(kind: str) -> None:
    with stage(kind, controller(max_queue=0)) as here, here.busy():
        for size in (0, 5, 3000, 500_000):
            with Http1(here.port) as client:
                for _ in range(2):
                    status, headers, body = client.post("/echo", b"x" * size)
                    assert status == 503
                    assert headers["content-type"] == "application/problem+json"
                    assert json.loads(body)["reason"] == "queue_full"
                    if "connection" in headers:
                        break
        with Http1(here.port) as client:
            client.send(client.head("POST", "/echo", 1000, "expect: 100-continue"))
            assert client.read()[0] == 503
        with Http1(here.port) as client:
            assert client.get("/healthz")[0] == 200


@others
def test_a_connection_is_kept_after_refusals(kind: str) -> None:
    with stage(kind, controller(max_queue=0)) as here, Http1(here.port) as client:
        with here.busy():
            for _ in range(3):
                assert client.get("/echo")[0] == 503
                client.send(client.head("HEAD", "/echo", None))
                assert client.read(body=False)[0] == 503
        assert client.post("/echo", b"abc")[2] == told(b"abc")


@every
def test_pipelined_requests_are_admitted_one_after_the_other(kind: str) -> None:
    with stage(kind, controller(1, max_queue=0)) as here, Http1(here.port) as client:
        here.service.may_answer.set()
        client.send(b"".join(client.head("GET", f"/{n}", None) for n in range(5)))
        assert [client.read()[0] for _ in range(5)] == [200] * 5
        assert here.service.calls == [f"/{n}" for n in range(5)]


@every
@pytest.mark.parametrize("first", [50_000, 200_000])
def test_queued_uploads_arrive_byte_for_byte(kind: str, first: int) -> None:
    dice = random.Random(7)
    bodies = [dice.randbytes(size) for size in (0, 1, 70_000, 1_500_000)]
    with stage(kind, controller()) as here:
        clients = [Http1(here.port) for _ in bodies]
        with here.busy():
            for client, body in zip(clients, bodies, strict=True):
                client.send(client.head("POST", "/echo", len(body)) + body[:first])
            until(lambda: here.waiting == len(bodies))
            for client, body in zip(clients, bodies, strict=True):
                threading.Thread(target=client.send, args=(body[first:],)).start()
        for client, body in zip(clients, bodies, strict=True):
            with client:
                assert client.read()[2] == told(body)


@others
def test_clients_that_leave_while_they_wait_are_removed(kind: str) -> None:
    with stage(kind, controller()) as here, here.busy():
        clients = [Http1(here.port) for _ in range(3)]
        for n, client in enumerate(clients):
            client.send(client.head("POST", "/echo", 100) + b"x" * (100 if n % 2 else 10))
        until(lambda: here.waiting == 3)
        clients[0].socket.close()
        until(lambda: here.waiting == 2)
        clients[1].socket.shutdown(socket.SHUT_WR)
        until(lambda: here.waiting == 1)
        clients[1].socket.close()
        clients[2].socket.close()
        until(lambda: here.waiting == 0)
        assert here.service.calls == ["/hold"]


@every
def test_a_client_that_leaves_while_it_is_served_gives_its_place_back_in_the_end(
    kind: str,
) -> None:
    with stage(kind, controller()) as here:
        client = Http1(here.port)
        client.send(client.head("GET", "/hold", None))
        until(lambda: here.in_flight == 1)
        client.socket.close()
        here.service.may_answer.set()
        until(lambda: here.in_flight == 0)
        with Http1(here.port) as another:
            assert another.get("/echo")[0] == 200


@every
def test_a_stream_ends_when_its_client_leaves(kind: str) -> None:
    service = Streams()
    with stage(kind, controller(), service) as here:
        client = Http1(here.port)
        client.send(client.head("GET", "/stream", None))
        until(lambda: service.sent > 3)
        assert here.in_flight == 1
        client.socket.close()
        until(lambda: service.left == 1 and here.in_flight == 0)


@every
def test_a_slow_reader_holds_no_place(kind: str) -> None:
    service = Streams()
    with stage(kind, controller(), service) as here, Http1(here.port) as slow:
        slow.send(slow.head("GET", "/big", None))
        until(lambda: sum(here.gate.snapshot().finished.values()) == 1)
        with Http1(here.port) as another:
            service.may_answer.set()
            assert another.get("/echo")[0] == 200
        slow.socket.close()
        until(lambda: service.left == 1)


@every
def test_shutdown_lets_those_inside_finish(kind: str) -> None:
    with stage(kind, controller()) as here:
        running, queued = Http1(here.port), Http1(here.port)
        running.send(running.head("GET", "/hold", None))
        until(lambda: here.in_flight == 1)
        queued.send(queued.head("POST", "/echo", 5) + b"hello")
        until(lambda: here.waiting == 1)
        here.server.stop()
        here.service.may_answer.set()
        assert running.read()[0] == 200
        assert queued.read()[2] == told(b"hello")
        running.socket.close()
        queued.socket.close()
        here.server.join()


@every
def test_a_websocket_handshake_is_refused_with_status_and_time(kind: str) -> None:
    with stage(kind, controller(max_queue=0)) as here, here.busy(), Http1(here.port) as client:
        client.send(client.upgrade("/socket"))
        status, headers, body = client.read()
        assert status == 503
        assert int(headers["retry-after"]) >= 1
        assert json.loads(body)["reason"] == "queue_full"


@others
def test_a_byte_after_the_upgrade_request_harms_nobody(kind: str) -> None:
    # Hypercorn 0.18 is broken by it, whatever stands in front of the application.
    with stage(kind, controller(), Streams()) as here:
        with Http1(here.port) as client:
            client.send(client.upgrade("/socket") + b"\x81")
            until(lambda: sum(here.gate.snapshot().finished.values()) == 1)
        assert here.in_flight == 0
        with Http1(here.port) as another:
            here.service.may_answer.set()
            assert another.get("/echo")[0] == 200


def test_refused_uploads_over_http2_harm_neither_granian_nor_neighbours() -> None:
    gate = controller(max_queue=0)
    with stage("granian", gate) as here, here.busy(), Http2(here.port) as client:
        for size in (200, 40_000, 500_000):
            streams = [client.request("POST", "/echo", b"x" * size) for _ in range(6)]
            healthy = client.request("GET", "/healthz")
            client.finish(healthy, *streams)
            assert client.status[healthy] == 200
            assert {client.status[stream] for stream in streams} == {503}
