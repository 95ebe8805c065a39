"""Hypercorn in an event loop that is ours: asyncio, uvloop and trio."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import Iterator
from typing import Any

import anyio
import anyio.abc
import httpx
import pytest
import sniffio
import trio

from loadgate import AdmissionController
from loadgate.integrations.asgi import AdmissionMiddleware
from loadgate.integrations.cli.bind import bind, url
from loadgate.integrations.door import Door
from loadgate.integrations.hypercorn import BoundConfig, StartupError, run
from tests.integrations.serving import Http1, Http2

pytestmark = pytest.mark.anyio


async def app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        while True:
            message = await receive()
            await send({"type": f"{message['type']}.complete"})
            if message["type"] == "lifespan.shutdown":
                return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"served"})


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logger = logging.getLogger("hypercorn.error")
    level = logger.level
    yield
    logger.setLevel(level)


async def ask_once(address: str, listening: anyio.Event, stop: anyio.Event) -> None:
    """One request once the server listens, which is told to stop then."""
    await listening.wait()
    async with httpx.AsyncClient() as client:
        assert (await client.get(address)).text == "served"
    stop.set()


async def test_a_server_runs_until_it_is_told_to_stop_and_leaves_the_loop_in_order() -> None:
    listener = bind("127.0.0.1:0")
    listening, stop = anyio.Event(), anyio.Event()
    controller = AdmissionController()

    with anyio.fail_after(20):
        async with controller, anyio.create_task_group() as group:
            group.start_soon(ask_once, url(listener), listening, stop)
            await run(
                AdmissionMiddleware(app, controller),
                BoundConfig(listener, listening.set),
                stop.wait,
            )
        # A scope that is cancelled afterwards ends as scopes do.
        with anyio.CancelScope() as scope:
            scope.cancel()
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert controller.snapshot().finished["success"] == 1


@pytest.mark.parametrize("answered", ["nothing", "the startup", "nothing that it heard"])
@pytest.mark.parametrize("behind", [False, True], ids=["no door", "a door"])
async def test_an_app_that_returns_from_its_lifespan_is_served(
    answered: str, behind: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def brief(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "lifespan":
            await app(scope, receive, send)
        elif answered == "the startup":
            await receive()
            await send({"type": "lifespan.startup.complete"})
        elif answered != "nothing":
            await receive()

    listener = bind("127.0.0.1:0")
    listening, stop = anyio.Event(), anyio.Event()
    controller = AdmissionController()
    config = BoundConfig(listener, listening.set)
    door = Door(controller) if behind else None

    with anyio.fail_after(20):
        async with controller, anyio.create_task_group() as group:
            group.start_soon(ask_once, url(listener), listening, stop)
            await run(brief, config, stop.wait, door)
    # The client's own log is heard as well where a test before has turned it on.
    of_client = ("httpx", "httpcore")
    assert [record for record in caplog.records if not record.name.startswith(of_client)] == []


def living() -> int:
    """Tasks of the running loop."""
    if sniffio.current_async_library() == "trio":
        return trio.lowlevel.current_statistics().tasks_living
    return len(asyncio.all_tasks())


@pytest.mark.parametrize("behind", [False, True], ids=["no door", "a door"])
@pytest.mark.parametrize("kind", [Http1, Http2])
async def test_a_connection_ends_with_its_client(kind: type[Http1 | Http2], behind: bool) -> None:
    listening, stop = anyio.Event(), anyio.Event()
    controller = AdmissionController()
    listener = bind("127.0.0.1:0")
    port = listener.getsockname()[1]
    config = BoundConfig(listener, listening.set)
    config.keep_alive_timeout = 3600.0
    config.graceful_timeout = 20.0
    layer = AdmissionMiddleware(app, controller)
    door = Door(controller) if behind else None

    def ask() -> None:
        with kind(port) as client:
            if isinstance(client, Http1):
                client.send(client.head("GET", "/", None))
                seen = b""
                while not seen.endswith(b"\r\n0\r\n\r\n"):
                    seen += client.socket.recv(65536)
            else:
                client.finish(client.request("GET", "/"))

    async with controller, anyio.create_task_group() as group:
        group.start_soon(run, layer, config, stop.wait, door)
        with anyio.fail_after(20):
            await listening.wait()
            await anyio.wait_all_tasks_blocked()
            before = living()
            for _ in range(3):
                await anyio.to_thread.run_sync(ask)
            while living() > before:  # noqa: ASYNC110  # there is nothing that tells of it
                await anyio.sleep(0.002)
        stop.set()


class Answering:
    """Its answer has begun when it says so, and ends as the path tells.

    `/whole` ends it when `go_on` is set, `/broken` then breaks it off, `/stream` ends it when the
    client has left.
    """

    def __init__(self) -> None:
        self.called = 0
        self.go_on = anyio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await app(scope, receive, send)
            return
        self.called += 1
        await send({"type": "http.response.start", "status": 200, "headers": []})
        if scope["path"] == "/stream":
            async with anyio.create_task_group() as group:
                group.start_soon(self._stream, send)
                while (await receive())["type"] != "http.disconnect":
                    pass
                group.cancel_scope.cancel()
            return
        await self.go_on.wait()
        more = scope["path"] == "/broken"
        await send({"type": "http.response.body", "body": b"answered", "more_body": more})

    async def _stream(self, send: Any) -> None:
        while True:
            await send({"type": "http.response.body", "body": b"part", "more_body": True})
            await anyio.sleep(0.002)

    async def until_called(self) -> None:
        while not self.called:  # noqa: ASYNC110  # there is nothing that tells of it
            await anyio.sleep(0.002)


async def pipeline(port: int, path: str) -> anyio.abc.SocketStream:
    """A client that asks three times at once."""
    client = await anyio.connect_tcp("127.0.0.1", port)
    await client.send(Http1.head("GET", path, None) * 3)
    return client


async def leave(client: anyio.abc.SocketStream, reset: bool) -> None:
    if reset:
        raw = client.extra(anyio.abc.SocketAttribute.raw_socket)
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    await client.aclose()


async def heard(client: anyio.abc.SocketStream) -> bytes:
    """All that comes until the connection is closed."""
    return b"".join([part async for part in client])


@pytest.mark.parametrize("behind", [False, True], ids=["no door", "a door"])
@pytest.mark.parametrize("how", ["stays", "closes", "resets"])
async def test_a_stop_waits_for_answers_and_not_for_what_was_pipelined_behind_them(
    how: str, behind: bool
) -> None:
    listening, stop = anyio.Event(), anyio.Event()
    controller = AdmissionController()
    answering = Answering()
    listener = bind("127.0.0.1:0")
    config = BoundConfig(listener, listening.set)
    config.graceful_timeout = 3600.0
    layer = AdmissionMiddleware(answering, controller)
    door = Door(controller) if behind else None

    with anyio.fail_after(20):
        async with controller, anyio.create_task_group() as group:
            group.start_soon(run, layer, config, stop.wait, door)
            await listening.wait()
            port = listener.getsockname()[1]
            idle = await anyio.connect_tcp("127.0.0.1", port)
            client = await pipeline(port, "/whole")
            await answering.until_called()
            stop.set()
            with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                await idle.receive()  # closed as soon as the server knows
            await idle.aclose()
            if how != "stays":
                await leave(client, how == "resets")
            answering.go_on.set()
            if how == "stays":
                answer = await heard(client)
                assert answer.count(b"HTTP/1.1 200") == answer.count(b"answered") == 1
                await client.aclose()
    assert answering.called == 1


@pytest.mark.parametrize("behind", [False, True], ids=["no door", "a door"])
@pytest.mark.parametrize("path", ["/whole", "/broken", "/stream"])
@pytest.mark.parametrize("reset", [False, True], ids=["closes", "resets"])
async def test_a_client_that_pipelines_and_leaves_leaves_nothing_behind(
    reset: bool, path: str, behind: bool
) -> None:
    listening, stop = anyio.Event(), anyio.Event()
    controller = AdmissionController()
    answering = Answering()
    listener = bind("127.0.0.1:0")
    config = BoundConfig(listener, listening.set)
    config.keep_alive_timeout = config.graceful_timeout = 3600.0
    layer = AdmissionMiddleware(answering, controller)
    door = Door(controller) if behind else None

    with anyio.fail_after(20):
        async with controller, anyio.create_task_group() as group:
            group.start_soon(run, layer, config, stop.wait, door)
            await listening.wait()
            await anyio.wait_all_tasks_blocked()
            before = living()
            client = await pipeline(listener.getsockname()[1], path)
            await answering.until_called()
            await leave(client, reset)
            answering.go_on.set()
            while living() > before:  # noqa: ASYNC110  # there is nothing that tells of it
                await anyio.sleep(0.002)
            stop.set()


async def test_a_startup_that_fails_is_an_error_with_the_words_of_the_app() -> None:
    async def failing(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "lifespan.startup.failed", "message": "no database"})

    listened: list[bool] = []
    with bind("127.0.0.1:0") as listener, anyio.fail_after(20):
        config = BoundConfig(listener, lambda: listened.append(True))
        with pytest.raises(StartupError, match=r"^no database$"):
            await run(failing, config, anyio.sleep_forever)
    assert not listened


async def test_a_startup_that_takes_too_long_is_an_error() -> None:
    async def slow(scope: Any, receive: Any, send: Any) -> None:
        await anyio.sleep_forever()

    with bind("127.0.0.1:0") as listener, anyio.fail_after(20):
        config = BoundConfig(listener)
        config.startup_timeout = 0.01
        with pytest.raises(StartupError, match="startup"):
            await run(slow, config, anyio.sleep_forever)
