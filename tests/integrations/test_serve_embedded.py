"""Hypercorn in an event loop that is ours: asyncio, uvloop and trio."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import anyio
import httpx
import pytest

from loadgate import AdmissionController
from loadgate.integrations.asgi import AdmissionMiddleware
from loadgate.integrations.cli.bind import bind, url
from loadgate.integrations.hypercorn import BoundConfig, StartupError, run

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


async def test_a_server_runs_until_it_is_told_to_stop_and_leaves_the_loop_in_order() -> None:
    listener = bind("127.0.0.1:0")
    address = url(listener)
    listening, stop = anyio.Event(), anyio.Event()
    controller = AdmissionController()

    async def ask() -> None:
        await listening.wait()
        async with httpx.AsyncClient() as client:
            assert (await client.get(address)).text == "served"
        stop.set()

    with anyio.fail_after(20):
        async with controller, anyio.create_task_group() as group:
            group.start_soon(ask)
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
