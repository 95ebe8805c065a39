"""What does a refusal at the door cost? Processor time of this process, without any client's.

    python -m bench.door

New connections are accepted, read, answered and closed as `loadgate serve` does it while the door
is closed; kept ones are read, answered and kept. Both are real sockets on 127.0.0.1. Compare with
the answers of a bare server, which `bench.server_overload` prints first.
"""

from __future__ import annotations

import asyncio
import socket
import time
from typing import Annotated, Any, Final, cast

import typer

from loadgate import AdmissionController
from loadgate.decisions import Reason, Refuse, Stage
from loadgate.integrations.door import Door
from loadgate.integrations.door_accept import Acceptor
from loadgate.integrations.door_connection import DoorConnection
from loadgate.integrations.door_keeper import Doorman
from loadgate.shedding.door import LATE, DoorRule

# A request as a small client sends it; browsers send four times as much.
REQUEST: Final = (
    b"GET /items/42?page=1 HTTP/1.1\r\nhost: shop.example\r\nuser-agent: bench\r\n"
    b"accept: */*\r\nx-forwarded-for: 198.51.100.7\r\n\r\n"
)
REFUSAL: Final = Refuse(Stage.SHED, Reason.LOOP_LAG, 1.0, 0.25, LATE)

# Connections in one turn of the loop: what comes in 20 ms at 10,000 a second.
BATCH: Final = 200


class Shut(DoorRule):
    """A rule that does its work and refuses in any case while it is closed."""

    def arrive(self, now: float, level: int = 0) -> Refuse | None:
        """Refuse, or not."""
        return super().arrive(now, level) or (REFUSAL if self.closed else None)

    def look(self, now: float, useful: int, paced: bool = False) -> None:
        """Stay as it is."""
        self.due = now + 0.5


class Kept(DoorConnection):
    """A connection that was served before and is idle."""

    def start(self, transport: asyncio.Transport) -> asyncio.Protocol:
        """Serve nothing."""
        return asyncio.Protocol()

    def is_idle(self) -> bool:
        """It is."""
        return True


class Wire:
    """As much of a transport as a refusal needs, on a real socket."""

    def __init__(self, end: socket.socket) -> None:
        self.write = end.send


def measure_new(acceptor: Any, address: Any) -> float:
    """Seconds of this thread for each new connection that is refused."""
    clients: list[socket.socket] = []
    for _ in range(BATCH):
        client = socket.create_connection(address)
        client.sendall(REQUEST)
        clients.append(client)
    began = time.thread_time()
    acceptor.accept()
    spent = time.thread_time() - began
    for client in clients:
        assert client.recv(100).startswith(b"HTTP/1.1 503")
        client.close()
    return spent / BATCH


def measure_kept(doorman: Doorman) -> float:
    """Seconds of this thread for each request on a kept connection that is refused.

    What the event loop needs to read the bytes is left out.
    """
    here, there = socket.socketpair()
    with here, there:
        connection = Kept(doorman)
        connection.connection_made(cast(asyncio.BaseTransport, Wire(here)))
        doorman.door.rule.closed = False
        connection.data_received(REQUEST)
        connection.busy = False
        doorman.door.rule.closed = True
        spent = 0.0
        for _ in range(BATCH):
            began = time.thread_time()
            connection.data_received(REQUEST)
            spent += time.thread_time() - began
            assert there.recv(65536).startswith(b"HTTP/1.1 503")
    return spent / BATCH


async def run(rounds: int) -> None:
    """Print both."""
    door = Door(AdmissionController())
    door.rule = Shut()
    door.ask(REQUEST)  # it has looked at its policy now
    door.rule.closed = True
    doorman = Doorman(door, 60.0)
    listener = socket.create_server(("127.0.0.1", 0))
    address = listener.getsockname()
    acceptor = Acceptor(listener, door, lambda: Kept(doorman), BATCH)
    try:
        new = min(measure_new(acceptor, address) for _ in range(rounds))
        kept = min(measure_kept(doorman) for _ in range(rounds))
    finally:
        acceptor.close()
        doorman.stop()
    for what, seconds in (("new", new), ("kept", kept)):
        print(f"{what} connections: {seconds * 1e6:.1f} us, {1 / seconds:,.0f} per CPU second")


def main(
    rounds: Annotated[int, typer.Option(min=1, help="The best of so many is printed.")] = 20,
) -> None:
    """Measure what refusing at the door costs."""
    asyncio.run(run(rounds))


if __name__ == "__main__":
    typer.run(main)
