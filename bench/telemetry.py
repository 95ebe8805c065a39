"""What does watching cost? Telemetry's part of a request, and how long a scrape stops the loop.

    python -m bench.telemetry

Three questions, three answers:

- What share of an admitted request are the statements that count it?
- While requests are admitted, the page of metrics is rendered again and again: how long do the
  turns of the event loop become, beside a loop that does the same without rendering? In wall
  time and in the CPU time of the thread: what is long in the first alone is the machine, which
  gave the processor to somebody else.
- How many series does a controller have?
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from bisect import bisect_left
from typing import NamedTuple

import anyio
import anyio.lowlevel
import msgspec
from prometheus_client import CollectorRegistry

from loadgate import AdmissionController, Policy, Rate
from loadgate.decisions import Outcome, Reason, Refuse, Stage
from loadgate.integrations.console.status import status_of
from loadgate.integrations.decision_timer import DecisionTimer
from loadgate.integrations.prometheus import LoadgateCollector, MetricsPage
from loadgate.integrations.witness import Witness
from loadgate.telemetry import Telemetry

POLICY = Policy(rates=[Rate("per-client", limit=1e9, per=1.0, burst=1e9)])
# Short slices, so that whatever else the machine does spoils some of them and not the fastest.
SLICE = 400
TURNS = 20_000


async def admitted(controller: AdmissionController, count: int) -> float:
    """Seconds per admitted request."""
    began = time.perf_counter()
    for _ in range(count):
        async with controller.admit("a"):
            pass
    return (time.perf_counter() - began) / count


async def cost_of_parts(repeats: int) -> dict[str, float]:
    """Fastest slice of each, in seconds per request, taken in turns."""
    plain = AdmissionController(POLICY)
    timed = AdmissionController(POLICY)
    DecisionTimer(timed)
    telemetry = plain.telemetry
    best = {"admitted": 1e9, "with decisions timed": 1e9, "counters": 1e9, "loop": 1e9}
    async with plain, timed:
        for _ in range(repeats):
            gc.collect()
            best["admitted"] = min(best["admitted"], await admitted(plain, SLICE))
            best["with decisions timed"] = min(
                best["with decisions timed"], await admitted(timed, SLICE)
            )
            # Each by itself: noise in the empty loop alone would make the difference too small.
            counting, empty = counters(telemetry)
            best["counters"] = min(best["counters"], counting)
            best["loop"] = min(best["loop"], empty)
    best["counters alone"] = best["counters"] - best["loop"]
    return best


def counters(telemetry: Telemetry) -> tuple[float, float]:
    """Seconds of a loop over the statements with which admission counts, and of an empty one.

    They are written out there, because a call would cost as much as they do; so they are
    written out here, in the same order.
    """
    outcome = Outcome.SUCCESS
    level = 1
    places, in_flight = int(telemetry.limit_seconds) + 1000, telemetry.peak or 1
    times = range(SLICE)
    began = time.perf_counter()
    for _ in times:
        # start
        telemetry.started += 1.0
        telemetry.admitted[level] += 1
        if in_flight > telemetry.peak:
            telemetry.peak = in_flight
        if in_flight == places:
            telemetry.full_since = 1.0
        # finish
        telemetry.started -= 1.0
        telemetry.held += 1e-5
        telemetry.finished[outcome] += 1
        histogram = telemetry.latency
        histogram.counts[bisect_left(histogram.edges, 1e-5)] += 1
        histogram.sum += 1e-5
    spent = time.perf_counter() - began
    began = time.perf_counter()
    for _ in times:
        pass
    return spent / SLICE, (time.perf_counter() - began) / SLICE


class Turns(NamedTuple):
    """Lengths of turns of the event loop in seconds."""

    wall: list[float]
    cpu: list[float]


async def turns(controller: AdmissionController, page: MetricsPage | None, into: Turns) -> None:
    """Admit requests, while `page` is rendered if there is one, and note how long turns are."""
    over = anyio.Event()

    async def beside(page: MetricsPage) -> None:
        while not over.is_set():
            await page.render("")
            await anyio.sleep(0.001)

    async with anyio.create_task_group() as group:
        if page is not None:
            group.start_soon(beside, page)
        wall, cpu = time.perf_counter(), time.thread_time()
        for _ in range(TURNS):
            async with controller.admit("a"):
                await anyio.lowlevel.checkpoint()
            now, spent = time.perf_counter(), time.thread_time()
            into.wall.append(now - wall)
            into.cpu.append(spent - cpu)
            wall, cpu = now, spent
        over.set()


def whole() -> tuple[AdmissionController, CollectorRegistry]:
    """A controller with everything there is to watch it."""
    controller = AdmissionController(POLICY)
    witness = Witness(logs=False, top=10)
    for number in range(100):
        refusal = Refuse(Stage.RATE, Reason.RATE, 1.0, subject="per-client")
        witness.refused(refusal, f"client-{number % 20}", 429, controller.clock())
    registry = CollectorRegistry()
    registry.register(
        LoadgateCollector(controller, witness=witness, decisions=DecisionTimer(controller))
    )
    return controller, registry


async def scrapes(rounds: int) -> None:
    """Print the turns of the loop with and without rendering."""
    controller, registry = whole()
    quiet, scraped = Turns([], []), Turns([], [])
    gc.collect()
    gc.freeze()  # what the imports left behind is not this bench's garbage
    async with controller:
        for _ in range(rounds):
            await turns(controller, None, quiet)
            await turns(controller, MetricsPage(registry), scraped)
    print(f"\n{'turns of the loop, ms':38}{'median':>9}{'p99.9':>9}{'worst':>9}{'> 1 ms':>9}")
    for name, lengths in (
        ("CPU time, nothing else", quiet.cpu),
        ("CPU time, a scrape all the time", scraped.cpu),
        ("wall time, nothing else", quiet.wall),
        ("wall time, a scrape all the time", scraped.wall),
    ):
        lengths.sort()
        long = sum(length > 1e-3 for length in lengths)
        print(
            f"{name:38}{statistics.median(lengths) * 1e3:9.3f}"
            f"{lengths[int(len(lengths) * 0.999)] * 1e3:9.3f}{lengths[-1] * 1e3:9.3f}{long:9}"
        )
    print(f"of {len(quiet.cpu)} turns each")


def live_views() -> tuple[float, float]:
    """Seconds for one look of a live view, and for one refusal that is remembered."""
    controller, _ = whole()
    witness = Witness(logs=False)
    refusal = Refuse(Stage.LIMIT, Reason.QUEUE_FULL, 1.0, 9.0, 8.0)
    looks: list[float] = []
    refusals: list[float] = []
    for round_ in range(50):
        began = time.thread_time()
        msgspec.json.encode(status_of(controller, witness))
        looks.append(time.thread_time() - began)
        began = time.thread_time()
        for number in range(SLICE):
            # As many clients as an attack has: each comes once.
            witness.refused(refusal, f"{round_}-{number}", 503, 0.0)
        refusals.append((time.thread_time() - began) / SLICE)
    return min(looks), min(refusals)


def longest_step(registry: CollectorRegistry) -> float:
    """Seconds of the longest step of a scrape between two turns of the loop, the best of 20 tries.

    A pause of the machine hits one try or another; what is long in every try is ours.
    """
    best: dict[int, float] = {}

    async def once() -> None:
        last = time.perf_counter()
        step = 0
        done = False

        async def watch() -> None:
            nonlocal last, step
            while not done:
                now = time.perf_counter()
                best[step] = min(best.get(step, 1e9), now - last)
                last = now
                step += 1
                await anyio.lowlevel.checkpoint()

        async with anyio.create_task_group() as group:
            group.start_soon(watch)
            await anyio.lowlevel.checkpoint()
            await MetricsPage(registry).render("")
            done = True

    for _ in range(20):
        anyio.run(once)
    return max(best.values())


def main() -> None:
    """Measure and print."""
    reader = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    reader.add_argument("--quick", action="store_true", help="a fraction of the time")
    quick = reader.parse_args().quick
    best = anyio.run(cost_of_parts, 30 if quick else 400)
    print(f"{'one admitted request':28}{best['admitted'] * 1e6:10.3f} µs")
    share = best["counters alone"] / best["admitted"]
    print(f"{'  of it counting':28}{best['counters alone'] * 1e6:10.3f} µs   {share:.1%}")
    more = best["with decisions timed"] - best["admitted"]
    print(f"{'timing decisions adds':28}{more * 1e6:10.3f} µs")
    _, registry = whole()
    series = sum(len(family.samples) for family in registry.collect())
    print(f"{'series of a controller':28}{series:10}")
    look, refused = live_views()
    print(f"{'a refusal remembered':28}{refused * 1e6:10.3f} µs")
    print(f"{'a look of a live view':28}{look * 1e3:10.3f} ms")
    anyio.run(scrapes, 1 if quick else 5)
    print(f"the longest step of a scrape by itself: {longest_step(registry) * 1e3:.3f} ms")


if __name__ == "__main__":
    main()
