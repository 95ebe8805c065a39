"""What does one admission cost, beside the gates that asyncio and anyio bring along?

Every figure is a ratio to `async with asyncio.Semaphore`, taken in the same run: the cases
take turns, round after round, and the median round counts. It shows the cost of the
uncontended path in one process; it does not show waiting, nor what the handler does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

import anyio

from loadgate import AdmissionController, Concurrency, Policy, Queue, Rate, Rejected, Signals

ROUNDS = 25
OPERATIONS = 5_000

# In a service the loop turns between requests. Here one task admits for 15 ms without a break, so
# the loop is late, and after that requests would be paced.
UNWATCHED = Signals(max_lag=None)

Case = Callable[[int], Awaitable[None]]


def entering(make: Callable[[], object]) -> Case:
    """A case that enters and leaves what `make` returns, once for each operation."""

    async def run(operations: int) -> None:
        for _ in range(operations):
            async with make():  # type: ignore[attr-defined]  # pyright: ignore[reportGeneralTypeIssues]  # any async context manager
                pass

    return run


def refused(make: Callable[[], object]) -> Case:
    """A case whose every entry is refused, once the first has spent what there was."""

    async def run(operations: int) -> None:
        with suppress(Rejected):
            async with make():  # type: ignore[attr-defined]  # pyright: ignore[reportGeneralTypeIssues]  # any async context manager
                pass
        for _ in range(operations):
            try:
                async with make():  # type: ignore[attr-defined]  # pyright: ignore[reportGeneralTypeIssues]  # any async context manager
                    raise AssertionError("it must be refused")
            except Rejected:
                pass

    return run


def controller(algorithm: str = "adaptive", rate: str = "") -> AdmissionController:
    """A controller with at most one token bucket."""
    rates = [Rate("per-client", rate)] if rate else []
    return AdmissionController(
        Policy(rates=rates, concurrency=Concurrency(algorithm), signals=UNWATCHED)
    )


def cases() -> dict[str, Case]:
    """What is measured, by name; the first is the unit."""
    semaphore, limiter = asyncio.Semaphore(100), anyio.CapacityLimiter(100)
    full = controller("adaptive", "1000000/second")
    places_only = controller("fixed")
    adaptive_only = controller("adaptive")
    greedy = controller("adaptive", "1/day")
    closed = AdmissionController(
        Policy(
            concurrency=Concurrency("fixed", max=1),
            queue=Queue(0, max_queue=0),
            signals=UNWATCHED,
        )
    )
    holder = closed.admit()

    async def full_service(operations: int) -> None:
        if not closed.admission.in_flight:
            holder.begin()
        await refused(closed.admit)(operations)

    return {
        "asyncio.Semaphore": entering(lambda: semaphore),
        "anyio.CapacityLimiter": entering(lambda: limiter),
        "admit: token bucket, adaptive": entering(lambda: full.admit(client="a")),
        "admit: adaptive": entering(lambda: adaptive_only.admit(client="a")),
        "admit: fixed": entering(lambda: places_only.admit(client="a")),
        "refused: 429": refused(lambda: greedy.admit(client="a")),
        "refused: 503": full_service,
    }


async def measure(rounds: int, operations: int) -> dict[str, float]:
    """Nanoseconds of CPU time for one operation of each case, median of the rounds."""
    seen: dict[str, list[float]] = {}
    everything = cases()
    for round_number in range(rounds + 1):
        for name, case in everything.items():
            count = operations // 10 if name.startswith("anyio") else operations
            begun = time.process_time()
            await case(count)
            spent = time.process_time() - begun
            if round_number:  # the first warms up
                seen.setdefault(name, []).append(spent / count * 1e9)
            await asyncio.sleep(0.01)  # let the loop's ticks come, as in a real service
    return {name: statistics.median(values) for name, values in seen.items()}


def report(figures: dict[str, float]) -> str:
    """The figures as a table, with the bounds that hold."""
    unit = figures["asyncio.Semaphore"]
    lines = [f"{'case':32} {'ns':>8} {'x Semaphore':>12}"]
    lines += [f"{name:32} {ns:8.0f} {ns / unit:12.2f}" for name, ns in figures.items()]
    admitted = figures["admit: token bucket, adaptive"]
    lines += [
        "",
        f"admitted / asyncio.Semaphore      {admitted / unit:6.2f}  (bound 4.0)",
        f"admitted / anyio.CapacityLimiter  {admitted / figures['anyio.CapacityLimiter']:6.2f}"
        "  (bound 0.5)",
        f"429 / admitted                    {figures['refused: 429'] / admitted:6.2f}  (bound 1.0)",
        f"503 / admitted                    {figures['refused: 503'] / admitted:6.2f}  (bound 1.0)",
    ]
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--operations", type=int, default=OPERATIONS)
    parser.add_argument("--json", action="store_true", help="print nanoseconds as JSON")
    chosen = parser.parse_args()
    figures = asyncio.run(measure(chosen.rounds, chosen.operations))
    print(json.dumps(figures, indent=2) if chosen.json else report(figures))


if __name__ == "__main__":
    main()
