"""Who takes connections from the kernel? All that wait, in one turn of the event loop.

uvloop accepts one connection in each turn. While a handler burns 20 ms that is 50 connections a
second; the others grow old in the kernel's queue, where no rule sees them, and by the time they
are accepted their clients have left. A door can only refuse whom it has met.

While the door is closed, a connection whose request has come already (it has, when it waited) is
answered on the bare socket: no transport, no task, no event of the loop. Before TLS there is
nothing to read and no way to answer, so the handshake passes, which costs more than everything
else, unless the door drops those whom it refuses: then they are closed before it.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from loadgate.decisions import Refuse
from loadgate.integrations.door import Door
from loadgate.integrations.door_connection import DoorConnection
from loadgate.integrations.door_head import head_end, read_head

log = logging.getLogger("loadgate.door")

# Connections taken in one turn at most, so that those inside get theirs.
_A_TURN: Final = 256

# The kernel's queue: what is offered in 0.2 s at 5,000 connections a second. A connection that
# finds it full is not refused but left to time out (Linux drops the SYN).
BACKLOG: Final = 1024

# Seconds without accepting after the process has run out of descriptors (asyncio waits as long).
_PAUSE: Final = 1.0

_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

_READ: Final = 64 * 1024

# The answer waits for the end of the stream, which comes with closing: one packet for two, where
# the system can do it.
_MORE: Final[int] = getattr(socket, "MSG_MORE", 0)


class Acceptor:
    """Accepts on one listening socket for as long as it is open.

    Args:
        listener: A bound socket.
        door: Who may come in.
        connection: Makes the protocol of a connection.
        backlog: Length of the kernel's queue.
        tls: What secures connections, None for nothing.
        handshake_timeout: Seconds for the handshake, None for asyncio's own bound (60 s).
    """

    def __init__(
        self,
        listener: socket.socket,
        door: Door,
        connection: Callable[[], DoorConnection],
        backlog: int,
        *,
        tls: ssl.SSLContext | None = None,
        handshake_timeout: float | None = None,
    ) -> None:
        self._listener = listener
        self._tls = tls
        self._handshake_timeout = handshake_timeout if tls is not None else None
        self._door = door
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._coming: set[asyncio.Task[object]] = set()
        self._pause: asyncio.TimerHandle | None = None
        listener.setblocking(False)
        listener.listen(max(backlog, BACKLOG))
        self._loop.add_reader(listener, self.accept)

    def close(self) -> None:
        """Stop listening."""
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._listener)
        self._listener.close()

    def accept(self) -> None:
        """Take all connections that wait, up to a bound."""
        for _ in range(_A_TURN):
            try:
                peer, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                log.error("connections wait for %g s: %s", _PAUSE, error.strerror)
                self._loop.remove_reader(self._listener)
                self._pause = self._loop.call_later(_PAUSE, self._resume)
                return
            peer.setblocking(False)
            self._meet(peer)

    def _resume(self) -> None:
        self._pause = None
        self._loop.add_reader(self._listener, self.accept)

    def _meet(self, peer: socket.socket) -> None:
        connection = self._connection()
        if self._tls is not None:
            if self._door.mode == "drop" and self._is_dropped(peer, connection):
                return
        elif self._door.rule.closed:
            try:
                data = peer.recv(_READ)
            except (BlockingIOError, InterruptedError):
                pass  # nothing has come yet
            except OSError:
                peer.close()
                return
            else:
                if not data:  # the client has left already
                    peer.close()
                    return
                connection.seen = data
                if self._is_answered(peer, connection, data):
                    return
        task: asyncio.Task[object] = self._loop.create_task(self._let_in(connection, peer))
        self._coming.add(task)
        task.add_done_callback(self._coming.discard)

    def _is_dropped(self, peer: socket.socket, connection: DoorConnection) -> bool:
        """Decide before the handshake: nobody can say which path will be asked for."""
        if not self._door.rule.closed:
            return False
        verdict = self._door.ask(b"")
        if not isinstance(verdict, Refuse):
            connection.verdict = verdict
            return False
        self._door.drop(verdict, b"")
        peer.close()
        return True

    def _is_answered(self, peer: socket.socket, connection: DoorConnection, data: bytes) -> bool:
        """Refuse the simplest of all requests here; others need a transport, even to be refused."""
        length = head_end(data)
        if length != len(data) or data.startswith(b"PRI ") or self._door.mode != "answer":
            return False
        verdict = self._door.ask(data)
        if not isinstance(verdict, Refuse):
            connection.verdict = verdict
            return False
        if read_head(data).body != 0:
            connection.verdict = verdict
            return False
        with suppress(OSError):  # it left, or reads nothing: then nobody misses the answer
            peer.send(self._door.answer(verdict, data, close=True), _MORE)
        # Nothing is unread, so closing sends the answer with the end of the stream and no reset.
        peer.close()
        return True

    async def _let_in(self, connection: DoorConnection, peer: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(
                lambda: connection,
                peer,
                ssl=self._tls,
                ssl_handshake_timeout=self._handshake_timeout,
            )
        except OSError:  # it left, or TLS did not come about
            connection.uncounted()
            peer.close()
