"""Policies with shared rates, for tests."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import anyio

from loadgate import AdmissionController, Concurrency, Overloaded, Policy, Queue, Rate, RateLimited
from loadgate.policy import Signals
from loadgate.shared import Store

SECRET = "a secret of the tests only"

# Every test has keys of its own on a server that many share.
_numbers = count()

# Seconds. The machine may be busy, and what is tested is not how fast it is.
PATIENT = 1.0


def shared(
    url: str,
    *rates: Rate | str,
    concurrency: Concurrency | None = None,
    queue: Queue | None = None,
    **store: Any,
) -> Policy:
    """A policy whose rates live in the store at `url`."""
    made = [
        rate if isinstance(rate, Rate) else Rate(f"rate-{position}", rate, shared=True)
        for position, rate in enumerate(rates)
    ]
    settings: dict[str, Any] = {
        "budget": PATIENT,
        "prefix": f"test{next(_numbers)}",
        "secret": SECRET,
        **store,
    }
    return Policy(
        rates=made,
        concurrency=concurrency or Concurrency(algorithm="fixed", initial=1000),
        queue=queue or Queue(),
        signals=Signals(max_lag=None),
        store=Store(url=url, **settings),
    )


@asynccontextmanager
async def several(policy: Policy, number: int) -> AsyncGenerator[list[AdmissionController]]:
    """As many controllers as there would be processes, each with a connection of its own."""
    async with AsyncStack() as stack:
        yield [await stack.enter(AdmissionController(policy)) for _ in range(number)]


class AsyncStack:
    """Controllers, left in the opposite order."""

    def __init__(self) -> None:
        self._entered: list[AdmissionController] = []

    async def __aenter__(self) -> AsyncStack:
        return self

    async def enter(self, controller: AdmissionController) -> AdmissionController:
        await controller.__aenter__()
        self._entered.append(controller)
        return controller

    async def __aexit__(self, *_: object) -> None:
        for controller in reversed(self._entered):
            await controller.__aexit__(None, None, None)


async def admitted(
    controller: AdmissionController, client: Any, times: int = 1, cost: float = 1.0
) -> int:
    """How many of so many requests, one after the other, no rate refused."""
    number = 0
    for _ in range(times):
        try:
            async with controller.admit(client=client, cost=cost):
                number += 1
        except RateLimited:
            pass
    return number


async def admitted_together(
    controllers: Sequence[AdmissionController], client: Any, times: int
) -> int:
    """Likewise, of so many requests to each of the controllers, all at once."""
    numbers: list[int] = []

    async def hammer(controller: AdmissionController) -> None:
        numbers.append(await admitted(controller, client, times))

    async with anyio.create_task_group() as group:
        for controller in controllers:
            group.start_soon(hammer, controller)
    return sum(numbers)


async def until(what: str, done: Any) -> None:
    """Wait until `done()`; it must become true, however busy the machine is."""
    with anyio.move_on_after(20):
        while not done():  # noqa: ASYNC110  # what is awaited happens in another process
            await anyio.sleep(0.005)
        return
    raise AssertionError(f"{what} did not happen")


async def ask(controller: AdmissionController, client: str = "a") -> str:
    """Who decided, or why it was refused."""
    try:
        async with controller.admit(client=client) as permit:
            return permit.charge.source if permit.charge is not None else "none"
    except RateLimited:
        return "429"
    except Overloaded as error:
        return str(error.reason)
