"""When does each request leave? Arrival times, fixed before the run.

A Poisson process whose rate changes is made by time change: draw arrivals of rate one and
map them through the inverse of the expected count. It is exact for steps and ramps alike,
with no thinning and one draw for each arrival.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterator, Sequence
from math import sqrt

from loadgate.integrations.loadgen.plan import ClientClass, Phase

Ramp = float | tuple[float, float]


def arrivals(one: ClientClass, phases: Sequence[Phase], seed: int) -> array[float]:
    """Say when a class sends: sorted seconds after the start.

    Each class has its own random stream, so that adding a class leaves the others as they were.
    """
    if one.arrivals is not None:
        return array("d", one.arrivals)
    steps = _unit_poisson(stream(one, seed, "arrivals")) if one.spacing == "poisson" else _even()
    return array("d", _through(steps, one.rates, phases))


def stream(one: ClientClass, seed: int, purpose: str) -> random.Random:
    """The dice of one class for one purpose; equal on every machine for an equal seed."""
    return random.Random(f"{seed}/{one.name}/{purpose}")


def _unit_poisson(dice: random.Random) -> Iterator[float]:
    at = 0.0
    while True:
        at += dice.expovariate(1.0)
        yield at


def _even() -> Iterator[float]:
    at = 0.5  # the middle of its interval, so that the first request is not at the very start
    while True:
        yield at
        at += 1.0


def _through(
    steps: Iterator[float], rates: Sequence[Ramp], phases: Sequence[Phase]
) -> Iterator[float]:
    """Map arrivals of rate one through the inverse of the expected number of arrivals."""
    count = next(steps)
    before = 0.0  # expected arrivals before this phase
    start = 0.0
    for phase, rate in zip(phases, rates, strict=False):
        low, high = rate if isinstance(rate, tuple) else (rate, rate)
        expected = (low + high) / 2 * phase.duration
        while count < before + expected:
            yield start + _inverse(count - before, low, high, phase.duration)
            count = next(steps)
        before += expected
        start += phase.duration


def _inverse(count: float, low: float, high: float, duration: float) -> float:
    """Solve `low·t + (high-low)/(2·duration)·t² = count` for t, in the form that never cancels."""
    if count <= 0:
        return 0.0
    slope = (high - low) / duration
    return min(duration, 2 * count / (low + sqrt(max(0.0, low * low + 2 * slope * count))))
