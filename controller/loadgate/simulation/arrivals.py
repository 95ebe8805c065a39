"""When do requests come? Poisson arrivals at a rate that may move in any way.

Every profile is turned into a cumulative rate; a Poisson process of rate one, mapped through
its inverse, is then a Poisson process of exactly that rate (time change). Bursts are a
two-state Markov-modulated Poisson process: the same with a random rate.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
import numpy as np

from loadgate.simulation.laws import Floats, Positive

# Points at which a moving rate is read, per second and at most; between them the cumulative
# rate is a straight line, which at this step is wrong by less than one request in 10,000.
_STEP = 0.01
_MOST_POINTS = 200_000


class Bursts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A rate that jumps to `factor` times the base for `on` seconds out of `on + off` (means).

    The base is lowered so that the mean rate stays what the phase asks for, which makes a
    steady and a bursty phase comparable.
    """

    factor: Annotated[float, msgspec.Meta(gt=1.0)] = 3.0
    on: Positive = 1.0
    off: Positive = 9.0

    def path(self, numbers: np.random.Generator, seconds: float) -> tuple[Floats, Floats]:
        """Times at which the rate changes, and the factor that holds from then on."""
        share = self.on / (self.on + self.off)
        low = 1.0 / (1.0 + share * (self.factor - 1.0))
        bursting = bool(numbers.random() < share)
        times, factors, now = [0.0], [low * self.factor if bursting else low], 0.0
        while now < seconds:
            now += float(numbers.exponential(self.on if bursting else self.off))
            bursting = not bursting
            times.append(now)
            factors.append(low * self.factor if bursting else low)
        return np.asarray(times), np.asarray(factors)


class Wave(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A sine around the phase's rate: `swing` 0.6 moves between 0.4 and 1.6 of it."""

    swing: Annotated[float, msgspec.Meta(gt=0.0, le=1.0)]
    period: Positive


class Batches(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Requests that come in groups of exactly `size` at one instant, the mean rate kept."""

    size: Annotated[int, msgspec.Meta(ge=2)]


def times_of_rate(
    numbers: np.random.Generator, at: Floats, rate: Floats, *, regular: bool = False
) -> Floats:
    """Arrival times of a Poisson process whose rate is linear between given points.

    Args:
        numbers: The stream to draw from.
        at: Rising times in seconds, shape (n,); equal times make a jump.
        rate: Rates per second at these times, none negative, shape (n,).
        regular: Equal distances (in the cumulative rate) instead of memoryless ones.

    Returns:
        Sorted times in seconds, shape (arrivals,).
    """
    cumulative = np.concatenate(([0.0], np.cumsum(np.diff(at) * 0.5 * (rate[1:] + rate[:-1]))))
    total = float(cumulative[-1])
    if total <= 0.0:
        return np.empty(0)
    if regular:
        unit = np.arange(0.5, total, 1.0)
    else:
        unit = np.sort(numbers.random(int(numbers.poisson(total)))) * total
    keep = np.concatenate(([True], np.diff(cumulative) > 0.0))
    return np.asarray(np.interp(unit, cumulative[keep], at[keep]))


def times_of_phase(
    numbers: np.random.Generator,
    start: float,
    seconds: float,
    rate: tuple[float, float],
    *,
    bursts: Bursts | None = None,
    wave: Wave | None = None,
    batches: Batches | None = None,
    burst_numbers: np.random.Generator | None = None,
) -> Floats:
    """Arrival times of one phase: a rate that goes from `rate[0]` to `rate[1]`.

    Args:
        numbers: The stream of the arrivals.
        start: When the phase begins, in seconds.
        seconds: How long it lasts.
        rate: Requests per second at its beginning and end.
        bursts: Jumps on top of it.
        wave: A sine on top of it.
        batches: Groups instead of single requests.
        burst_numbers: The stream of the jumps; needed with `bursts`.
    """
    points = 2
    if wave is not None or rate[0] != rate[1]:
        points = int(min(max(seconds / _STEP, 2), _MOST_POINTS))
    at = np.linspace(0.0, seconds, points)
    level = rate[0] + (rate[1] - rate[0]) * at / seconds
    if wave is not None:
        level = level * (1.0 + wave.swing * np.sin(2.0 * np.pi * at / wave.period))
    if bursts is not None:
        if burst_numbers is None:
            raise ValueError("bursts need a stream of their own")
        jumps, factors = bursts.path(burst_numbers, seconds)
        inner = jumps[(jumps > 0.0) & (jumps < seconds)]
        at_both = np.sort(np.concatenate((at, inner, inner)))
        level = np.interp(at_both, at, level)
        # At a jump both the old and the new factor stand, in this order.
        side = np.searchsorted(jumps, at_both, side="right") - 1
        first_of_pair = np.concatenate((np.diff(at_both) == 0.0, [False]))
        side = np.where(first_of_pair, np.maximum(side - 1, 0), side)
        at, level = at_both, level * factors[np.minimum(side, len(factors) - 1)]
    if batches is not None:
        groups = times_of_rate(numbers, at, level / batches.size)
        return start + np.repeat(groups, batches.size)
    return start + times_of_rate(numbers, at, level)
