"""A place is not held for a client who does not send."""

from __future__ import annotations

import asyncio
import socket
from contextlib import ExitStack
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from loadgate import AdmissionController
from loadgate.integrations.asgi import AdmissionMiddleware
from loadgate.integrations.body_wait import MIN_RATE, BodyWait
from tests.integrations.asgi_client import (
    DISCONNECT,
    Exchange,
    Gate,
    Message,
    call,
    controller,
    idle,
    policy,
    scope,
    upload,
)
from tests.integrations.serving import PATIENCE, WORKERS, Http1, Server, Service, until

# Short: these tests wait for it.
SHORT = 0.02


class Reader:
    """An application that reads its whole upload, and does as it was told when that fails."""

    def __init__(self, *, raises: Exception | None = None, answers: int = 0) -> None:
        self.seen: list[str] = []
        self.raises = raises
        self.answers = answers

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        while True:
            message = await receive()
            self.seen.append(message["type"])
            if message["type"] == "http.disconnect":
                if self.raises is not None:
                    raise self.raises
                if not self.answers:
                    return
                break
            if not message.get("more_body", False):
                break
        await send({"type": "http.response.start", "status": self.answers or 200, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})


def outcomes(gate: AdmissionController) -> dict[str, int]:
    assert idle(gate)
    return {label: n for label, n in gate.snapshot().finished.items() if n}


@pytest.mark.anyio
async def test_a_client_who_does_not_send_loses_its_place_and_is_told() -> None:
    gate, app = controller(), Reader()
    layer = AdmissionMiddleware(app, gate, body_timeout=SHORT)
    exchange = Exchange(layer, upload())
    exchange.body(b"a", more=True)
    await exchange()
    assert app.seen == ["http.request", "http.disconnect"]
    assert exchange.status == 408
    assert exchange.headers[b"connection"] == b"close"
    assert exchange.complete
    assert outcomes(gate) == {"cancelled": 1}


@pytest.mark.anyio
async def test_on_http2_the_answer_does_not_speak_of_the_connection() -> None:
    layer = AdmissionMiddleware(Reader(), controller(), body_timeout=SHORT)
    exchange = await Exchange(layer, upload(http_version="2"))()
    assert exchange.status == 408
    assert b"connection" not in exchange.headers


@pytest.mark.anyio
async def test_the_server_is_not_asked_again_after_the_wait_was_cut_short() -> None:
    async def insists(scope: Any, receive: Any, send: Any) -> None:
        assert [await receive() for _ in range(3)] == [DISCONNECT] * 3

    calls = 0

    async def never() -> Message:
        nonlocal calls
        calls += 1
        await anyio.sleep_forever()
        raise AssertionError

    async def ignore(message: Message) -> None:
        await anyio.lowlevel.checkpoint()

    layer: Any = AdmissionMiddleware(insists, controller(), body_timeout=SHORT)
    await layer(upload(), never, ignore)
    assert calls == 1


@pytest.mark.anyio
async def test_the_application_may_answer_for_itself() -> None:
    layer = AdmissionMiddleware(Reader(answers=400), controller(), body_timeout=SHORT)
    exchange = await Exchange(layer, upload())()
    assert exchange.status == 400
    assert exchange.content == b"done"


@pytest.mark.anyio
async def test_an_application_that_raises_raises_and_the_client_is_told_all_the_same() -> None:
    error, gate = ConnectionError("the client has left"), controller()
    layer = AdmissionMiddleware(Reader(raises=error), gate, body_timeout=SHORT)
    exchange = Exchange(layer, upload())
    with pytest.raises(ConnectionError) as raised:
        await exchange()
    assert raised.value is error
    assert exchange.status == 408
    assert outcomes(gate) == {"cancelled": 1}


@pytest.mark.anyio
async def test_the_place_is_free_while_the_application_still_thinks_about_it() -> None:
    gate, go_on, told = controller(), anyio.Event(), anyio.Event()

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        told.set()
        await go_on.wait()

    exchange = Exchange(AdmissionMiddleware(slow, gate, body_timeout=SHORT), upload())
    async with anyio.create_task_group() as group:
        group.start_soon(exchange)
        await told.wait()
        assert idle(gate)
        go_on.set()


@pytest.mark.anyio
async def test_whoever_waited_in_the_queue_is_bounded_too() -> None:
    gate, gated = controller(), Gate()
    first = Exchange(AdmissionMiddleware(gated, gate), scope())
    first.body()
    app = Reader()
    second = Exchange(
        AdmissionMiddleware(app, gate, body_timeout=SHORT), upload(), cancel_unsafe=False
    )
    second.body(b"a", more=True)
    async with anyio.create_task_group() as group:
        group.start_soon(first)
        await first.until(lambda: gated.calls == 1)
        group.start_soon(second)
        await second.until(lambda: gate.snapshot().waiting == 1)
        gated.open.set()
    assert second.status == 408
    assert outcomes(gate) == {"success": 1, "cancelled": 1}


@pytest.mark.anyio
async def test_a_request_that_is_whole_may_wait_for_its_client_for_ever() -> None:
    gate = controller()
    given: list[Message] = []

    async def polls(scope: Any, receive: Any, send: Any) -> None:
        given.append(await receive())
        with anyio.move_on_after(5 * SHORT):
            given.append(await receive())
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    exchange = await call(AdmissionMiddleware(polls, gate, body_timeout=SHORT))
    assert exchange.status == 200
    assert len(given) == 1
    assert outcomes(gate) == {"success": 1}


@pytest.mark.anyio
async def test_none_waits_for_ever() -> None:
    gate, app = controller(), Reader()
    exchange = Exchange(AdmissionMiddleware(app, gate, body_timeout=None), upload())
    with anyio.move_on_after(5 * SHORT):
        await exchange()
    assert not app.seen
    assert outcomes(gate) == {"cancelled": 1}


def test_what_is_there_already_costs_no_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(delay: float) -> None:
        raise AssertionError("a timer was made")

    async def ready() -> Message:
        return {"type": "http.request", "body": b"abc", "more_body": False}

    async def ask() -> None:
        wait = BodyWait(1.0, lambda: 0.0)
        assert await wait.next(ready()) == await ready()
        assert wait.complete
        assert wait.waited == 0.0

    monkeypatch.setattr(asyncio, "timeout", refuse)
    asyncio.run(ask())


@pytest.mark.anyio
async def test_timeouts_of_the_server_inside_are_its_own() -> None:
    async def gives_up() -> Message:
        with anyio.move_on_after(0.001):
            await anyio.sleep_forever()
        with anyio.fail_after(0.001):
            await anyio.sleep_forever()
        raise AssertionError

    wait = BodyWait(60.0, lambda: 0.0)
    with pytest.raises(TimeoutError):
        await wait.next(gives_up())
    assert not wait.expired


@pytest.mark.anyio
async def test_a_failure_of_the_server_is_passed_on_at_once_or_later() -> None:
    error = OSError("gone")

    async def fail(turns: int) -> Message:
        for _ in range(turns):
            await anyio.lowlevel.checkpoint()
        raise error

    for turns in (0, 1, 3):
        with pytest.raises(OSError, match="gone") as raised:
            await BodyWait(60.0, lambda: 0.0).next(fail(turns))
        assert raised.value is error


@pytest.mark.anyio
async def test_cancelling_the_task_is_not_taken_for_a_slow_client() -> None:
    wait = BodyWait(60.0, lambda: 0.0)
    with anyio.CancelScope() as outer:

        async def never() -> Message:
            outer.cancel()
            await anyio.sleep_forever()
            raise AssertionError

        await wait.next(never())
    assert outer.cancelled_caught
    assert not wait.expired


@pytest.mark.anyio
async def test_a_client_who_drips_is_given_up_and_one_who_uploads_is_not() -> None:
    async def told(size: int) -> tuple[int, bool]:
        now = 0.0
        wait = BodyWait(10.0, lambda: now)

        async def second() -> Message:
            nonlocal now
            await anyio.lowlevel.checkpoint()
            now += 1.0
            return {"type": "http.request", "body": b"x" * size, "more_body": True}

        for count in range(100):
            if await wait.next(second()) is None:
                return count, wait.expired
        return 100, wait.expired

    dripped, given_up = await told(1)
    assert given_up
    assert 10 <= dripped <= 11
    assert await told(int(MIN_RATE)) == (100, False)


@pytest.mark.anyio
async def test_the_time_that_an_upload_took_is_not_the_services_latency() -> None:
    now = 100.0
    gate = AdmissionController(policy(), clock=lambda: now)
    exchange = Exchange(AdmissionMiddleware(Reader(), gate, body_timeout=60.0), upload())

    async def sends_late() -> None:
        nonlocal now
        await exchange.until(lambda: gate.snapshot().in_flight == 1)
        await anyio.wait_all_tasks_blocked()
        now += 30.0
        exchange.body(b"abc")

    async with anyio.create_task_group() as group:
        group.start_soon(exchange)
        group.start_soon(sends_late)
    assert exchange.status == 200
    assert gate.snapshot().latency.sum == pytest.approx(0.0)
    assert outcomes(gate) == {"success": 1}


@pytest.mark.parametrize("wrong", [0.0, -1.0, float("inf"), float("nan")])
def test_a_timeout_that_means_nothing_is_an_error(wrong: float) -> None:
    with pytest.raises(ValueError, match="body_timeout"):
        AdmissionMiddleware(Reader(), controller(), body_timeout=wrong)


@pytest.mark.parametrize("worker", WORKERS)
def test_slow_uploads_do_not_stop_a_real_server(worker: str) -> None:
    gate, service = controller(places=2, max_queue=0), Service()
    layer = AdmissionMiddleware(service, gate, body_timeout=0.2)
    with Server(layer, worker) as server, ExitStack() as opened:
        slow = [
            opened.enter_context(socket.create_connection(("127.0.0.1", server.port), PATIENCE))
            for _ in range(2)
        ]
        for one in slow:
            one.sendall(b"POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: 1000\r\n\r\na")
        for one in slow:
            assert one.recv(65536).startswith(b"HTTP/1.1 408 ")
        until(lambda: idle(gate))
        with Http1(server.port) as client:
            assert client.post("/echo", b"abc")[0] == 200
    assert not server.errors
    assert server.crash is None
