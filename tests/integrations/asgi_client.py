"""A scripted ASGI server and client in one, strict about what servers are strict about."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import anyio
import anyio.lowlevel

from loadgate import AdmissionController, Concurrency, Policy, Queue, Signals

Message = MutableMapping[str, Any]
App = Callable[[Any, Any, Any], Awaitable[None]]

DISCONNECT = {"type": "http.disconnect"}


def controller(places: int = 1, **queue: Any) -> AdmissionController:
    return AdmissionController(policy(places, **queue))


def policy(places: int = 1, **queue: Any) -> Policy:
    queue = {"max_wait": 30.0, "max_queue": 100, "max_depth": 200, **queue}
    return Policy(
        concurrency=Concurrency("fixed", initial=places),
        queue=Queue(**queue),
        signals=Signals(max_lag=None),  # these tests also run on machines that stand still
    )


def scope(**fields: Any) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "GET",
        "path": "/",
        "raw_path": b"/",
        "query_string": b"",
        "root_path": "",
        "headers": [(b"host", b"test")],
        "client": ("203.0.113.7", 4711),
        "server": ("127.0.0.1", 80),
        "extensions": {},
        **fields,
    }


def upload(length: int | None = 1000, **fields: Any) -> dict[str, Any]:
    size = (
        (b"transfer-encoding", b"chunked")
        if length is None
        else (b"content-length", b"%d" % length)
    )
    return scope(method="POST", **{"headers": [(b"host", b"test"), size], **fields})


class Exchange:
    """One call of an application.

    It fails the test when `receive` is called twice at once, and, with `cancel_unsafe`, loses a
    message for each `receive` that is cancelled while it is pending, as one real server does.
    It delivers a single disconnect and then blocks, as another does.
    """

    def __init__(self, app: App, scope: dict[str, Any], *, cancel_unsafe: bool = True) -> None:
        self.app = app
        self.scope = scope
        self.sent: list[Message] = []
        self.received = 0
        self.lost = 0
        self.blocked_send: anyio.Event | None = None
        self._incoming: deque[Message] = deque()
        self._news = anyio.Event()
        self._changed = anyio.Event()
        self._receiving = False
        self._cancel_unsafe = cancel_unsafe
        self.finished = False

    # -- the client ------------------------------------------------------------------------

    def feed(self, *messages: Message) -> None:
        self._incoming.extend(messages)
        self._news.set()

    def body(self, data: bytes = b"", *, more: bool = False) -> None:
        self.feed({"type": "http.request", "body": data, "more_body": more})

    def leave(self) -> None:
        kind = "websocket" if self.scope["type"] == "websocket" else "http"
        self.feed({"type": f"{kind}.disconnect"})

    async def until(self, condition: Callable[[], bool]) -> None:
        with anyio.fail_after(20):
            while not condition():  # noqa: ASYNC110  # any condition, not one event
                await anyio.sleep(0.001)

    async def until_sent(self, count: int) -> None:
        await self.until(lambda: len(self.sent) >= count)

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    @property
    def headers(self) -> dict[bytes, bytes]:
        return dict(self.sent[0]["headers"])

    @property
    def content(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)

    @property
    def complete(self) -> bool:
        return bool(self.sent) and not self.sent[-1].get("more_body", False)

    # -- the server ------------------------------------------------------------------------

    async def receive(self) -> Message:
        assert not self._receiving, "receive() was called twice at once"
        self._receiving = True
        try:
            while not self._incoming:
                self._news = anyio.Event()
                await self._news.wait()
            await anyio.lowlevel.checkpoint()
        except BaseException:
            if self._cancel_unsafe and self._incoming:
                self._incoming.popleft()
                self.lost += 1
            raise
        finally:
            self._receiving = False
        self.received += 1
        return self._incoming.popleft()

    async def send(self, message: Message) -> None:
        self.sent.append(message)
        if self.blocked_send is not None:
            await self.blocked_send.wait()
        else:
            await anyio.lowlevel.checkpoint()

    async def __call__(self) -> Exchange:
        try:
            await self.app(self.scope, self.receive, self.send)
        finally:
            self.finished = True
        return self


async def call(app: App, fields: dict[str, Any] | None = None, *bodies: bytes) -> Exchange:
    """Make one whole request; the upload is there at once."""
    exchange = Exchange(app, scope() if fields is None else fields)
    for data in bodies[:-1]:
        exchange.body(data, more=True)
    exchange.body(bodies[-1] if bodies else b"")
    with anyio.fail_after(20):
        return await exchange()


class Gate:
    """An application whose requests stay until they are let through."""

    def __init__(self, status: int = 200) -> None:
        self.status = status
        self.calls = 0
        self.bodies: list[bytes] = []
        self.open = anyio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.calls += 1
        await self.open.wait()
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] != "http.request":
                break
            body += message.get("body", b"")
            if not message.get("more_body", False):
                break
        self.bodies.append(bytes(body))
        await send({"type": "http.response.start", "status": self.status, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})


def idle(controller: AdmissionController) -> bool:
    snapshot = controller.snapshot()
    return snapshot.in_flight == snapshot.waiting == 0
