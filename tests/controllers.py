"""What tests of a controller share: one to test, one who holds a place, the last question."""

from __future__ import annotations

import anyio
from anyio.abc import TaskStatus

from loadgate import (
    AdmissionController,
    Concurrency,
    Permit,
    Policy,
    Queue,
    Rate,
)


def controller(
    limit: int = 1,
    *,
    max_wait: float = 30.0,
    max_queue: float = 1000,
    max_depth: float | None = None,
    rates: list[Rate] | None = None,
) -> AdmissionController:
    return AdmissionController(
        Policy(
            rates=rates or [],
            concurrency=Concurrency("fixed", initial=limit, max=1000),
            queue=Queue(max_wait, max_queue=max_queue, max_depth=max_depth),
        )
    )


def is_idle(gate: AdmissionController) -> bool:
    seen = gate.snapshot()
    return (
        seen.in_flight == seen.waiting == 0
        and seen.arrived == seen.admitted + sum(seen.refused.values()) + seen.left
        and seen.admitted == sum(seen.finished.values())
    )


async def hold(
    gate: AdmissionController, *, task_status: TaskStatus[Permit] = anyio.TASK_STATUS_IGNORED
) -> None:
    async with gate.admit() as permit:
        task_status.started(permit)
        await anyio.sleep_forever()
