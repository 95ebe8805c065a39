"""What does a limit cost per request? One `on_admit` and one `on_finish`, beside a bare call.

    python -m bench.limit_cost                   # prints the table

The requests are those of a full service: 400 answers a second, 28 at once, so that every
algorithm also does the thinking that it does once per window. Times are the best of several
runs, in nanoseconds of this process.
"""

from __future__ import annotations

import gc
import random
import time
from typing import Final

from loadgate.decisions import Outcome
from loadgate.limits import ALGORITHMS, PUBLISHED, Limit, create

REQUESTS: Final = 100_000
RUNS: Final = 5


class _Bare:
    """Two methods with the same arguments that do nothing: the price of being called."""

    __slots__ = ()

    def on_admit(self, now: float, in_flight: int) -> None:
        """Do nothing."""

    def on_finish(
        self,
        now: float,
        latency: float,
        in_flight: int,
        outcome: Outcome,
        held: float | None = None,
    ) -> None:
        """Do nothing."""


def samples() -> list[tuple[float, float, int]]:
    """Moments, latencies and numbers in flight of a full service of 400 a second."""
    draw = random.Random(42)
    now = 0.0
    found: list[tuple[float, float, int]] = []
    for _ in range(REQUESTS):
        now += draw.expovariate(400.0)
        found.append((now, draw.gammavariate(4.0, 0.07 / 4.0), 28))
    return found


def measure(limit: Limit | _Bare, requests: list[tuple[float, float, int]]) -> float:
    """Nanoseconds of one pair of calls, the loop around them included."""
    admit, finish, success = limit.on_admit, limit.on_finish, Outcome.SUCCESS
    for in_flight in range(1, 28):
        admit(0.0, in_flight)
    started = time.perf_counter_ns()
    for now, latency, in_flight in requests:
        admit(now, in_flight)
        finish(now, latency, in_flight, success)
    return (time.perf_counter_ns() - started) / len(requests)


def empty_loop(requests: list[tuple[float, float, int]]) -> float:
    """Nanoseconds of the loop alone."""
    started = time.perf_counter_ns()
    for _now, _latency, _in_flight in requests:
        pass
    return (time.perf_counter_ns() - started) / len(requests)


def main() -> None:
    """Print a table, cheapest first."""
    requests = samples()
    gc.disable()
    loop = min(empty_loop(requests) for _ in range(RUNS))
    found = {"(bare calls)": min(measure(_Bare(), requests) for _ in range(RUNS)) - loop}
    for name in ALGORITHMS:
        runs = [measure(create(name, **PUBLISHED[name]), requests) for _ in range(RUNS)]
        found[name] = min(runs) - loop
    bare = found["(bare calls)"]
    print("| limit | on_admit + on_finish, ns | beside bare calls |")
    print("|---|---|---|")
    for name, cost in sorted(found.items(), key=lambda item: item[1]):
        print(f"| {name} | {cost:.0f} | {cost / bare:.1f} x |")


if __name__ == "__main__":
    main()
