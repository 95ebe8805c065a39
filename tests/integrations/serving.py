"""Real servers on loopback, and clients that do what well-behaved libraries do not."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import socket
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Self, cast

import anyio
import h2.config
import h2.connection
import h2.events
import hypercorn.asyncio
import hypercorn.trio
import trio
import uvloop
from hypercorn.config import Config

from loadgate import AdmissionController

WORKERS = ["asyncio", "uvloop", "trio"]
PATIENCE = 15.0

# Its types are partly unknown to a strict reader.
SERVE_ASYNCIO: Any = cast(Any, hypercorn.asyncio).serve
SERVE_TRIO: Any = cast(Any, hypercorn.trio).serve

# Hypercorn 0.18 on trio may close one connection from two tasks at once, after the answer.
HARMLESS = "BusyResourceError"


class Service:
    """`/hold` answers when it may, `/echo` tells size and SHA-256 of its body."""

    def __init__(self) -> None:
        self.may_answer = threading.Event()
        self.calls: list[str] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            while (await receive())["type"] != "lifespan.shutdown":
                await send({"type": "lifespan.startup.complete"})
            await send({"type": "lifespan.shutdown.complete"})
            return
        self.calls.append(scope["path"])
        if scope["path"] == "/hold":
            while not self.may_answer.is_set():  # noqa: ASYNC110  # set by another thread
                await anyio.sleep(0.002)
        body, digest = 0, hashlib.sha256()
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return
            body += len(message["body"])
            digest.update(message["body"])
            if not message.get("more_body"):
                break
        told = f"{body} {digest.hexdigest()}".encode()
        headers = [(b"content-length", b"%d" % len(told))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": told})


def told(body: bytes) -> bytes:
    return f"{len(body)} {hashlib.sha256(body).hexdigest()}".encode()


class Server:
    """Hypercorn in a thread with an event loop of its own."""

    def __init__(self, app: Any, worker: str) -> None:
        self.errors: list[str] = []
        self.crash: BaseException | None = None
        self._app = app
        self._worker = worker
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._stop: Callable[[], object] | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"hypercorn-{worker}")

    def _config(self) -> Config:
        config = Config()
        config.bind = [f"fd://{self._listener.detach()}"]
        config.graceful_timeout = PATIENCE
        logger = logging.Logger("hypercorn.test", logging.WARNING)
        errors = self.errors

        class Collect(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                line = record.getMessage() + str(record.exc_info or "")
                if HARMLESS not in line:
                    errors.append(line)

        logger.addHandler(Collect())
        config.errorlog = logger
        return config

    def _run(self) -> None:
        try:
            if self._worker == "trio":
                trio.run(self._serve_trio)
            else:
                factory = uvloop.new_event_loop if self._worker == "uvloop" else None
                with asyncio.Runner(loop_factory=factory) as runner:
                    runner.run(self._serve_asyncio())
        except BaseException as error:
            self.crash = error
        finally:
            self._ready.set()

    async def _serve_asyncio(self) -> None:
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        self._stop = lambda: loop.call_soon_threadsafe(stop.set)
        self._ready.set()
        await SERVE_ASYNCIO(self._app, self._config(), shutdown_trigger=stop.wait)

    async def _serve_trio(self) -> None:
        token, stop = trio.lowlevel.current_trio_token(), trio.Event()
        self._stop = lambda: token.run_sync_soon(stop.set)
        self._ready.set()
        await SERVE_TRIO(self._app, self._config(), shutdown_trigger=stop.wait)

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait(PATIENCE)
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()
        self.join()

    def stop(self) -> None:
        if self._stop is not None and self._thread.is_alive():
            self._stop()

    def join(self) -> None:
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "the server does not stop"
        assert self.crash is None, f"the server crashed: {self.crash!r}"
        assert not self.errors, self.errors


class Stage:
    """A server, the layer and a service behind it whose only place can be taken."""

    def __init__(self, server: Server, service: Service, gate: AdmissionController) -> None:
        self.server = server
        self.service = service
        self.gate = gate
        self.port = server.port

    @property
    def waiting(self) -> int:
        return self.gate.admission.room.depth

    @property
    def in_flight(self) -> int:
        return self.gate.admission.in_flight

    @contextmanager
    def busy(self) -> Generator[None]:
        """The place is taken until the block ends."""
        self.service.may_answer.clear()
        with Http1(self.port) as holder:
            holder.send(b"GET /hold HTTP/1.1\r\nhost: a\r\n\r\n")
            until(lambda: self.in_flight == 1)
            yield
            self.service.may_answer.set()
            assert holder.read()[0] == 200
        until(lambda: self.in_flight == 0)


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.002)


class Http1:
    """One connection, byte by byte."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), PATIENCE)
        self._buffer = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def post(self, path: str, body: bytes, *headers: str) -> tuple[int, dict[str, str], bytes]:
        self.send(self.head("POST", path, len(body), *headers) + body)
        return self.read()

    def get(self, path: str) -> tuple[int, dict[str, str], bytes]:
        self.send(self.head("GET", path, None))
        return self.read()

    @classmethod
    def upgrade(cls, path: str) -> bytes:
        """The request that asks for a WebSocket."""
        return cls.head(
            "GET", path, None,
            "connection: Upgrade", "upgrade: websocket",
            "sec-websocket-version: 13", "sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==",
        )  # fmt: skip

    @staticmethod
    def head(method: str, path: str, length: int | None, *headers: str) -> bytes:
        lines = [f"{method} {path} HTTP/1.1", "host: test", *headers]
        if length is not None:
            lines.append(f"content-length: {length}")
        return "\r\n".join([*lines, "", ""]).encode()

    def read(self, *, body: bool = True) -> tuple[int, dict[str, str], bytes]:
        """Read one response; informational ones are skipped. HEAD has no `body`."""
        while True:
            while b"\r\n\r\n" not in self._buffer:
                self._more()
            head, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
            first, *lines = head.decode().split("\r\n")
            status = int(first.split()[1])
            if status >= 200:
                break
        headers = {
            name.lower(): value.strip() for name, _, value in (x.partition(":") for x in lines)
        }
        length = int(headers["content-length"]) if body else 0
        while len(self._buffer) < length:
            self._more()
        content, self._buffer = self._buffer[:length], self._buffer[length:]
        return status, headers, content

    def _more(self) -> None:
        data = self.socket.recv(65536)
        if not data:
            raise EOFError(f"closed after {self._buffer!r}")
        self._buffer += data


class Http2:
    """One cleartext HTTP/2 connection with many streams."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), PATIENCE)
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        self.h2.initiate_connection()
        self.status: dict[int, int] = {}
        self.bodies: dict[int, bytes] = {}
        self.ended: set[int] = set()
        self.reset: set[int] = set()
        self._pending: dict[int, bytes] = {}
        self.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.socket.close()

    def flush(self) -> None:
        self.socket.sendall(self.h2.data_to_send())

    def request(self, method: str, path: str, body: bytes = b"", *, end: bool = True) -> int:
        stream = self.h2.get_next_available_stream_id()
        headers = [(":method", method), (":path", path), (":scheme", "http"), (":authority", "a")]
        self.h2.send_headers(stream, headers, end_stream=end and not body)
        if body:
            self._pending[stream] = body
            self._upload()
        self.flush()
        return stream

    def leave(self, stream: int) -> None:
        self._pending.pop(stream, None)
        self.h2.reset_stream(stream, 8)  # CANCEL
        self.flush()

    def finish(self, *streams: int) -> None:
        """Send what is left of the uploads and read until these streams have ended."""
        while not all(stream in self.ended and stream not in self._pending for stream in streams):
            self.step()

    def step(self) -> None:
        data = self.socket.recv(65536)
        if not data:
            raise EOFError("the connection was closed")
        for event in self.h2.receive_data(data):
            stream: Any = getattr(event, "stream_id", None)
            if isinstance(event, h2.events.ResponseReceived):
                headers: dict[Any, Any] = dict(event.headers)
                self.status[stream] = int(headers[":status"])
            elif isinstance(event, h2.events.DataReceived):
                self.bodies[stream] = self.bodies.get(stream, b"") + event.data
                self.h2.acknowledge_received_data(event.flow_controlled_length, stream)
            elif isinstance(event, h2.events.StreamEnded):
                self.ended.add(stream)
            elif isinstance(event, h2.events.StreamReset):
                self.reset.add(stream)
                self.ended.add(stream)
                self._pending.pop(stream, None)
            elif isinstance(event, h2.events.ConnectionTerminated):
                raise EOFError("GOAWAY")
        self._upload()
        self.flush()

    def _upload(self) -> None:
        """Send as much of every upload as the windows allow, a frame of each in turn."""
        progress = True
        while progress:
            progress = False
            for stream, body in list(self._pending.items()):
                room = min(
                    self.h2.local_flow_control_window(stream), self.h2.max_outbound_frame_size
                )
                if room <= 0:
                    continue
                self.h2.send_data(stream, body[:room], end_stream=len(body) <= room)
                progress = True
                if len(body) <= room:
                    del self._pending[stream]
                else:
                    self._pending[stream] = body[room:]
