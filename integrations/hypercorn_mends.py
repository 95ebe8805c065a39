"""Which faults of Hypercorn 0.18 would let one client harm all others? They are mended here.

Each connection that Hypercorn serves for us gets a `TCPServer` of ours, which changes six things:
an upgrade to cleartext HTTP/2 is ignored, `CONNECT` is refused, what a WebSocket client says early
is kept, an HTTP/2 client that left before its answer leaves nothing behind, a connection with
pipelined requests ends when it is closed, and any connection ends with its client. On trio a
connection that fails does not end the process.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

# Looked up by name: the types of these are only partly known to strict checkers.
_events: Any = importlib.import_module("hypercorn.events")
_h11: Any = importlib.import_module("hypercorn.protocol.h11")
_stream_events: Any = importlib.import_module("hypercorn.protocol.events")
_ws: Any = importlib.import_module("hypercorn.protocol.ws_stream")

log = logging.getLogger("loadgate.hypercorn")

# What a WebSocket client may say before it is accepted: as much as a head may have, which is
# several messages of a chat, and little for a thousand clients that wait.
_MAX_EARLY: Final = 16 * 1024


class Mended:
    """To be inherited before Hypercorn's `TCPServer`, of either kind."""

    _protocol: Any
    _over = False

    @property
    def protocol(self) -> Any:
        """Hypercorn's choice of HTTP/1 or 2."""
        return self._protocol

    @protocol.setter
    def protocol(self, chosen: Any) -> None:
        inner = chosen.protocol
        if isinstance(inner, _h11.H11Protocol):
            mended: Any = inner
            mended._check_protocol = partial(_check_but_h2c, mended._check_protocol)
            mended._create_stream = partial(_create, mended, mended._create_stream)
            _Pipelined(mended)
        self._protocol = chosen

    async def _read_data(self) -> None:
        base: Any = super()
        try:
            await base._read_data()
        except _NothingMore:
            await self.protocol.handle(_events.Closed())
        # Its client has left, and with it the task that sends: without this the application
        # would wait in `send` for ever, and the connection for the application.
        for buffer in list(getattr(self.protocol.protocol, "stream_buffers", {}).values()):
            await buffer.close()
        # Nobody will ask for anything more: without this the connection would stay, with all that
        # hangs on it, until the time for the next request is over.
        self._over = True
        task: Any = self
        await task.idle_task.stop()

    async def protocol_send(self, event: Any) -> None:
        """What the protocol has for the client, or for the connection itself."""
        if self._over and type(event) is _events.Updated:
            return  # it would wait for the next request again
        base: Any = super()
        await base.protocol_send(event)


def mend(flavour: str) -> None:
    """Let Hypercorn use mended connections in this process from now on.

    Args:
        flavour: ``hypercorn.asyncio`` or ``hypercorn.trio``.
    """
    module: Any = importlib.import_module(f"{flavour}.run")
    plain: Any = module.TCPServer
    if issubclass(plain, Mended):
        return

    class Server(Mended, plain):  # type: ignore[misc]  # Any, see above
        async def run(self) -> None:
            base: Any = super()
            try:
                await base.run()
            except Exception as error:
                # On asyncio only the task of this connection would end; on trio all of them. One
                # line: whoever can make it fail shall not fill the log.
                log.warning("a connection failed, the others go on: %.200r", error)

    module.TCPServer = Server


async def _check_but_h2c(check: Callable[[Any], Awaitable[None]], event: Any) -> None:
    # A connection that was upgraded keeps its descriptor for ever when its client has left.
    # Whoever ignores Upgrade goes on in HTTP/1.1 (RFC 9110, 7.8).
    for name, value in event.headers:
        if name == b"upgrade" and value.strip().lower() == b"h2c":
            return
    await check(event)


async def _create(protocol: Any, create: Callable[[Any], Awaitable[None]], request: Any) -> None:
    if request.method == b"CONNECT":
        # No ASGI app can answer it, and Hypercorn waits for ever when one has tried to.
        await protocol._send_error_response(501)
        await protocol.send(_events.Closed())
        return
    await create(request)
    if type(protocol.stream) is _ws.WSStream:
        _Early(protocol, protocol.stream)


class _NothingMore(Exception):
    """The connection is closed: what was pipelined on it will not be read."""


class _Pipelined:
    """Requests that a client sends before it has the answer to the one before: when to read them.

    Hypercorn reads on when that answer was sent. If the connection was closed instead (the server
    stops, the answer was broken off, the client has left), it waits for ever: the task of each such
    connection stays, on trio its descriptor too, and a stop takes all the time it may.
    """

    def __init__(self, protocol: Any) -> None:
        self._answered: Any = protocol.can_read
        self._handle: Callable[[Any], Awaitable[None]] = protocol.handle
        self._send: Callable[[Any], Awaitable[None]] = protocol.send
        self._closed = False
        protocol.can_read = self
        protocol.handle = self.handle
        protocol.send = self.send

    async def handle(self, event: Any) -> None:
        """What the protocol gets from its connection."""
        if type(event) is _events.Closed:
            await self._close()
        await self._handle(event)

    async def send(self, event: Any) -> None:
        """What the protocol has for its connection."""
        if type(event) is _events.Closed:
            await self._close()
        await self._send(event)

    async def _close(self) -> None:
        self._closed = True
        await self._answered.set()

    async def clear(self) -> None:
        """An answer is being made."""
        await self._answered.clear()

    async def set(self) -> None:
        """It was sent."""
        await self._answered.set()

    async def wait(self) -> None:
        """Wait until the next request may be read.

        Raises:
            _NothingMore: It will never be.
        """
        if not self._closed:
            await self._answered.wait()
        if self._closed:
            raise _NothingMore


class _Early:
    """What a WebSocket client says before its handshake is accepted: kept until then.

    Hypercorn answers 400 to the first byte of it, does not tell the application, and keeps
    the connection for ever. Bytes come early whenever the handshake waits for a place.
    """

    def __init__(self, protocol: Any, stream: Any) -> None:
        self._protocol = protocol
        self._stream = stream
        self._handle: Callable[[Any], Awaitable[None]] = stream.handle
        self._accept: Callable[[Any], Awaitable[None]] = stream._accept
        self._held: list[Any] = []
        self._bytes = 0
        stream.handle = self.handle
        stream._accept = self.accept

    async def handle(self, event: Any) -> None:
        """What the stream gets from its client."""
        stream = self._stream
        early = self._held or not stream.handshake.accepted
        if (
            not early
            or stream.closed
            or type(event) not in (_stream_events.Body, _stream_events.Data)
        ):
            await self._handle(event)
            return
        self._bytes += len(event.data)
        if self._bytes <= _MAX_EARLY:
            self._held.append(event)
            return
        self._held.clear()
        await self._handle(_stream_events.StreamClosed(stream_id=event.stream_id))
        await self._protocol.send(_events.Closed())

    async def accept(self, message: Any) -> None:
        """The application accepts; now it may hear what came."""
        await self._accept(message)
        while self._held:
            await self._handle(self._held[0])
            self._held.pop(0)
