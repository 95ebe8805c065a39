"""A service of known capacity: it waits, then holds one of a few places, for as long as told.

``GET /work?0.1&0.05`` waits 0.1 s, stands in line for a place and holds it for 0.05 s;
``GET /places?4`` sets how many places there are.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any


class Places:
    """A pool as `loadgate.simulation.stages.Pool` is one: first come, first served."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.running = 0
        self._line: deque[asyncio.Future[None]] = deque()

    async def hold(self, seconds: float) -> None:
        """Stand in line for a place and hold it."""
        if self.running >= self.count:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._line.append(turn)
            await turn
        else:
            self.running += 1
        try:
            await asyncio.sleep(seconds)
        finally:
            self.running -= 1
            self.fill()

    def fill(self) -> None:
        """Let the next in line in, as long as there is a place."""
        while self._line and self.running < self.count:
            turn = self._line.popleft()
            if not turn.done():
                self.running += 1
                turn.set_result(None)


_places = Places(4)


async def app(scope: Any, receive: Any, send: Any) -> None:
    """The ASGI application."""
    if scope["type"] != "http":
        # The refusal that ASGI asks for: a server then goes on without lifespan events.
        raise ValueError(f"this service speaks http only, not {scope['type']}")
    words = scope["query_string"].decode().split("&")
    if scope["path"] == "/places":
        _places.count = int(words[0])
        _places.fill()
    else:
        waiting, work = float(words[0]), float(words[1])
        await asyncio.sleep(waiting)
        await _places.hold(work)
    headers = [(b"content-length", b"2"), (b"content-type", b"text/plain")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"ok"})
