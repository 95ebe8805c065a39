"""The port for operators: what it says of health, without a server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from loadgate import AdmissionController, Concurrency, Overloaded, Policy, Queue, Signals
from loadgate.integrations.cli.ops import OpsApp, State
from loadgate.testing import VirtualClock


async def nothing(_: str) -> tuple[bytes, str]:
    return b"", ""


async def ask(app: OpsApp, path: str) -> tuple[int, bytes]:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError

    await app({"type": "http", "method": "GET", "path": path, "headers": []}, receive, send)
    return sent[0]["status"], sent[1]["body"]


@pytest.mark.anyio
async def test_readiness_follows_the_life_of_the_process_and_then_the_controller() -> None:
    answers: Iterator[bool] = iter([True, False, True])
    app = OpsApp(nothing, ready=lambda: next(answers))
    assert await ask(app, "/readyz") == (503, b"starting\n")
    app.state = State.SERVING
    assert await ask(app, "/readyz") == (200, b"serving\n")
    assert await ask(app, "/readyz") == (503, b"overloaded\n")
    assert await ask(app, "/healthz") == (200, b"ok\n")
    assert await ask(app, "/readyz") == (200, b"serving\n")
    app.state = State.DRAINING
    assert await ask(app, "/readyz") == (503, b"draining\n")


@pytest.mark.anyio
async def test_a_service_that_refuses_most_for_five_seconds_is_not_ready() -> None:
    clock = VirtualClock()
    gate = AdmissionController(
        Policy(
            concurrency=Concurrency("fixed", initial=1),
            queue=Queue(max_wait=0.0),
            signals=Signals(max_lag=None),
        ),
        clock=clock,
    )
    app = OpsApp(nothing, ready=gate.ready)
    app.state = State.SERVING
    seen: list[int] = []
    async with gate.admit():
        for _ in range(8):
            clock.advance(1.0)
            for _ in range(3):
                with pytest.raises(Overloaded):
                    gate.try_admit().begin()
            seen.append((await ask(app, "/readyz"))[0])
    assert seen[:3] == [200] * 3
    assert seen[-1] == 503
    for _ in range(8):
        clock.advance(1.0)
        async with gate.admit():
            pass
        seen.append((await ask(app, "/readyz"))[0])
    assert seen[-1] == 200
