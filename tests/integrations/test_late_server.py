"""Handlers that compute, behind real servers: who came meanwhile is taken in before the next."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import Any, Final

from loadgate import AdmissionController, Concurrency, Policy, Queue, Signals
from tests.integrations.every_server import every, stage
from tests.integrations.serving import Http1, Service, until

COMPUTES: Final = 0.05
CLIENTS: Final = 6


class Computing(Service):
    """`/compute` stands still and writes down how many were waiting when it began."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = AdmissionController(
            Policy(
                concurrency=Concurrency("fixed", initial=50),
                queue=Queue(30.0, max_queue=100),
                # A loop is late from a tenth of it on; so much is a machine that stands still.
                signals=Signals(max_lag=0.4),
            )
        )
        self.waited: list[int] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope.get("path") == "/compute":
            self.waited.append(self.gate.snapshot().waiting)
            time.sleep(COMPUTES)  # noqa: ASYNC251  # it is what holds up the loop
        await super().__call__(scope, receive, send)


@every
def test_all_who_came_while_a_handler_computed_are_taken_in_before_the_next_begins(
    kind: str,
) -> None:
    service = Computing()
    with stage(kind, service.gate, service) as here, ExitStack() as connections:
        first, *others = [connections.enter_context(Http1(here.port)) for _ in range(CLIENTS)]
        assert first.get("/compute")[0] == 200
        until(lambda: service.gate.snapshot().paced)
        service.waited.clear()
        first.send(first.head("GET", "/compute", None))
        until(lambda: len(service.waited) == 1)
        for other in others:
            other.send(other.head("GET", "/compute", None))
        assert {client.read()[0] for client in (first, *others)} == {200}
    assert service.waited == [0, 4, 3, 2, 1, 0]
