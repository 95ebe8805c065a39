"""The door in front of a real Uvicorn: httptools and h11, asyncio and uvloop."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest

from loadgate import AdmissionController, Concurrency, Policy, Signals
from loadgate.integrations.asgi import AdmissionMiddleware
from loadgate.integrations.door import Door
from loadgate.integrations.uvicorn import door_protocol
from tests.integrations.asgi_client import controller
from tests.integrations.other_servers import Uvicorn
from tests.integrations.scripted_door import Script
from tests.integrations.serving import Http1, Service, told, until

KINDS: list[Any] = [("httptools", "uvloop"), ("httptools", "asyncio"), ("h11", "asyncio")]
kinds = pytest.mark.parametrize("kind", KINDS, ids="-".join)


class Place:
    """A service behind the layer, behind Uvicorn, behind a door."""

    def __init__(self, server: Uvicorn, door: Door, rule: Script, service: Service) -> None:
        self.server = server
        self.port = server.port
        self.door = door
        self.rule = rule
        self.service = service


@contextmanager
def place(kind: tuple[Any, Any], app: Any = None) -> Generator[Place]:
    gate = AdmissionController(
        Policy(concurrency=Concurrency("fixed", initial=100), signals=Signals(max_lag=60.0))
    )
    service = Service()
    service.may_answer.set()
    door = Door(gate)
    rule: Script = Script()
    door.rule = rule
    layer = AdmissionMiddleware(app or service, gate)
    with Uvicorn(layer, http=door_protocol(door, kind[0]), loop=kind[1]) as server:
        # The probe for whether it listens has sent nothing.
        yield Place(server, door, rule, service)
    assert rule.in_transit == 0
    assert gate.admission.in_flight == 0


@kinds
def test_an_open_door_is_not_noticed(kind: tuple[Any, Any]) -> None:
    with place(kind) as here, Http1(here.port) as client:
        for body in (b"", b"abc", b"x" * 300_000):
            assert client.post("/echo", body)[2] == told(body)
        client.send(client.head("GET", "/a", None) + client.head("GET", "/b", None))
        assert [client.read()[0], client.read()[0]] == [200, 200]
        assert here.service.calls[-2:] == ["/a", "/b"]


@kinds
def test_new_connections_are_closed_and_kept_ones_kept(kind: tuple[Any, Any]) -> None:
    with place(kind) as here, Http1(here.port) as kept:
        assert kept.get("/first")[0] == 200
        here.rule.shut()
        for _ in range(3):
            assert kept.get("/second")[0] == 503
            assert kept.post("/second", b"x" * 3000)[0] == 503
        with Http1(here.port) as fresh:
            assert fresh.get("/second")[1]["connection"] == "close"
            with pytest.raises(EOFError):
                fresh.read()
        with Http1(here.port) as probe:
            assert probe.get("/healthz")[0] == 200
        here.rule.shut(False)
        assert kept.post("/third", b"abc")[2] == told(b"abc")
        assert here.service.calls == ["/first", "/healthz", "/third"]
        assert here.door.counts().answered == 7


@kinds
def test_who_is_late_on_reaching_the_application_is_answered_in_its_place(
    kind: tuple[Any, Any],
) -> None:
    with place(kind) as here, Http1(here.port) as client:
        here.rule.late = True
        assert client.get("/first")[0] == 503
        assert client.post("/second", b"x" * 3000)[0] == 503
        here.rule.late = False
        assert client.post("/third", b"abc")[2] == told(b"abc")
        assert here.service.calls == ["/third"]
        assert here.door.counts().late == 2


@kinds
def test_the_rest_of_an_upload_that_was_answered_early_is_no_request(kind: tuple[Any, Any]) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await Service()(scope, receive, send)
        if scope["type"] == "http":
            headers = [(b"content-length", b"2")]
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            await send({"type": "http.response.body", "body": b"no"})

    with place(kind, app) as here, Http1(here.port) as client:
        evil = b"GET /smuggled HTTP/1.1\r\nhost: a\r\n\r\n"
        client.send(client.head("POST", "/private", len(evil)))
        assert client.read()[0] == 401
        here.rule.shut()
        client.send(evil)
        client.send(client.head("GET", "/next", None))
        status, headers, _ = client.read()
        # One answer, to the request, and none to the body.
        assert status in (401, 503)
        client.socket.settimeout(0.1)
        with pytest.raises((TimeoutError, EOFError)):
            client.read()
        assert headers


@kinds
def test_shutdown_closes_those_at_the_door_and_lets_the_others_finish(
    kind: tuple[Any, Any],
) -> None:
    with place(kind) as here:
        silent, running = Http1(here.port), Http1(here.port)
        here.service.may_answer.clear()
        running.send(running.head("GET", "/hold", None))
        until(lambda: "/hold" in here.service.calls)
        here.server.stop()
        with pytest.raises((EOFError, ConnectionError)):
            silent.read()
        here.service.may_answer.set()
        assert running.read()[0] == 200
        for client in (silent, running):
            client.socket.close()


def test_an_unknown_implementation_is_an_error() -> None:
    with pytest.raises(ValueError, match="implementation"):
        door_protocol(Door(controller()), "zttp")  # type: ignore[arg-type]  # the test
