"""What does the port for operators answer? Metrics, and whether the process lives and is ready."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from enum import StrEnum
from typing import Any

from loadgate.integrations.console.live import PAGE, Live

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Render = Callable[[str], Awaitable[tuple[bytes, str]]]

_TEXT = "text/plain; charset=utf-8"


class State(StrEnum):
    """Where a served process stands in its life."""

    STARTING = "starting"
    SERVING = "serving"
    DRAINING = "draining"


class OpsApp:
    """An ASGI app of a few pages, meant for a port that clients cannot reach.

    ``/metrics`` is what Prometheus reads. ``/healthz`` answers 200 as long as the event loop
    turns: a supervisor that gets no answer should restart the process. ``/readyz`` answers 200
    only while requests are welcome, 503 before the app has started, while most of them are
    refused (`AdmissionController.ready`, which needs to be asked every few seconds), and as soon
    as it drains.
    ``/live`` is a page for eyes, ``/live.json`` what it and `loadgate watch` draw.

    Args:
        render: Makes the metrics page: takes the ``Accept`` header, returns body and type.
        live: Answers for the last two; None leaves them out.
        ready: Whether a balancer should send requests here; None for as long as it serves.
    """

    def __init__(
        self, render: Render, live: Live | None = None, ready: Callable[[], bool] | None = None
    ) -> None:
        self._render = render
        self._live = live
        self._ready = ready
        self.state = State.STARTING

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer one request, or the lifespan."""
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1000})
            return
        status, body, kind = await self._answer(scope)
        headers = [
            (b"content-type", kind.encode("latin-1")),
            (b"content-length", b"%d" % len(body)),
            (b"cache-control", b"no-store"),
            (b"x-content-type-options", b"nosniff"),
        ]
        if self._live is not None and scope["path"] == PAGE:
            headers += self._live.page_headers
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send(
            {"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body}
        )

    async def _answer(self, scope: MutableMapping[str, Any]) -> tuple[int, bytes, str]:
        if scope["method"] not in {"GET", "HEAD"}:
            return 405, b"only GET\n", _TEXT
        match scope["path"]:
            case "/live" | "/live.json" as path if self._live is not None:
                return self._live.answer(path, scope["headers"])
            case "/metrics":
                accept = b",".join(
                    value for name, value in scope["headers"] if name.lower() == b"accept"
                )
                body, kind = await self._render(accept.decode("latin-1"))
                return 200, body, kind
            case "/healthz":
                return 200, b"ok\n", _TEXT
            case "/readyz":
                if self.state is not State.SERVING:
                    return 503, f"{self.state}\n".encode(), _TEXT
                if self._ready is not None and not self._ready():
                    return 503, b"overloaded\n", _TEXT
                return 200, b"serving\n", _TEXT
            case "/":
                return 200, b"loadgate: /metrics /healthz /readyz /live\n", _TEXT
            case _:
                return 404, b"no such page: /metrics /healthz /readyz /live\n", _TEXT


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
