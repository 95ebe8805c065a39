"""No permit is ever lost, whatever applications, clients and servers do."""

from __future__ import annotations

import random
from typing import Any

import anyio
import pytest

from loadgate.integrations.asgi import AdmissionMiddleware
from tests.integrations.asgi_client import Exchange, controller, scope, upload

ROUNDS = 1200


def application(dice: random.Random) -> Any:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        for _ in range(dice.randint(0, 5)):
            match dice.randint(0, 11):
                case 0 | 1:
                    await anyio.sleep(dice.random() * 0.002)
                case 2 | 3:
                    with anyio.move_on_after(dice.random() * 0.001):
                        await receive()
                case 4 | 5:
                    status = dice.choice([200, 200, 404, 500, 503])
                    await send({"type": "http.response.start", "status": status, "headers": []})
                case 6:
                    await send({"type": "http.response.body", "body": b"x", "more_body": True})
                case 7 | 8:
                    await send({"type": "http.response.body", "body": b"x"})
                case 9:
                    raise dice.choice([ValueError("app"), TimeoutError(), OSError()])
                case 10:
                    await send({"type": "http.response.start", "status": 200, "trailers": True})
                    await send({"type": "http.response.trailers", "headers": []})
                case _:
                    async with anyio.create_task_group() as group:
                        group.start_soon(anyio.sleep, 0.0005)

    return app


async def client(dice: random.Random, exchange: Exchange) -> None:
    for _ in range(dice.randint(0, 4)):
        exchange.body(b"x" * dice.randint(0, 3000), more=True)
        if dice.random() < 0.5:
            await anyio.sleep(dice.random() * 0.002)
    if dice.random() < 0.8:
        exchange.body(b"end")
    await anyio.sleep(dice.random() * 0.004)
    exchange.leave()  # sooner or later every client does


async def one(dice: random.Random, layer: AdmissionMiddleware) -> None:
    version = dice.choice(["1.1", "2"])
    fields = upload(None, http_version=version) if dice.random() < 0.7 else scope()
    if dice.random() < 0.1:
        fields["headers"].append((b"expect", b"100-continue"))
    exchange = Exchange(layer, fields)
    patience = dice.random() * 0.01 if dice.random() < 0.2 else 5.0
    async with anyio.create_task_group() as group:
        group.start_soon(client, dice, exchange)
        try:
            with anyio.move_on_after(patience):  # a server that shuts down
                await exchange()
        except (ValueError, TimeoutError, OSError):
            pass


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.anyio
async def test_random_applications_and_clients_lose_no_permit(seed: int) -> None:
    dice = random.Random(seed)
    gate = controller(3, max_wait=0.003, max_queue=20, max_depth=40)
    layer = AdmissionMiddleware(
        application(dice),
        gate,
        max_buffer=2000,
        max_buffers=20_000,
        max_drain=2000,
        max_drain_time=0.002,
        finish_uploads=seed == 2,
    )
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            for _ in range(ROUNDS):
                group.start_soon(one, dice, layer)
                if dice.random() < 0.5:
                    await anyio.sleep(0.0002)
    snapshot = gate.snapshot()
    assert (snapshot.in_flight, snapshot.waiting) == (0, 0)
    assert snapshot.arrived == ROUNDS
    assert sum(snapshot.finished.values()) == snapshot.admitted
    assert snapshot.admitted + sum(snapshot.refused.values()) + snapshot.left == ROUNDS
    assert snapshot.admitted > ROUNDS / 20
    assert min(sum(snapshot.refused.values()), snapshot.left) > 0
    assert layer._buffers.used == 0  # pyright: ignore[reportPrivateUsage]  # nothing else shows a leak
    with gate.try_admit(), gate.try_admit(), gate.try_admit():
        pass
