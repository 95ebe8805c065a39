"""Uvicorn and Granian in threads, with the same face as Hypercorn in `serving`."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from typing import Any, Self, cast

import granian.server.embed
import uvicorn
from granian.constants import Interfaces

from tests.integrations.serving import PATIENCE


class Uvicorn:
    """Uvicorn in a thread with an event loop of its own."""

    def __init__(self, app: Any, *, http: Any = "httptools", loop: Any = "uvloop") -> None:
        self.errors: list[str] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        config = uvicorn.Config(
            app, http=http, loop=loop, log_config=None, timeout_graceful_shutdown=int(PATIENCE)
        )
        self.server = uvicorn.Server(config)
        self._collect = _Collect(self.errors)
        self._thread = threading.Thread(target=self._run, name="uvicorn")

    def _run(self) -> None:
        self.server.run(sockets=[self._listener])

    def __enter__(self) -> Self:
        logging.getLogger("uvicorn.error").addHandler(self._collect)
        self._thread.start()
        until_listening(self.port, lambda: self.server.started)
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()
        self.join()

    def stop(self) -> None:
        self.server.should_exit = True

    def join(self) -> None:
        self._thread.join(PATIENCE)
        logging.getLogger("uvicorn.error").removeHandler(self._collect)
        self._listener.close()
        assert not self._thread.is_alive(), "the server does not stop"
        assert not self.errors, self.errors


class _Collect(logging.Handler):
    def __init__(self, errors: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._errors = errors

    def emit(self, record: logging.LogRecord) -> None:
        self._errors.append(record.getMessage() + str(record.exc_info or ""))


class Granian:
    """Granian, embedded into the event loop of a thread."""

    def __init__(self, app: Any) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        self._app = app
        self._thread = threading.Thread(target=self._run, name="granian")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: Any = None
        self.crash: BaseException | None = None

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self.crash = error

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._server = cast(Any, granian.server.embed).Server(
            self._app, port=self.port, interface=Interfaces.ASGI, log_enabled=False
        )
        await self._server.serve()

    def __enter__(self) -> Self:
        self._thread.start()
        until_listening(self.port, lambda: True)
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()
        self.join()

    def stop(self) -> None:
        if self._loop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._server.stop)

    def join(self) -> None:
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "the server does not stop"
        assert self.crash is None, f"the server crashed: {self.crash!r}"


def until_listening(port: int, ready: Any) -> None:
    end = time.monotonic() + PATIENCE
    while True:
        assert time.monotonic() < end, "it does not listen"
        try:
            if ready():
                socket.create_connection(("127.0.0.1", port), 1.0).close()
                return
        except OSError:
            pass
        time.sleep(0.01)
