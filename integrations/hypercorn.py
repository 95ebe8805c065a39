"""How does Hypercorn run an app in a loop that is ours? On a bound socket, until told to stop.

Hypercorn's own ``serve`` reads its sockets from the configuration and says nothing when it
listens. Here the socket is bound beforehand, so that a taken port is an error before anything
starts and port 0 is known, and `on_listening` is called when the app's startup is over.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
from hypercorn.config import Config, Sockets
from hypercorn.utils import LifespanFailureError, LifespanTimeoutError

from loadgate.integrations.door import Door
from loadgate.integrations.hypercorn_door import serve as serve_behind
from loadgate.integrations.hypercorn_mends import mend


class StartupError(Exception):
    """The app's own startup failed or took too long; the message is the app's."""


class BoundConfig(Config):
    """A Hypercorn configuration for a socket that is bound already.

    Args:
        listener: The socket; Hypercorn closes it in the end.
        on_listening: Called once, when the app has started and the socket listens.

    Attributes:
        failure: What the app said when its startup failed.
        on_exit: Called when the app raises `SystemExit` in a request, before that leaves the loop.
    """

    def __init__(
        self, listener: socket.socket, on_listening: Callable[[], None] | None = None
    ) -> None:
        super().__init__()
        self._listener = listener
        self._on_listening = on_listening
        self.failure: str | None = None
        self.on_exit: Callable[[SystemExit], None] | None = None
        # Without a handler of its own Hypercorn's log goes where the process's log goes. INFO
        # would only repeat the address.
        self.errorlog = logging.getLogger("hypercorn.error")
        self.errorlog.setLevel(logging.WARNING)

    def create_sockets(self) -> Sockets:
        """Hand the socket over; Hypercorn asks for it just after the app's startup.

        Raises:
            StartupError: The startup failed, which Hypercorn on trio notices only later.
        """
        if self.failure is not None:
            raise StartupError(self.failure)
        self._listener.listen(self.backlog)
        if self._on_listening is not None:
            self._on_listening()
        if self.ssl_enabled:
            return Sockets([self._listener], [], [])
        return Sockets([], [self._listener], [])


async def run(
    app: Any,
    config: BoundConfig,
    stop: Callable[[], Awaitable[Any]],
    door: Door | None = None,
) -> None:
    """Serve `app` in the running loop (asyncio, uvloop or trio) until `stop` returns.

    Then the socket is closed, idle connections too, and what still runs gets
    ``config.graceful_timeout`` seconds. Signals are left to the caller. To end it, let `stop`
    return: cancelling Hypercorn from outside leaves connections behind.

    Args:
        app: An ASGI app, whatever its ``__call__`` looks like.
        config: Its socket and Hypercorn's settings.
        stop: Returns when the server shall stop, as in ``event.wait``.
        door: Who may come in before HTTP begins; asyncio and uvloop only, without effect on trio.

    Raises:
        StartupError: The app's startup failed.
    """
    failure: Exception | None = None

    async def serve() -> None:
        nonlocal failure
        try:
            await _serve(app, config, stop, door)
        except Exception as error:
            failure = error

    # A task of its own: Hypercorn ends by cancelling the task it runs in and does not take it back
    # (0.18 on Python 3.11), which scopes around us would take for a cancellation from outside.
    async with anyio.create_task_group() as group:
        group.start_soon(serve)
    if failure is not None:
        raise failure


async def _serve(
    app: Any, config: BoundConfig, stop: Callable[[], Awaitable[Any]], door: Door | None
) -> None:
    flavour = "hypercorn.asyncio" if _on_asyncio() else "hypercorn.trio"
    # Looked up by name: the types of the two are only partly known to strict checkers.
    serve: Any = importlib.import_module(flavour).serve
    try:
        if door is not None and _on_asyncio():
            await serve_behind(_observed(app, config), config, stop, door)
        else:
            mend(flavour)
            await serve(_observed(app, config), config, shutdown_trigger=stop, mode="asgi")
    except (StartupError, LifespanFailureError, LifespanTimeoutError) as error:
        raise StartupError(config.failure or str(error)) from None
    except BaseExceptionGroup as group:
        # The trio flavour wraps whatever leaves its nurseries.
        failed = group.subgroup((StartupError, LifespanFailureError, LifespanTimeoutError))
        if failed is None:
            raise
        raise StartupError(config.failure or str(_first(failed))) from None


def _observed(app: Any, config: BoundConfig) -> Any:
    """`app`, and what it says when its startup fails.

    An app that returns from its lifespan has none, or has forgotten to stay: what it has left
    unanswered is answered for it. (Hypercorn on trio would end with an error of its own.)
    """

    async def observed(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "lifespan":
            try:
                await app(scope, receive, send)
            except SystemExit as ended:
                if config.on_exit is not None:
                    config.on_exit(ended)
                raise
            return
        unanswered = ""
        over = False

        async def heard() -> Any:
            nonlocal unanswered, over
            message = await receive()
            unanswered = message["type"]
            over = unanswered == "lifespan.shutdown"
            return message

        async def watched(message: Any) -> None:
            nonlocal unanswered
            unanswered = ""
            if message["type"] == "lifespan.startup.failed":
                config.failure = message.get("message") or "it does not say why"
            await send(message)

        await app(scope, heard, watched)
        while unanswered or not over:
            if unanswered:
                await watched({"type": f"{unanswered}.complete"})
            else:
                await heard()

    return observed


def _on_asyncio() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]  # narrowed to BaseExceptionGroup[Unknown]
    return error  # pyright: ignore[reportUnknownVariableType]  # as above
