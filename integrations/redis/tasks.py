"""How does a task outlive the request that started it, on asyncio and on trio?"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextvars import Context
from typing import Any, Final

import anyio

_logger: Final = logging.getLogger("loadgate.store")


class Background:
    """One task at a time that belongs to the event loop, not to whoever started it.

    Args:
        name: How debuggers call it.
        function: What it does. What it raises ends it, silently: it must say what is wrong.
    """

    __slots__ = ("_done", "_function", "_name", "_scope", "_task", "running")

    def __init__(self, name: str, function: Callable[[], Awaitable[None]]) -> None:
        self._name = name
        self._function = function
        self._scope: anyio.CancelScope | None = None
        self._done: anyio.Event | None = None
        self._task: asyncio.Task[Any] | None = None
        self.running = False

    def start(self) -> None:
        """Start it in the running event loop; in a context of its own, not the request's."""
        self.running = True
        self._done = anyio.Event()
        self._scope = anyio.CancelScope()
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            import trio

            trio.lowlevel.spawn_system_task(self._run, name=self._name, context=Context())
        else:
            self._task = loop.create_task(self._run(), name=self._name, context=Context())

    async def _run(self) -> None:
        scope, done = self._scope, self._done
        assert scope is not None
        assert done is not None
        try:
            with scope:
                await self._function()
        except Exception:
            # On trio it would end the whole run; nobody else can be told.
            _logger.exception("%s has stopped", self._name)
        finally:
            self.running = False
            done.set()

    def cancel(self) -> None:
        """Stop it, without waiting until it has stopped."""
        if self._scope is not None:
            self._scope.cancel()

    async def stop(self) -> None:
        """Stop it, and wait until it has stopped; a second at most."""
        if self.running and self._done is not None:
            self.cancel()
            with anyio.move_on_after(1.0):
                await self._done.wait()
