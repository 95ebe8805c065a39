"""The services that `server_overload` offers too much to; imported by their servers only."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

# Environment variables through which the peers' apps learn their settings.
PLACES_VARIABLE: Final = "LOADGATE_BENCH_PLACES"
RATE_VARIABLE: Final = "LOADGATE_BENCH_RATE"

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Work = Callable[[], Awaitable[None]]

HEADERS = [(b"content-type", b"text/plain"), (b"content-length", b"1")]


def _app(work: Work, places: int | None = None) -> Any:
    """An app whose every request but ``/ready`` does some work.

    Args:
        work: What to do.
        places: With a number, what people write by hand: a semaphore, and 503 if it is taken.
    """
    semaphore = None if places is None else asyncio.Semaphore(places)

    async def app(scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            while True:
                message = await receive()
                await send({"type": f"{message['type']}.complete"})
                if message["type"] == "lifespan.shutdown":
                    return
        status = 200
        if scope["path"] != "/ready":
            if semaphore is None:
                await work()
            elif semaphore.locked():
                status = 503
            else:
                async with semaphore:
                    await work()
        await send({"type": "http.response.start", "status": status, "headers": HEADERS})
        await send({"type": "http.response.body", "body": b"0"})

    return app


_pool: asyncio.Semaphore | None = None


async def in_pool() -> None:
    """Take one of two places for 50 ms."""
    global _pool
    if _pool is None:
        _pool = asyncio.Semaphore(2)
    async with _pool:
        await asyncio.sleep(0.050)


async def on_cpu() -> None:
    """Use 20 ms of the processor."""
    # Processor time of this thread, not the clock: what another process takes is not our work.
    end = time.thread_time() + 0.020
    while time.thread_time() < end:
        pass


async def _nothing() -> None:
    pass


pool = _app(in_pool)
cpu = _app(on_cpu)
trivial = _app(_nothing)


if PLACES_VARIABLE in os.environ:
    pool_semaphore = _app(in_pool, int(os.environ[PLACES_VARIABLE]))
    cpu_semaphore = _app(on_cpu, int(os.environ[PLACES_VARIABLE]))
