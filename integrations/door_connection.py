"""How does one connection stand at the door? A protocol in front of a server's own protocol.

The server's protocol is made when the first request passes; until then a connection costs a
small object and one entry among the timeouts. Afterwards every byte goes straight through, except
when the connection is idle: then the next head is looked at first.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from typing import Any, Final, cast

from loadgate.decisions import Refuse
from loadgate.integrations.door import GOAWAY, Door
from loadgate.integrations.door_head import (
    MAX_BODY,
    MAX_HEAD,
    begins_with_request,
    head_end,
    read_head,
)
from loadgate.integrations.door_keeper import MAX_LINGER, Doorman
from loadgate.integrations.receive import Receive, Scope, Send

_NOT_LINGERING: Final = -1


class DoorConnection(asyncio.Protocol):
    """Asks the door for each request, and speaks for the server when it is refused.

    A refused first request is answered and the connection half-closed, so that descriptors do not
    run out under attack; one on a connection that the server has served before is answered and
    the connection kept, as that is cheaper for both.

    Args:
        doorman: The door and the timers of the listening socket.

    Attributes:
        busy: Whether the server has a request of this connection; set by subclasses when it ends.
        seen: What was read before there was a transport.
        verdict: What the door has said about it already, None if it was not asked.
    """

    def __init__(self, doorman: Doorman) -> None:
        self.busy = False
        self.seen = b""
        self.verdict: float | Refuse | None = None
        self._doorman = doorman
        self._door = doorman.door
        self._transport: asyncio.Transport
        self._inner: asyncio.Protocol | None = None
        self._data = b""
        self._passed = 0.0
        self._swallow = 0
        self._linger = _NOT_LINGERING

    @abstractmethod
    def start(self, transport: asyncio.Transport) -> asyncio.Protocol:
        """Make the server's protocol; its `connection_made` is called by this method."""

    @abstractmethod
    def is_idle(self) -> bool:
        """Whether the next byte begins an HTTP/1.x request. Asked only while not `busy`."""

    def entered(self) -> Refuse | None:
        """The application is called for a request of this connection.

        Returns:
            None if it may go on, else what the door has to tell in its place.
        """
        passed, self._passed = self._passed, 0.0
        return self._door.entered(passed) if passed else None

    def uncounted(self) -> None:
        """The request that has passed will not be seen to enter the application."""
        if self._passed:
            self._door.left()
            self._passed = 0.0
        elif self.verdict and not isinstance(self.verdict, Refuse):
            self._door.left()
            self.verdict = None

    def abort(self) -> None:
        """Close at once; its time is up."""
        self._transport.abort()

    # -- asyncio.Protocol ------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Somebody has connected."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclass
        self._doorman.hold(self)
        if self.seen:
            data, self.seen = self.seen, b""
            self._consider(data)

    def data_received(self, data: bytes) -> None:
        """Bytes have come."""
        inner = self._inner
        if self._linger != _NOT_LINGERING:
            self._linger -= len(data)
            if self._linger < 0:
                self.abort()
        elif inner is not None and not self._data and not self._swallow and self._passes():
            inner.data_received(data)
        else:
            self._consider(self._data + data)

    def eof_received(self) -> bool | None:
        """The client sends nothing more."""
        if self._inner is None:
            return None
        keeps = self._inner.eof_received()
        return keeps if self._linger == _NOT_LINGERING else None

    def connection_lost(self, exc: Exception | None) -> None:
        """It is over."""
        self._doorman.held.discard(self)
        self._doorman.lingering.discard(self)
        self.uncounted()
        if self._inner is not None:
            self._inner.connection_lost(exc)

    def pause_writing(self) -> None:
        """The client reads too slowly."""
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        """The client has read."""
        if self._inner is not None:
            self._inner.resume_writing()

    # -- inside ----------------------------------------------------------------------------

    def _passes(self) -> bool:
        """Whether bytes belong to what the server is doing already."""
        if self.busy or not self.is_idle():
            return True
        self.uncounted()
        return False

    def _consider(self, data: bytes) -> None:
        while data:
            if self._swallow:
                taken = min(self._swallow, len(data))
                self._swallow -= taken
                data = data[taken:]
                continue
            length = head_end(data)
            if not length and len(data) <= MAX_HEAD:
                if self._inner is not None and not self._data:
                    self._doorman.hold(self)
                self._data = data
                return
            # A head that is too long is the server's to complain about, unless it is refused.
            self._data = b""
            self._doorman.held.discard(self)
            verdict, self.verdict = self.verdict, None
            if verdict is None:
                verdict = self._door.ask(data[:length] if length else data)
            if not isinstance(verdict, Refuse):
                self._pass(data, verdict)
                return
            data = self._refuse(verdict, data, length)
        self._data = b""

    def _pass(self, data: bytes, passed: float) -> None:
        inner = self._inner
        if inner is None:
            inner = self._inner = self.start(self._transport)
        self._passed = passed
        self.busy = True
        if data.startswith(b"PRI ") and not begins_with_request(data):
            # The first one comes when the client likes, so how long it takes says nothing.
            self.uncounted()
        inner.data_received(data)

    def _refuse(self, refusal: Refuse, data: bytes, length: int) -> bytes:
        """Answer, and return what remains to be looked at."""
        transport = self._transport
        if self._door.mode == "drop":
            self._door.drop(refusal, data)
            transport.abort()
            return b""
        if data.startswith(b"PRI "):
            self._door.drop(refusal, data)
            transport.write(GOAWAY)
            self._close()
            return b""
        head = read_head(data[:length]) if length else None
        if self._inner is None or head is None or not head.keep or not 0 <= head.body <= MAX_BODY:
            transport.write(self._door.answer(refusal, data[:length], close=True))
            self._close()
            return b""
        transport.write(self._door.answer(refusal, data[:length], close=False))
        self._swallow = head.body
        return data[length:]

    def _close(self) -> None:
        """Say that nothing more comes, and read on for a while.

        A socket that is closed with unread bytes is reset, and a reset may overtake the answer.
        """
        self._linger = MAX_LINGER
        if self._transport.can_write_eof():
            self._transport.write_eof()
            self._doorman.lingering.add(self)
        else:
            self._transport.close()


class Entrance:
    """The application, as one connection calls it.

    Args:
        app: What to call.
        connection: Whose requests these are.
        door: Answers those who come too late.
    """

    __slots__ = ("_app", "_connection", "_door")

    def __init__(self, app: Any, connection: DoorConnection, door: Door) -> None:
        self._app = app
        self._connection = connection
        self._door = door

    async def __call__(self, scope: Scope, receive: Receive, send: Send, *more: Any) -> Any:
        """Call the application, or let the door answer in its place."""
        refusal = self._connection.entered()
        if refusal is None:
            return await self._app(scope, receive, send, *more)
        await self._door.tell(refusal, scope, receive, send)
        return None
