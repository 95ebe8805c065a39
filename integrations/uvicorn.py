"""How does Uvicorn serve behind a door? With a protocol class that asks before anything is parsed.

    uvicorn.run(AdmissionMiddleware(app, controller), http=door_protocol(Door(controller)))

Uvicorn accepts by itself. On asyncio's loop it takes all connections that wait, so that the door
meets them; uvloop takes one in each turn, and handlers that burn CPU leave the others in the
kernel's queue, where the door cannot refuse them. Kept connections are met on both.
"""

from __future__ import annotations

import asyncio
import importlib
from importlib.util import find_spec
from typing import Any, Literal

from loadgate.decisions import Refuse
from loadgate.integrations.door import Door
from loadgate.integrations.door_connection import DoorConnection, Entrance
from loadgate.integrations.door_keeper import Doorman

_IMPLEMENTATIONS = {"httptools": "HttpToolsProtocol", "h11": "H11Protocol"}


def door_protocol(
    door: Door, implementation: Literal["auto", "httptools", "h11"] = "auto"
) -> type[asyncio.Protocol]:
    """Make what goes into ``uvicorn.Config(http=...)``.

    Args:
        door: Who may come in.
        implementation: Uvicorn's protocol behind the door; ``auto`` takes httptools if it is
            installed.

    Raises:
        ValueError: There is no such implementation.
    """
    if implementation == "auto":
        implementation = "httptools" if find_spec("httptools") else "h11"
    if implementation not in _IMPLEMENTATIONS:
        raise ValueError(f"implementation: {implementation!r} is none of auto, httptools, h11")
    module = importlib.import_module(f"uvicorn.protocols.http.{implementation}_impl")
    base: Any = getattr(module, _IMPLEMENTATIONS[implementation])
    is_idle = _idle_httptools if implementation == "httptools" else _idle_h11
    doormen: dict[Any, Doorman] = {}

    class Inner(base):  # type: ignore[misc]  # looked up by name
        outer: _Connection

        def handle_websocket_upgrade(self, *arguments: Any) -> None:
            # The connection goes to another protocol, which does not call our application.
            self.outer.uncounted()
            upgrade: Any = super()
            upgrade.handle_websocket_upgrade(*arguments)

    class Protocol(_Connection):
        def __init__(self, config: Any, server_state: Any, app_state: Any, _loop: Any = None):
            doorman = doormen.get(server_state)
            if doorman is None:
                doorman = doormen[server_state] = Doorman(door, config.timeout_keep_alive)
            super().__init__(doorman, server_state)
            self._arguments = config, server_state, app_state, _loop

        def start(self, transport: asyncio.Transport) -> asyncio.Protocol:
            self.server_state.connections.discard(self)
            inner = self.inner = Inner(*self._arguments)
            inner.outer = self
            inner.app = Entrance(inner.app, self, door)
            inner.connection_made(transport)
            protocol: asyncio.Protocol = inner
            return protocol

        def is_idle(self) -> bool:
            return is_idle(self.inner)

    return Protocol


class _Connection(DoorConnection):
    """A connection to Uvicorn, which knows of it only while it stands at the door."""

    def __init__(self, doorman: Doorman, server_state: Any) -> None:
        super().__init__(doorman)
        self.server_state = server_state
        self.inner: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.server_state.connections.add(self)
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.server_state.connections.discard(self)
        super().connection_lost(exc)

    def entered(self) -> Refuse | None:
        self.busy = False  # from here on Uvicorn's own state tells
        return super().entered()

    def shutdown(self) -> None:
        """Uvicorn stops: whoever has not asked for anything yet is closed."""
        self.abort()


def _idle_httptools(inner: Any) -> bool:
    cycle = inner.cycle
    # An upload that was answered early is read to its end, which only the parser would see.
    return bool(cycle.response_complete) and not cycle.more_body and not inner.pipeline


def _idle_h11(inner: Any) -> bool:
    connection = inner.conn
    return (
        connection.our_state is connection.their_state
        and str(connection.our_state) == "IDLE"
        and not connection.trailing_data[0]
    )
