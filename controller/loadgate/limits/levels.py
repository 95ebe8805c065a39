"""What was seen at each level of concurrency, and where is the knee in it?

A *level* is how many requests run at once. Each window adds one point: so many completions, at
such a level, at such a latency. By Little's law the point is also a throughput, level / latency.
Points of one level are pooled; together they are the curve of throughput over concurrency. A
point that contradicts what was known of its own level says that the service has changed, and
then the rest of the curve is worth nothing any more.
"""

from __future__ import annotations

from enum import Enum
from math import log, sqrt
from typing import Final

# Levels whose throughput is below this share of the best are taken for unloaded: a service of
# many cores and exponential work at 0.85 of its capacity has 3 % more than its unloaded latency.
UNLOADED_SHARE: Final = 0.85
# Points within this distance of the present level stand for it.
NEAR_BELOW: Final = 0.87
NEAR_ABOVE: Final = 1.15
# Completions a level can weigh at most (so that it follows slow drift: 300 completions are 6 %
# standard error), or four times the level, where a percent of latency matters more.
HEAVIEST: Final = 300.0
HEAVIEST_PER_LEVEL: Final = 4.0
# Below this a point is forgotten.
LIGHTEST: Final = 5.0
# Levels not visited lose half their weight in the longest of these: seconds, latencies,
# completions. Changes that matter are found by the alarm, this is for slow drift.
HALF_LIFE: Final = 30.0
HALF_LIFE_LATENCIES: Final = 300.0
HALF_LIFE_COMPLETIONS: Final = 6000.0
# Two-sided CUSUM of the standardised deviations, tuned for shifts of two standard deviations:
# slack 1 and alarm 5 mean one false alarm in some 10^4 windows of independent points.
SLACK: Final = 1.0
ALARM: Final = 5.0
LARGEST: Final = 8.0
# Dispersion of a count beside Poisson's: what is assumed at first, learned with this weight.
DISPERSION: Final = 2.0
DISPERSION_WEIGHT: Final = 0.05
DISPERSION_MOST: Final = 30.0
# Standard deviation that remains however many completions are pooled.
RESIDUE: Final = 0.03
# Completions on which it has to rest that one request at a time is enough.
ALONE: Final = 40.0
# A lower level where requests took so many times as long as in the newest window is of another
# time: an outage that is over. Three times is far beyond what thirty completions can be off.
CONTRADICTS: Final = 3.0
# A point so many standard deviations off only counts for the alarm.
ODD: Final = 2.0


class Change(Enum):
    """What a point says of the service."""

    NONE = "none"
    FASTER = "faster"
    SLOWER = "slower"


class _Point:
    """Pooled points of one level: mean level, throughput, completions, when last touched."""

    __slots__ = ("at", "level", "rate", "weight")

    def __init__(self, level: float, rate: float, weight: float, at: float) -> None:
        self.level = level
        self.rate = rate
        self.weight = weight
        self.at = at


class Levels:
    """The curve of throughput over concurrency, as far as it is known.

    After `read`, the attributes hold the conclusion.

    Attributes:
        unloaded: Seconds a request takes when it need not share. Only an upper bound while
            `sure` is false.
        sure: Whether a level was seen at which throughput is clearly below the best.
        low_weight: Completions on which `unloaded` rests.
        rate: Throughput at the present level, or above it where that was surely better.
        latency: Mean latency at the present level, 0.0 when nothing was seen near it.
        latency_weight: Completions on which `latency` rests.
        flat: The lowest level from which on throughput does not rise, None when there is none.
        flat_weight: Completions on which that rests.
        alone: Whether one request at a time was seen to be nearly as good as any number.
        high_weight: Completions seen clearly above the present level.
        dispersion: Variance of the counts beside Poisson's, learned.
        changes: How often the service was found changed.
    """

    __slots__ = (
        "_above",
        "_below",
        "_points",
        "alone",
        "changes",
        "dispersion",
        "flat",
        "flat_weight",
        "high_weight",
        "latency",
        "latency_weight",
        "low_weight",
        "rate",
        "sure",
        "unloaded",
    )

    def __init__(self) -> None:
        self._points: dict[int, _Point] = {}
        self._above = 0.0
        self._below = 0.0
        self.dispersion = DISPERSION
        self.changes = 0
        self.unloaded = 0.0
        self.sure = False
        self.low_weight = 0.0
        self.rate = 0.0
        self.latency = 0.0
        self.latency_weight = 0.0
        self.high_weight = 0.0
        self.flat: float | None = None
        self.flat_weight = 0.0
        self.alone = False

    def add(self, now: float, level: float, rate: float, weight: float) -> Change:
        """Add a window: `weight` completions at `level`, `rate` a second.

        Returns:
            Whether it contradicts what was known; what does not agree with it is then gone.
        """
        key = int(level + 0.5) if level < 6.5 else int(log(level) / 0.14) - 6
        self._forget_slower(level, rate)
        point = self._points.get(key)
        if point is None:
            self._points[key] = _Point(level, rate, weight, now)
            return Change.NONE
        self._age(point, now)
        spread = self.dispersion * (1.0 / weight + 1.0 / max(point.weight, 1.0)) + RESIDUE**2
        off = log(rate * point.level / (level * point.rate)) / sqrt(spread)
        self._above = max(0.0, self._above + min(off, LARGEST) - SLACK)
        self._below = max(0.0, self._below - max(off, -LARGEST) - SLACK)
        if self._above > ALARM or self._below > ALARM:
            return self._changed(key, _Point(level, rate, weight, now))
        # `off` is one standard deviation on average when the dispersion is right.
        self.dispersion *= 1.0 + DISPERSION_WEIGHT * (min(off * off, 6.0) - 1.0)
        self.dispersion = min(max(self.dispersion, 1.0), DISPERSION_MOST)
        share = weight / (weight + point.weight)
        if abs(off) > ODD:
            # A change must not be averaged away before the alarm has heard of it often enough.
            return Change.NONE
        point.level += share * (level - point.level)
        point.rate = 1.0 / ((1.0 - share) / point.rate + share / rate)
        heaviest = max(HEAVIEST * self.dispersion, HEAVIEST_PER_LEVEL * level)
        point.weight = min(point.weight + weight, heaviest)
        point.at = now
        return Change.NONE

    def _forget_slower(self, level: float, rate: float) -> None:
        """Requests are not slower for being fewer: where they were, that was another time."""
        points = self._points
        latency = CONTRADICTS * level / rate
        for key, point in list(points.items()):
            if point.level < level and point.level > latency * point.rate:
                del points[key]

    def _changed(self, key: int, point: _Point) -> Change:
        faster = self._above > ALARM
        self._above = self._below = 0.0
        self.changes += 1
        level = point.level
        # More cores leave the unloaded latency as it was, so lower levels may still be right.
        keep = faster and self.sure and level / point.rate > 0.9 * self.unloaded
        kept = {k: p for k, p in self._points.items() if keep and p.level < 0.9 * level}
        # The window that raised the alarm is an extreme one, true change or not.
        point.weight = min(point.weight, LIGHTEST)
        kept[key] = point
        self._points = kept
        return Change.FASTER if faster else Change.SLOWER

    def _age(self, point: _Point, now: float) -> None:
        half = max(
            HALF_LIFE,
            HALF_LIFE_LATENCIES * point.level / point.rate,
            HALF_LIFE_COMPLETIONS / point.rate,
        )
        age = now - point.at
        if age > 0.1 * half:
            point.weight *= 0.5 ** (age / half)
            point.at = now

    def read(self, now: float, present: float) -> None:
        """Draw the conclusion for a service that runs at the level `present`."""
        for key in list(self._points):
            point = self._points[key]
            self._age(point, now)
            if point.weight < LIGHTEST and len(self._points) > 1:
                del self._points[key]
        points = sorted(self._points.values(), key=_level)
        near = near_level = near_rate = 0.0
        for point in points:
            if NEAR_BELOW * present <= point.level <= NEAR_ABOVE * present:
                near += point.weight
                near_level += point.level * point.weight
                near_rate += point.rate * point.weight
        if near > 0.0:
            best = near_rate / near
            self.latency = near_level / near_rate
        else:
            best = max(points, key=_weight).rate
            self.latency = 0.0
        self.latency_weight = near
        self.high_weight = 0.0
        for point in points:
            if point.level > NEAR_ABOVE * present and point.weight > 2.25:
                self.high_weight += point.weight
                best = max(best, point.rate * (1.0 - 1.5 / sqrt(point.weight)))
        self.rate = best
        low = spent = 0.0
        ceiling = UNLOADED_SHARE * best
        for point in points:
            # One request alone has nothing to share, whatever the throughput.
            if point.rate > ceiling and point.level >= 1.2:
                if _outweighed(point, points, ceiling):
                    continue
                break
            low += point.weight
            spent += point.weight * point.level / point.rate
        lowest, highest = points[0], points[-1]
        self.sure = low > 0.0
        self.low_weight = low
        self.unloaded = spent / low if low > 0.0 else lowest.level / lowest.rate
        self.alone = lowest.level < 1.2 and lowest.weight > ALONE and lowest.rate > ceiling
        flat = lowest.level < 0.65 * highest.level and lowest.rate > UNLOADED_SHARE * highest.rate
        self.flat = lowest.level if flat and not self.sure else None
        self.flat_weight = lowest.weight


def _outweighed(point: _Point, points: list[_Point], ceiling: float) -> bool:
    """Does a neighbour of four times the weight say that there is room at this level?"""
    return any(
        other.weight > 4.0 * point.weight
        and other.rate <= ceiling
        and NEAR_BELOW * point.level <= other.level <= NEAR_ABOVE * point.level
        for other in points
    )


def _level(point: _Point) -> float:
    return point.level


def _weight(point: _Point) -> float:
    return point.weight
