"""How does Hypercorn serve behind a door? Its own parts, started when a request has passed.

Hypercorn's `serve` starts its machinery for each connection that it accepts: two tasks, a parser
and a timer, about 0.2 ms. There is no hook before that, so this does what
`hypercorn.asyncio.worker_serve` (0.18) does, with a protocol of our own in front. asyncio and
uvloop only: trio accepts in a task and has no protocols to put something in front of.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import randint
from typing import Any, Final

from loadgate.integrations.door import Door
from loadgate.integrations.door_accept import Acceptor
from loadgate.integrations.door_connection import DoorConnection, Entrance
from loadgate.integrations.door_keeper import Doorman
from loadgate.integrations.hypercorn_mends import Mended

# Looked up by name: the types of these are only partly known to strict checkers.
_events: Any = importlib.import_module("hypercorn.events")
_h11: Any = importlib.import_module("hypercorn.protocol.h11")
_lifespan: Any = importlib.import_module("hypercorn.asyncio.lifespan")
_statsd: Any = importlib.import_module("hypercorn.asyncio.statsd")
_tcp: Any = importlib.import_module("hypercorn.asyncio.tcp_server")
_wrappers: Any = importlib.import_module("hypercorn.app_wrappers")
_context: Any = importlib.import_module("hypercorn.asyncio.worker_context")

# Seconds that tasks get to end after they were cancelled; they only close their sockets then.
_LAST_WORDS: Final = 1.0


async def serve(app: Any, config: Any, stop: Callable[[], Awaitable[Any]], door: Door) -> None:
    """Serve `app` until `stop` returns; then running requests get ``config.graceful_timeout``.

    Args:
        app: An ASGI app.
        config: Hypercorn's; its sockets are made after the app's startup.
        stop: Returns when the server shall stop.
        door: Who may come in.

    Raises:
        LifespanFailureError: The app's startup failed.
        LifespanTimeoutError: It took too long.
    """
    loop = asyncio.get_running_loop()
    config.set_statsd_logger_class(_statsd.StatsdLogger)
    state: dict[str, Any] = {}
    wrapped: Any = _wrappers.ASGIWrapper(app)
    lifespan: Any = _lifespan.Lifespan(wrapped, config, loop, state)
    lifespan_task: asyncio.Task[None] = loop.create_task(lifespan.handle_lifespan())
    try:
        await lifespan.wait_for_startup()
        if lifespan_task.done():
            lifespan_task.result()
        await _Listening(wrapped, config, state, door).until(stop)
        await lifespan.wait_for_shutdown()
    finally:
        lifespan_task.cancel()
        with suppress(asyncio.CancelledError):
            await lifespan_task


class _Listening:
    """The sockets of one server, and everything that runs behind them."""

    def __init__(self, app: Any, config: Any, state: dict[str, Any], door: Door) -> None:
        self.app = app
        self.config = config
        self.state = state
        self.loop = asyncio.get_running_loop()
        most = config.max_requests
        if most is not None:
            most += randint(0, config.max_requests_jitter)
        self.context: Any = _context.WorkerContext(most)
        self.doorman = Doorman(door, config.keep_alive_timeout)
        self.tasks: set[asyncio.Task[None]] = set()

    async def until(self, stop: Callable[[], Awaitable[Any]]) -> None:
        """Accept connections until `stop` returns, then let those inside finish."""
        servers = self._listen()
        ends = [
            self.loop.create_task(_wait(stop)),
            self.loop.create_task(self.context.terminate.wait()),
        ]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for end in ends:
                end.cancel()
            await (
                self.context.terminated.set()
            )  # closes idle connections, and each after its answer
            for server in servers:
                server.close()
            self.doorman.stop()
            await self._finish()

    def _listen(self) -> list[Acceptor]:
        config, sockets = self.config, self.config.create_sockets()
        door = self.doorman.door
        plain = [
            Acceptor(sock, door, self._connection, config.backlog)
            for sock in sockets.insecure_sockets
        ]
        secure = [
            Acceptor(
                sock,
                door,
                self._connection,
                config.backlog,
                tls=config.create_ssl_context(),
                handshake_timeout=config.ssl_handshake_timeout,
            )
            for sock in sockets.secure_sockets
        ]
        return [*plain, *secure]

    def _connection(self) -> _Connection:
        return _Connection(self)

    async def _finish(self) -> None:
        if self.tasks:
            _, late = await asyncio.wait(self.tasks, timeout=self.config.graceful_timeout)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late, timeout=_LAST_WORDS)


async def _wait(stop: Callable[[], Awaitable[Any]]) -> None:
    await stop()


class _Connection(DoorConnection):
    """A connection to Hypercorn."""

    def __init__(self, listening: _Listening) -> None:
        super().__init__(listening.doorman)
        self._listening = listening
        self._reader: _Reader
        self._server: _Server

    def start(self, transport: asyncio.Transport) -> asyncio.Protocol:
        """Start what Hypercorn starts for each connection."""
        listening = self._listening
        loop = listening.loop
        reader = self._reader = _Reader(loop=loop)
        inner = asyncio.StreamReaderProtocol(reader, loop=loop)
        inner.connection_made(transport)
        writer = asyncio.StreamWriter(transport, inner, reader, loop)
        server = self._server = _Server(self, listening, reader, writer)
        task: asyncio.Task[None] = loop.create_task(server.run())
        listening.tasks.add(task)
        task.add_done_callback(listening.tasks.discard)
        return inner

    def is_idle(self) -> bool:
        """Whether Hypercorn has answered everything, read everything, and speaks HTTP/1.x."""
        protocol = self._server.protocol.protocol
        return (
            self._reader.unread == 0
            and type(protocol) is _h11.H11Protocol
            and not protocol.connection.trailing_data[0]
        )


class _Reader(asyncio.StreamReader):
    """A stream that knows whether there is something in it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self.unread = 0

    def feed_data(self, data: Any) -> None:
        self.unread += len(data)
        super().feed_data(data)

    async def read(self, n: int = -1) -> bytes:
        data = await super().read(n)
        self.unread -= len(data)
        return data


class _Server(Mended, _tcp.TCPServer):  # type: ignore[misc]  # Any, see above
    """Hypercorn's side of one connection, telling the door when it is idle."""

    def __init__(
        self,
        connection: _Connection,
        listening: _Listening,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        app = Entrance(listening.app, connection, listening.doorman.door)
        loop, config, context = listening.loop, listening.config, listening.context
        base: Any = super()
        base.__init__(app, loop, config, context, listening.state, reader, writer)
        self._connection = connection

    async def protocol_send(self, event: Any) -> None:
        if type(event) is _events.Updated:
            self._connection.busy = not event.idle
        base: Any = super()
        await base.protocol_send(event)
