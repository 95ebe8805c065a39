"""Which servers are tested, by name, and how does one stand in front of a service?"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import pytest

from loadgate import AdmissionController
from loadgate.integrations.asgi import AdmissionMiddleware
from tests.integrations.other_servers import Granian, Uvicorn
from tests.integrations.serving import WORKERS, Server, Service, Stage

HYPERCORN: Final[dict[str, Callable[[Any], Any]]] = {
    f"hypercorn-{worker}": partial(Server, worker=worker) for worker in WORKERS
}
OTHERS: Final[dict[str, Callable[[Any], Any]]] = {
    "uvicorn-httptools": Uvicorn,
    "uvicorn-h11": partial(Uvicorn, http="h11", loop="asyncio"),
    "granian": Granian,
}
SERVERS: Final = HYPERCORN | OTHERS

every = pytest.mark.parametrize("kind", SERVERS)
hypercorn = pytest.mark.parametrize("kind", HYPERCORN)
others = pytest.mark.parametrize("kind", OTHERS)


@contextmanager
def stage(
    kind: str, gate: AdmissionController, service: Service | None = None, **settings: Any
) -> Generator[Stage]:
    """A server of that kind, which holds no place any more when the block is left.

    Args:
        kind: One of `SERVERS`.
        gate: Who admits.
        service: What stands behind the middleware.
        **settings: Of the middleware.
    """
    service = service or Service()
    with SERVERS[kind](AdmissionMiddleware(service, gate, **settings)) as server:
        try:
            yield Stage(server, service, gate)
        finally:
            service.may_answer.set()
    assert gate.admission.in_flight == gate.admission.room.depth == 0
