"""The generator is made of asyncio protocols: its tests run on asyncio and on uvloop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import pytest

from loadgate.integrations.loadgen import ClientClass, Phase, Plan, Progress, Result
from loadgate.integrations.loadgen.engine import Engine

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture(
    params=[
        pytest.param(("asyncio", {"use_uvloop": False}), id="asyncio"),
        pytest.param(("asyncio", {"use_uvloop": True}), id="uvloop"),
    ]
)
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return request.param


class Server:
    """A server that does what a test says, for each connection."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._tasks: set[asyncio.Task[None]] = set()
        self.connections = 0
        self.url = ""

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._handler(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client has left, or the test is over
        finally:
            self._tasks.discard(task)
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


Serving = Callable[[Handler], "contextlib.AbstractAsyncContextManager[Server]"]


@pytest.fixture
def serving() -> Serving:
    @contextlib.asynccontextmanager
    async def serve(handler: Handler) -> AsyncGenerator[Server]:
        server = Server(handler)
        listener = await asyncio.start_server(server.accept, "127.0.0.1", 0)
        port: int = listener.sockets[0].getsockname()[1]
        server.url = f"http://127.0.0.1:{port}"
        try:
            yield server
        finally:
            listener.close()
            await server.stop()
            await listener.wait_closed()

    return serve


Offer = Callable[..., Awaitable[Result]]


@pytest.fixture
def offer() -> Offer:
    """Run one class of clients against a url, within a time that no test should ever need."""

    async def run(
        url: str,
        *,
        duration: float = 0.2,
        slo: float = 1.0,
        progress: float = 0.0,
        report: Callable[[Progress], None] | None = None,
        **fields: Any,
    ) -> Result:
        asked: dict[str, Any] = {"name": "user", "timeout": 30.0, **fields}
        plan = Plan(
            url=url,
            phases=(Phase("all", duration),),
            classes=(ClientClass(**asked),),
            slo=slo,
            progress=progress,
        )
        return await asyncio.wait_for(Engine(plan, report).run(), 60.0)

    return run


OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


async def answer_everything(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer every request (without a body) of a connection with 200."""
    while await reader.readuntil(b"\r\n\r\n"):
        writer.write(OK)


@pytest.fixture
def polite_server() -> Handler:
    return answer_everything
