"""A sample service whose capacity is real, limited and known: a pool of ten database connections.

Every request holds one of the ten for a query of 60 to 140 ms, 100 ms in the mean, so that the
service can do 100 requests a second and not one more. The queries sleep, they do not compute:
the limit is then the pool and not the processor, and the demo shows the same on a busy machine
as on an idle one, where the load generator and the service compete for the processor.

Like most services, it goes on working for a client that has left.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

CONNECTIONS: Final = 10
FASTEST: Final = 0.060
SLOWEST: Final = 0.140

Message = MutableMapping[str, Any]


class Shop:
    """An ASGI app: `/` reads some orders, `/stats` says how many requests are inside."""

    def __init__(self) -> None:
        self._pool = asyncio.Semaphore(CONNECTIONS)
        self._dice = random.Random(1)  # equal queries in both halves of the demo
        self._inside = 0

    async def __call__(
        self,
        scope: MutableMapping[str, Any],
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            await _live(receive, send)
        elif scope["type"] == "http":
            if scope["path"] == "/stats":
                await _answer(send, b"%d" % self._inside)
            else:
                await self._read_orders()
                await _answer(send, b'{"orders": 3}')

    async def _read_orders(self) -> None:
        duration = self._dice.uniform(FASTEST, SLOWEST)
        self._inside += 1
        try:
            async with self._pool:
                await asyncio.sleep(duration)
        finally:
            self._inside -= 1


async def _answer(send: Callable[[Message], Awaitable[None]], body: bytes) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _live(
    receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


app = Shop()
