"""What was learned about Hypercorn the hard way, on all three of its event loops."""

from __future__ import annotations

import json
import random
import socket
from typing import Any

import pytest

from loadgate.integrations.asgi import AdmissionMiddleware
from tests.integrations.asgi_client import controller, idle
from tests.integrations.every_server import SERVERS, hypercorn, stage
from tests.integrations.serving import Http1, Http2, Service, told, until

BODIES = [200, 40_000, 500_000]


@hypercorn
def test_refused_uploads_over_http2_harm_neither_server_nor_neighbours(kind: str) -> None:
    with stage(kind, controller(max_queue=0)) as here, here.busy(), Http2(here.port) as client:
        for size in BODIES:
            streams = [client.request("POST", "/echo", b"x" * size) for _ in range(12)]
            healthy = client.request("GET", "/healthz")
            client.finish(healthy, *streams)
            assert client.status[healthy] == 200
            for stream in streams:
                assert client.status[stream] == 503
                assert json.loads(client.bodies[stream])["reason"] == "queue_full"
        assert not client.reset
        with Http2(here.port) as another:
            stream = another.request("GET", "/echo")
            another.finish(stream)
            assert another.status[stream] == 503


@hypercorn
def test_refused_requests_without_a_body_over_http2(kind: str) -> None:
    with stage(kind, controller(max_queue=0)) as here, here.busy(), Http2(here.port) as client:
        streams = [client.request("GET", "/echo") for _ in range(50)]
        client.finish(*streams)
        assert {client.status[stream] for stream in streams} == {503}


@hypercorn
def test_a_connection_is_kept_after_refusals(kind: str) -> None:
    with stage(kind, controller(max_queue=0)) as here, Http1(here.port) as client:
        with here.busy():
            for _ in range(5):
                assert client.get("/echo")[0] == 503
                client.send(client.head("HEAD", "/echo", None))
                assert client.read(body=False)[0] == 503
                status, headers, body = client.post("/echo", b"x" * 3000)
                assert status == 503
                assert headers["content-type"] == "application/problem+json"
                assert "connection" not in headers
                assert json.loads(body)["status"] == 503
        assert client.post("/echo", b"abc")[2] == told(b"abc")


@hypercorn
def test_a_huge_refused_upload_gets_its_answer_and_harms_nobody(kind: str) -> None:
    settings: Any = {"max_drain": 100_000, "max_drain_time": 0.2}
    with stage(kind, controller(max_queue=0), **settings) as here, here.busy():
        for _ in range(3):
            with Http1(here.port) as client:
                client.send(client.head("POST", "/echo", 50_000_000) + b"x" * 300_000)
                assert client.read()[0] == 503
        with Http1(here.port) as client:
            assert client.get("/healthz")[0] == 200


@hypercorn
def test_a_refused_upload_that_stalls_is_not_waited_for(kind: str) -> None:
    settings: Any = {"max_drain_time": 0.05}
    gate = controller(max_queue=0)
    with stage(kind, gate, **settings) as here, here.busy(), Http1(here.port) as client:
        client.send(client.head("POST", "/echo", 1000) + b"x")
        assert client.read()[0] == 503
        with pytest.raises(EOFError):
            client.read()


@hypercorn
def test_a_client_that_asks_before_it_uploads(kind: str) -> None:
    with stage(kind, controller(max_queue=0)) as here, here.busy(), Http1(here.port) as client:
        client.send(client.head("POST", "/echo", 1000, "expect: 100-continue"))
        assert client.read()[0] == 503


@hypercorn
def test_queued_uploads_over_http2_arrive_byte_for_byte(kind: str) -> None:
    dice = random.Random(8)
    bodies = [dice.randbytes(size) for size in (1, 3000, 60_000)]
    with stage(kind, controller()) as here, Http2(here.port) as client:
        with here.busy():
            streams = [client.request("POST", "/echo", body) for body in bodies]
            until(lambda: here.waiting == len(bodies))
            healthy = client.request("GET", "/healthz")
            client.finish(healthy)
        client.finish(*streams)
        assert [client.bodies[stream] for stream in streams] == [told(body) for body in bodies]


@hypercorn
def test_more_queued_uploads_than_places_on_one_connection_progress(kind: str) -> None:
    with stage(kind, controller(2)) as here, Http2(here.port) as client:
        here.service.may_answer.set()
        streams = [client.request("POST", "/hold", b"x" * 50_000) for _ in range(40)]
        client.finish(*streams)
        assert {client.bodies[stream] for stream in streams} == {told(b"x" * 50_000)}


@hypercorn
def test_a_queued_upload_that_is_too_long_for_http2_is_refused_and_drained(kind: str) -> None:
    settings: Any = {"max_buffer": 50_000}
    with stage(kind, controller(), **settings) as here, here.busy(), Http2(here.port) as client:
        stream = client.request("POST", "/echo", b"x" * 400_000)
        client.finish(stream)
        assert client.status[stream] == 503


@hypercorn
def test_queued_clients_that_leave_are_removed(kind: str) -> None:
    with stage(kind, controller()) as here, here.busy():
        clients = [Http1(here.port) for _ in range(4)]
        for n, client in enumerate(clients):
            client.send(client.head("POST", "/echo", 100) + b"x" * (100 if n % 2 else 10))
        streams = Http2(here.port)
        stream = streams.request("GET", "/echo")
        streams.request("POST", "/echo", b"x" * 30_000)
        until(lambda: here.waiting == 6)
        clients[0].socket.close()
        until(lambda: here.waiting == 5)
        clients[1].socket.shutdown(socket.SHUT_WR)
        until(lambda: here.waiting == 4)
        streams.leave(stream)
        until(lambda: here.waiting == 3)
        streams.socket.close()
        until(lambda: here.waiting == 2)
        for client in clients:
            client.socket.close()
        until(lambda: here.waiting == 0)
        assert here.service.calls == ["/hold"]


@hypercorn
def test_a_wait_in_vain_with_much_unread_does_not_lock_the_server(kind: str) -> None:
    gate = controller(max_wait=0.1)
    settings: Any = {"max_buffer": 1000, "max_drain": 100_000, "max_drain_time": 0.2}
    with stage(kind, gate, **settings) as here, here.busy():
        clients = [Http1(here.port) for _ in range(3)]
        for client in clients:
            client.send(client.head("POST", "/echo", 50_000_000) + b"x" * 300_000)
        for client in clients:
            with client:
                status, _, body = client.read()
                assert (status, json.loads(body)["reason"]) == (503, "wait_timeout")


@hypercorn
def test_an_application_that_answers_early_is_kept_from_breaking_the_connection(
    kind: str,
) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope.get("path") == "/broken":
            raise ValueError("before it read anything")
        if scope.get("path") == "/private":
            await send({"type": "http.response.start", "status": 401, "headers": []})
            await send({"type": "http.response.body", "body": b"no"})
            return
        await Service()(scope, receive, send)

    gate = controller(50)
    layer = AdmissionMiddleware(app, gate, finish_uploads=True)
    with SERVERS[kind](layer) as server, Http2(server.port) as client:
        for size in (0, *BODIES):
            early = [client.request("POST", "/private", b"x" * size) for _ in range(6)]
            broken = client.request("POST", "/broken", b"x" * size)
            patient = client.request("POST", "/echo", b"x" * size)
            client.finish(*early, broken, patient)
            assert {client.status[stream] for stream in early} == {401}
            assert {client.bodies[stream] for stream in early} == {b"no"}
            assert client.status[broken] == 500
            assert client.bodies[patient] == told(b"x" * size)
        assert len(server.errors) == 4
        assert all("before it read anything" in error for error in server.errors)
        server.errors.clear()
    assert idle(gate)
