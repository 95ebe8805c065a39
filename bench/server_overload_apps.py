"""The services that `server_overload` offers too much to; imported by their servers only."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


def _app(work: Callable[[], Awaitable[None]]) -> Any:
    async def app(scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            while True:
                message = await receive()
                await send({"type": f"{message['type']}.complete"})
                if message["type"] == "lifespan.shutdown":
                    return
        if scope["path"] != "/ready":
            await work()
        headers = [(b"content-type", b"text/plain"), (b"content-length", b"1")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"0"})

    return app


_places: asyncio.Semaphore | None = None


async def _in_pool() -> None:
    global _places
    if _places is None:
        _places = asyncio.Semaphore(2)
    async with _places:
        await asyncio.sleep(0.050)


async def _on_cpu() -> None:
    # Processor time of this thread, not the clock: what another process takes is not our work.
    end = time.thread_time() + 0.020
    while time.thread_time() < end:
        pass


async def _nothing() -> None:
    pass


pool = _app(_in_pool)
cpu = _app(_on_cpu)
trivial = _app(_nothing)
