"""The service that `botnet` attacks: two places of 100 ms, so twenty requests a second."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

PLACES: Final = 2
SECONDS: Final = 0.1

_places: list[asyncio.Semaphore] = []


async def app(
    scope: MutableMapping[str, Any],
    receive: Callable[[], Awaitable[MutableMapping[str, Any]]],
    send: Callable[[MutableMapping[str, Any]], Awaitable[None]],
) -> None:
    """Answer 200, after a place was free for its time; `/ready` at once."""
    if scope["type"] == "lifespan":
        while True:
            kind = (await receive())["type"]
            await send({"type": f"{kind}.complete"})
            if kind == "lifespan.shutdown":
                return
    if scope["path"] != "/ready":
        if not _places:
            _places.append(asyncio.Semaphore(PLACES))
        async with _places[0]:
            await asyncio.sleep(SECONDS)
    headers = [(b"content-type", b"text/plain"), (b"content-length", b"1")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"0"})
