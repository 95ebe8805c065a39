"""A clock that steps back stops nothing: time goes on from where it was."""

from __future__ import annotations

import random
import time
from itertools import pairwise

import pytest

from loadgate import (
    AdmissionController,
    Concurrency,
    Permit,
    Policy,
    Queue,
    Rate,
    RateLimited,
    Rejected,
    Snapshot,
)
from loadgate.steady import SteadyClock, steady
from loadgate.testing import Draws, VirtualClock

pytestmark = pytest.mark.anyio

HOUR = 3600.0


def test_a_monotonic_clock_is_read_as_it_is() -> None:
    assert steady(time.monotonic) is time.monotonic
    assert steady(time.perf_counter) is time.perf_counter


def test_time_goes_on_from_where_a_clock_stepped_back() -> None:
    clock = VirtualClock(5000.0)
    seconds = SteadyClock(clock)
    assert seconds() == 5000.0
    clock.advance(1.0)
    assert seconds() == 5001.0
    clock.step(-HOUR)
    assert seconds() == 5001.0
    clock.advance(2.0)
    assert seconds() == 5003.0
    clock.step(-HOUR)
    clock.advance(1.0)  # which nobody could see: it is lost
    assert seconds() == 5003.0
    clock.advance(0.5)
    assert seconds() == 5003.5


def test_a_clock_a_moment_behind_has_not_stepped_back() -> None:
    """Two threads may read it at once, and get their answers in the other order."""
    clock = VirtualClock(16.0)
    seconds = SteadyClock(clock)
    assert seconds() == 16.0
    clock.step(-1 / 2048)
    assert seconds() == 16.0
    clock.advance(1 / 1024)
    assert seconds() == 16.0 + 1 / 2048


def test_a_clock_that_is_set_forward_is_believed() -> None:
    clock = VirtualClock(5000.0)
    seconds = SteadyClock(clock)
    assert seconds() == 5000.0
    clock.step(HOUR)
    assert seconds() == 5000.0 + HOUR


def life(algorithm: str, step_at: int) -> list[Snapshot]:
    """Snapshots of the same busy minute; before turn `step_at` the clock is set back an hour."""
    clock = VirtualClock(4096.0)
    controller = AdmissionController(
        Policy(
            rates=[Rate("per-client", "8/second burst 16")],
            concurrency=Concurrency(algorithm, initial=4, max=40, long_lived=5.0),
            queue=Queue(1.0, max_refused=0.9),
        ),
        clock=clock,
        draw=Draws(0.5, 0.25, 0.75),
    )
    dice = random.Random(7)
    running: list[Permit] = []
    seen: list[Snapshot] = []
    for turn in range(2000):
        if turn == step_at:
            controller.clock()  # what passes between two readings around a step is lost
            clock.step(-HOUR)
            controller.clock()
        clock.advance(1 / 32)  # a power of two: sums of them are exact
        running = [permit for permit in running if not _ended(permit, dice)]
        for _ in range(dice.choice((0, 1, 1, 2, 4))):
            permit = controller.admit(client=dice.choice("abc"))
            try:
                permit.begin()
            except Rejected:
                continue
            if dice.random() < 0.1 and permit.runs():
                permit.answered()
            running.append(permit)
        if turn % 100 == 0:
            controller.ready()
            seen.append(controller.snapshot())
    for permit in running:
        permit.release()
    return [*seen, controller.snapshot()]


def _ended(permit: Permit, dice: random.Random) -> bool:
    if dice.random() < (0.001 if permit.answered_at else 0.15):
        permit.release()
        return True
    return False


@pytest.mark.parametrize("step_at", [1, 333, 1500])
@pytest.mark.parametrize("algorithm", ["adaptive", "aimd", "vegas", "gradient2", "bbr"])
async def test_limit_queue_rates_and_counters_do_not_notice_a_step_back_of_an_hour(
    algorithm: str, step_at: int
) -> None:
    straight = life(algorithm, -1)
    assert life(algorithm, step_at) == straight
    assert straight[-1].in_flight == straight[-1].waiting == 0
    for one, other in pairwise(straight):
        assert other.admitted > one.admitted
        assert other.latency.sum >= one.latency.sum


async def test_a_rate_refills_after_a_step_back_and_grants_nothing_before() -> None:
    clock = VirtualClock(5000.0)
    controller = AdmissionController(Policy(rates=[Rate("slow", "1/second")]), clock=clock)
    async with controller.admit(client="a"):
        clock.step(-HOUR)
    with pytest.raises(RateLimited):
        controller.admit(client="a").begin()
    clock.advance(1.0)
    async with controller.admit(client="a"):
        pass


async def test_the_long_lived_are_still_looked_for_after_a_step_back() -> None:
    clock = VirtualClock(5000.0)
    controller = AdmissionController(
        Policy(concurrency=Concurrency("fixed", initial=1, long_lived=5.0)), clock=clock
    )
    async with controller.admit():
        pass  # when to look next is stored now
    clock.step(-HOUR)
    async with controller.admit() as stream:
        stream.answered()
        clock.advance(6.0)
        async with controller.admit():
            assert controller.snapshot().long_lived == 1


async def test_how_fast_places_become_free_is_still_measured_after_a_step_back() -> None:
    clock = VirtualClock(5000.0)
    controller = AdmissionController(clock=clock)

    async def work(seconds: float) -> float:
        for _ in range(40):
            async with controller.admit():
                clock.advance(seconds)
        return controller.admission.drain.latency

    assert await work(0.125) == pytest.approx(0.125)
    clock.step(-HOUR)
    assert await work(0.5) == pytest.approx(0.5, rel=0.01)


async def test_nobody_has_run_or_waited_for_less_than_no_time() -> None:
    clock = VirtualClock(5000.0)
    controller = AdmissionController(
        Policy(concurrency=Concurrency("fixed", initial=1)), clock=clock
    )
    first, second = controller.admit(), controller.admit()
    assert first.begin()
    assert not second.begin()
    clock.step(-HOUR)
    first.answered()
    first.release()
    second.release()
    seen = controller.snapshot()
    assert seen.latency.sum >= 0.0
    assert seen.wait.sum >= 0.0
    assert second.wait >= 0.0
