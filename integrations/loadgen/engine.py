"""How are the requests sent? One timer, raw protocols, and a bound on everything.

One timer sends what is due and ends what has lost patience; replies are read by
`asyncio.Protocol` objects without a task or a future for each request. The clock decides
when a request leaves. If all kept connections are busy, another is opened: a pool of fixed
size would make arrivals wait for replies, and the load would no longer be open.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable
from typing import Final
from urllib.parse import urlsplit

from loadgate.integrations.loadgen.calls import Call, Group
from loadgate.integrations.loadgen.http1 import NotHttp, Response
from loadgate.integrations.loadgen.plan import Plan
from loadgate.integrations.loadgen.progress import Counts, Progress
from loadgate.integrations.loadgen.result import Failure, Result

# After a stall of the generator many requests are due at once. Sending them all before
# reading would add the time of sending to the latency of replies that are already here.
SENDS_PER_TURN: Final = 64

# A method that may be repeated when a kept connection was closed under it (RFC 9110, 9.2.2).
REPEATABLE: Final = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE"})

# The first arrivals are due when the run starts; opening the first connections takes a moment.
HEAD_START: Final = 0.05

# No run may hang on a socket that does not close.
CLOSING: Final = 1.0


class Connection(asyncio.Protocol):
    """One connection; carries one call at a time."""

    __slots__ = ("call", "engine", "response", "transport", "used")

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.transport: asyncio.Transport | None = None
        self.call: Call | None = None
        self.response = Response("GET")
        self.used = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The handshake is done."""
        self.transport = transport  # type: ignore[assignment]  # a TCP transport is a Transport
        self.engine.connection_opened(self)

    def send(self, call: Call) -> None:
        """Carry a call; the connection must be idle."""
        assert self.transport is not None
        self.call = call
        call.connection = self
        self.response = Response(call.group.method)
        self.transport.write(call.payload)

    def data_received(self, data: bytes) -> None:
        """Read on."""
        call = self.call
        if call is None:
            self.abort()  # an idle server has nothing to say (some send a 408): do not use it again
            return
        try:
            if not self.response.feed(data):
                return
        except NotHttp:
            self.call = None
            self.engine.finish(call, Failure.GARBLED)
            self.abort()
            return
        self.complete(call)

    def complete(self, call: Call) -> None:
        """The response is whole: be idle again, or close."""
        self.call = None
        self.used = True
        self.engine.finish(call, self.response.status)
        if self.response.reusable and call.group.kept:
            self.engine.idle[self] = None
        elif self.transport is not None:
            self.transport.close()

    def abort(self) -> None:
        """Close at once, whatever is under way."""
        if self.transport is not None:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is closed: by the server, by us, or by an error."""
        self.engine.connection_closed(self)
        call, self.call = self.call, None
        if call is None:
            return
        if exc is None and self.response.end():
            self.engine.finish(call, self.response.status)
        elif self.used and not self.response.begun and not call.second:
            self.engine.send_again(call)
        else:
            self.engine.finish(call, Failure.CLOSED)


class Engine:
    """A run of one plan on the running event loop."""

    def __init__(self, plan: Plan, report: Callable[[Progress], None] | None = None) -> None:
        self.plan = plan
        # Last used first, so that no more connections stay warm than are needed.
        self.idle: dict[Connection, None] = {}
        self._connections: set[Connection] = set()
        self._empty = asyncio.Event()
        self._empty.set()
        self._opened = 0
        self._peak = 0
        self._resent = 0
        self._pending: set[asyncio.Task[None]] = set()
        parts = urlsplit(plan.url)
        host = parts.hostname or ""
        self._groups = [Group(one, plan, parts.netloc.rpartition("@")[2]) for one in plan.classes]
        self._events = sorted(
            (at, number, row)
            for number, group in enumerate(self._groups)
            for row, at in enumerate(group.due)
        )
        self._next = 0
        self._left = len(self._events)
        self._address = (host, parts.port or 80)
        self._start = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._report = report if plan.progress else None
        self._counts = Counts(plan)
        self._report_at = plan.progress

    async def run(self) -> Result:
        """Send everything, wait for every reply or the end of its patience, close everything."""
        self._loop = asyncio.get_running_loop()
        self._done = self._loop.create_future()
        self._address = await _resolve(*self._address)
        cpu = time.process_time()
        self._start = time.perf_counter() + HEAD_START
        try:
            if self._left:
                self._turn()
                await self._done
            if self._report is not None:
                self._report(self._counts.cut(time.perf_counter() - self._start))
        finally:
            if self._timer is not None:
                self._timer.cancel()
            await self._close()
        return Result(
            plan=self.plan,
            rows={group.name: group.rows() for group in self._groups},
            elapsed=time.perf_counter() - self._start,
            cpu=time.process_time() - cpu,
            opened=self._opened,
            peak=self._peak,
            resent=self._resent,
        )

    def _turn(self) -> None:
        """Send what is due, end what has lost patience, and set the timer for the next."""
        now = time.perf_counter() - self._start
        events = self._events
        until = min(self._next + SENDS_PER_TURN, len(events))
        while self._next < until and events[self._next][0] <= now:
            at, number, row = events[self._next]
            self._next += 1
            self._send(self._groups[number], row, at)
        wake = events[self._next][0] if self._next < len(events) else float("inf")
        for group in self._groups:
            wake = min(wake, self._expire(group, now))
        if self._report is not None and now >= self._report_at:
            self._report(self._counts.cut(now))
            self._report_at = now - now % self.plan.progress + self.plan.progress
        if self._report is not None:
            wake = min(wake, self._report_at)
        if self._left:
            self._timer = self._loop.call_later(max(0.0, wake - now), self._turn)

    def _expire(self, group: Group, now: float) -> float:
        """End the calls whose patience is over; return when the next one's will be."""
        while group.open:
            call = group.open[0]
            deadline = call.intended + group.timeout
            if call.over:
                group.open.popleft()
            elif deadline <= now:
                group.open.popleft()
                self._give_up(call)
            else:
                return deadline
        return float("inf")

    def _give_up(self, call: Call) -> None:
        self.finish(call, Failure.TIMEOUT)
        if call.connection is not None:
            call.connection.call = None
            call.connection.abort()
        elif call.connecting is not None:
            call.connecting.cancel()

    def _send(self, group: Group, row: int, at: float) -> None:
        late = time.perf_counter() - self._start - at
        group.late[row] = late
        call = Call(group, row, at, group.payload())
        self._counts.sent(group.name)
        if late >= group.timeout:
            self.finish(call, Failure.UNSENT)
            return
        group.open.append(call)
        while group.kept and self.idle:
            connection, _ = self.idle.popitem()
            if connection.transport is not None and not connection.transport.is_closing():
                connection.send(call)
                return
        self._connect(call)

    def _connect(self, call: Call) -> None:
        task = self._loop.create_task(self._open(call))
        call.connecting = task
        self._pending.add(task)
        task.add_done_callback(self._pending.discard)

    async def _open(self, call: Call) -> None:
        try:
            _, connection = await self._loop.create_connection(
                lambda: Connection(self), *self._address
            )
        except ConnectionRefusedError:
            self.finish(call, Failure.REFUSED)
        except OSError:
            self.finish(call, Failure.FAILED)
        else:
            if call.over:
                connection.abort()
            elif connection.transport is None or connection.transport.is_closing():
                self.finish(call, Failure.CLOSED)
            else:
                connection.send(call)

    def send_again(self, call: Call) -> None:
        """Repeat a call whose kept connection the server had closed: what HTTP clients do."""
        if call.group.method not in REPEATABLE:
            self.finish(call, Failure.CLOSED)
            return
        call.second = True
        call.connection = None
        self._resent += 1
        self._connect(call)

    def finish(self, call: Call, status: int) -> None:
        """Write down how a call ended; only the first end counts."""
        if call.over:
            return
        call.over = True
        latency = time.perf_counter() - self._start - call.intended
        group = call.group
        group.latency[call.row] = latency
        group.status[call.row] = status
        self._counts.ended(group.name, status, latency)
        self._left -= 1
        if self._left == 0 and not self._done.done():
            self._done.set_result(None)

    def connection_opened(self, connection: Connection) -> None:
        """Count a connection."""
        self._connections.add(connection)
        self._empty.clear()
        self._opened += 1
        self._peak = max(self._peak, len(self._connections))

    def connection_closed(self, connection: Connection) -> None:
        """Forget a connection."""
        self._connections.discard(connection)
        self.idle.pop(connection, None)
        if not self._connections:
            self._empty.set()

    async def _close(self) -> None:
        for task in list(self._pending):
            task.cancel()
        for connection in list(self._connections):
            connection.abort()
        await asyncio.gather(*self._pending, return_exceptions=True)
        # An abort is followed by connection_lost within a turn or two of the loop.
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._empty.wait(), CLOSING)


async def _resolve(host: str, port: int) -> tuple[str, int]:
    """Look the name up once: a run measures the server, not the resolver.

    Raises:
        OSError: There is no such host.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    address = found[0][4]
    return str(address[0]), port
