"""How long is a client's body waited for? A bounded time, and not a microsecond when it is there.

A place that is held for a client who does not send is a place taken from everybody, so an admitted
request may wait for its body only so long. Apache's mod_reqtimeout (`body=20,MinRate=500`) bounds
the whole upload in the same two numbers; here only the time counts that the application spends
waiting, so that its own slowness is never taken for the client's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from types import coroutine
from typing import Any, Final, cast

import anyio

from loadgate.integrations.receive import Message, running_loop

# Bytes of a body that earn one more second, as in Apache. A modem was seven times as fast.
MIN_RATE: Final = 500.0


class BodyWait:
    """The time that one request may wait for its client, and has waited.

    Args:
        patience: Seconds at first, above 0; each 500 bytes that come add one.
        clock: Monotonic seconds.

    Attributes:
        waited: Seconds spent waiting for the body so far.
        expired: Whether the client took too long.
        complete: Whether nothing more of the body is to come; then nothing is bounded.
    """

    __slots__ = ("_clock", "_patience", "complete", "expired", "waited")

    def __init__(self, patience: float, clock: Callable[[], float]) -> None:
        self._patience = patience
        self._clock = clock
        self.waited = 0.0
        self.expired = False
        self.complete = False

    async def next(self, awaitable: Awaitable[Message]) -> Message | None:
        """Await the next message; None, from then on, if it does not come in time.

        On asyncio the awaitable is stepped by hand: most messages are there already, and a
        timeout costs more than all the rest, so it begins only when the first step suspends.
        (`asyncio.timeout` may begin inside what it ends; the cancel scopes of trio may not.)
        """
        if running_loop() is not None:
            steps = awaitable.__await__()
            try:
                trap = next(steps)
            except StopIteration as over:
                return self.note(over.value)
            return await self.rest(trap, steps)
        began = self._clock()
        message: Message | None = None
        with anyio.move_on_after(max(0.0, self._patience - self.waited)):
            message = await awaitable
        return self._end(began, message)

    async def rest(self, trap: Any, steps: Any) -> Message | None:
        """The same for an awaitable on asyncio whose first step has suspended with `trap`."""
        began = self._clock()
        message: Message | None = None
        timeout = asyncio.timeout(max(0.0, self._patience - self.waited))
        try:
            async with timeout:
                message = await _resumed(trap, steps)
        except TimeoutError:
            if not timeout.expired():
                raise  # the server's own
        return self._end(began, message)

    def _end(self, began: float, message: Message | None) -> Message | None:
        self.waited += max(0.0, self._clock() - began)
        if message is None:
            self.expired = True
            return None
        return self.note(message)

    def note(self, message: Message) -> Message:
        """A message has come."""
        if message["type"] == "http.request":
            if message.get("more_body", False):
                self._patience += len(message.get("body") or b"") / MIN_RATE
            else:
                self.complete = True
        else:
            self.complete = True
        return message


@coroutine
def _resumed(trap: Any, steps: Any) -> Generator[Any, Any, Message]:
    """Await the rest of `steps`, whose first value was taken already.

    Not every server's iterator can be thrown into (Granian's cannot), as `yield from` knows.
    """
    while True:
        try:
            yield trap
        except BaseException as error:
            throw = getattr(steps, "throw", None)
            if throw is None:
                raise
            try:
                trap = throw(error)
            except StopIteration as over:
                return cast(Message, over.value)
        else:
            return cast(Message, (yield from steps))
