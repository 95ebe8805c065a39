"""Who reads what the client sends while its request waits? One pump per request, and nobody else.

A request that waits must be read: only `receive()` tells that the client has left, and on HTTP/2
an upload that nobody reads blocks every other stream of its connection. From the moment a pump
runs it is the only caller of the server's `receive()`, to the end of the request: a pending
`receive()` that is cancelled and called again loses body bytes on one server (Granian 2.8), and
two calls at once get a spurious empty message on another (uvicorn 0.54). The application reads
what the pump has buffered.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

import anyio

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

# What a message costs beside its bytes (a dict, its strings and a place in the deque, measured
# with sys.getsizeof and rounded), so that one-byte chunks cannot fill the memory either.
_MESSAGE_BYTES: Final = 512


class Buffers:
    """How many bytes all the pumps of one layer hold.

    Args:
        per_request: Bytes after which a pump stops reading until the application has read some.
        total: Bytes in all pumps beyond which each holds one message at a time.
    """

    __slots__ = ("per_request", "total", "used")

    def __init__(self, per_request: int, total: int) -> None:
        self.per_request = per_request
        self.total = total
        self.used = 0


class ReceivePump:
    """Reads a request's messages into a bounded buffer and latches its disconnect.

    Args:
        receive: The server's; nobody else may call it any more.
        buffers: The bounds, shared with other pumps.

    Attributes:
        on_gone: Called once, synchronously, when the client has left.
        on_full: Called each time reading stops because the buffer is full.
        gone: The disconnect message, once it has come.
        ended: Whether the whole body has been read from the server.
        discarded: Bytes thrown away since `discard`.
    """

    __slots__ = (
        "_buffer",
        "_buffers",
        "_error",
        "_held",
        "_news",
        "_receive",
        "_room",
        "_sizes",
        "discarded",
        "discarding",
        "ended",
        "gone",
        "on_full",
        "on_gone",
    )

    def __init__(self, receive: Receive, buffers: Buffers) -> None:
        self._receive = receive
        self._buffers = buffers
        self._buffer: deque[Message] = deque()
        self._sizes: deque[int] = deque()
        self._held = 0
        self._news: anyio.Event | None = None
        self._room: anyio.Event | None = None
        self._error: Exception | None = None
        self.on_gone: Callable[[], None] | None = None
        self.on_full: Callable[[], None] | None = None
        self.gone: Message | None = None
        self.ended = False
        self.discarding = False
        self.discarded = 0

    @property
    def is_over(self) -> bool:
        """Whether the client has left or the server's `receive` has failed."""
        return self.gone is not None or self._error is not None

    def raise_failure(self) -> None:
        """Raise what the server's `receive` has raised, if it has."""
        if self._error is not None:
            raise self._error

    async def run(self) -> None:
        """Read until the client leaves; runs beside the request and is cancelled with it."""
        receive = self._receive
        try:
            while self.gone is None:
                self._take(await receive())
                while self._is_full():
                    self._room = anyio.Event()
                    if self.on_full is not None:
                        self.on_full()
                    if self._is_full():  # on_full may have decided to discard
                        await self._room.wait()
        except Exception as error:
            # The server's own failure; whoever reads next shall see it, not a background task.
            self._error = error
            self._tell()
            if self.on_gone is not None:
                self.on_gone()

    async def receive(self) -> Message:
        """Return what the server's `receive` would: buffered messages, then the disconnect.

        Never suspends when there is something to return, so that it also works inside a scope
        that is cancelled already (Starlette's `is_disconnected` asks like that).
        """
        while True:
            if self._buffer:
                message = self._buffer.popleft()
                size = self._sizes.popleft()
                self._held -= size
                self._buffers.used -= size
                if self._room is not None and not self._is_full():
                    self._room.set()
                return message
            if self.gone is not None:
                return self.gone
            self.raise_failure()
            await self._wait_for_news()

    def discard(self) -> None:
        """Throw away what is buffered and whatever comes: nobody will read it."""
        self.discarding = True
        self.discarded += self._held
        self._drop()
        if self._room is not None:
            self._room.set()

    async def wait_until_over(self, max_bytes: float) -> None:
        """Wait until the upload has ended, the client has left, or so much was discarded."""
        while not (self.ended or self.is_over):
            if self.discarded >= max_bytes:
                return
            await self._wait_for_news()

    def close(self) -> None:
        """The request is over: what is still buffered does not count any more."""
        self._drop()

    def _take(self, message: Message) -> None:
        kind = message["type"]
        if kind == "http.disconnect" or kind == "websocket.disconnect":
            self.gone = message
            self._tell()
            if self.on_gone is not None:
                self.on_gone()
            return
        size = _MESSAGE_BYTES + len(message.get("body") or message.get("bytes") or b"")
        size += len(message.get("text") or "")
        if kind == "http.request" and not message.get("more_body", False):
            self.ended = True
        if self.discarding:
            self.discarded += size
        else:
            self._buffer.append(message)
            self._sizes.append(size)
            self._held += size
            self._buffers.used += size
        self._tell()

    def _is_full(self) -> bool:
        if not self._buffer or self.discarding:
            return False
        return self._held > self._buffers.per_request or self._buffers.used > self._buffers.total

    def _drop(self) -> None:
        self._buffers.used -= self._held
        self._held = 0
        self._buffer.clear()
        self._sizes.clear()

    def _tell(self) -> None:
        if self._news is not None:
            self._news.set()

    async def _wait_for_news(self) -> None:
        if self._news is None or self._news.is_set():
            self._news = anyio.Event()
        await self._news.wait()


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return asyncio's running loop, None under trio."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


async def run_beside(pump: ReceivePump, work: Callable[[], Awaitable[None]]) -> None:
    """Run `work` with the pump beside it; the pump ends with it.

    On asyncio a plain task is used, which costs a tenth of a task group. On trio there must be
    a nursery; an exception of `work` leaves it as the object that was raised, never in a group.
    """
    try:
        loop = running_loop()
        if loop is not None:
            task = loop.create_task(pump.run())
            try:
                await work()
            finally:
                task.cancel()
            return
        failure: BaseException | None = None
        async with anyio.create_task_group() as group:
            group.start_soon(pump.run)
            try:
                await work()
            except anyio.get_cancelled_exc_class():
                raise
            except BaseException as error:
                failure = error
            group.cancel_scope.cancel()
        if failure is not None:
            raise failure
    finally:
        pump.close()
