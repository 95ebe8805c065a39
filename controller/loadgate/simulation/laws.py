"""How long does a piece of work take? Distributions of times, by name.

A law is a frozen struct that can be written in a scenario file, as in
``{ law = "exponential", mean = 0.02 }``. Every time is in seconds of one core at full speed
(or of plain waiting); every law states its mean, because capacity follows from means alone.
"""

from __future__ import annotations

from math import exp, gamma, log
from typing import Annotated, Any, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Positive = Annotated[float, msgspec.Meta(gt=0.0)]
NonNegative = Annotated[float, msgspec.Meta(ge=0.0)]


class _Law(msgspec.Struct, frozen=True, tag_field="law", forbid_unknown_fields=True):
    @property
    def average(self) -> float:
        """The mean in seconds."""
        raise NotImplementedError

    def draw(self, numbers: np.random.Generator, count: int) -> Floats:
        """`count` times in seconds, shape (count,)."""
        raise NotImplementedError


class Constant(_Law, frozen=True, tag="constant"):
    """Always `mean`."""

    mean: NonNegative

    @property
    def average(self) -> float:
        """The mean in seconds."""
        return self.mean

    def draw(self, numbers: np.random.Generator, count: int) -> Floats:
        """`count` times in seconds, shape (count,)."""
        return np.full(count, self.mean)


class Exponential(_Law, frozen=True, tag="exponential"):
    """Memoryless: standard deviation equal to the mean."""

    mean: Positive

    @property
    def average(self) -> float:
        """The mean in seconds."""
        return self.mean

    def draw(self, numbers: np.random.Generator, count: int) -> Floats:
        """`count` times in seconds, shape (count,)."""
        return numbers.exponential(self.mean, count)


class Gamma(_Law, frozen=True, tag="gamma"):
    """Sums of memoryless steps: `shape` 2 is Erlang-2, large shapes are nearly constant."""

    mean: Positive
    shape: Positive = 2.0

    @property
    def average(self) -> float:
        """The mean in seconds."""
        return self.mean

    def draw(self, numbers: np.random.Generator, count: int) -> Floats:
        """`count` times in seconds, shape (count,)."""
        return numbers.gamma(self.shape, self.mean / self.shape, count)


class Lognormal(_Law, frozen=True, tag="lognormal"):
    """Skewed: `sigma` 1.0 has a p99 of 6.2 means, 1.8 one of 13 means."""

    mean: Positive
    sigma: Annotated[float, msgspec.Meta(gt=0.0, le=4.0)] = 1.0

    @property
    def average(self) -> float:
        """The mean in seconds."""
        return self.mean

    def draw(self, numbers: np.random.Generator, count: int) -> Floats:
        """`count` times in seconds, shape (count,)."""
        return numbers.lognormal(log(self.mean) - 0.5 * self.sigma**2, self.sigma, count)


class Pareto(_Law, frozen=True, tag="pareto"):
    """A power law: `shape` 1.5 has a finite mean and an infinite variance.

    Times are cut at `longest` means (and the scale chosen so that the mean is still `mean`):
    one draw in a million would otherwise decide the outcome of a whole run.
    """

    mean: Positive
    shape: Annotated[float, msgspec.Meta(gt=1.0)] = 1.5
    longest: Annotated[float, msgspec.Meta(gt=1.0)] = 200.0

    @property
    def average(self) -> float:
        """The mean in seconds."""
        return self.mean

    def _scale(self) -> float:
        # E[min(X, c)] = a m/(a-1) - c (m/c)^a/(a-1) for a Pareto of scale m and shape a.
        a, cut = self.shape, self.longest * self.mean

        def mean_of(scale: float) -> float:
            return (a * scale - cut * float((scale / cut) ** a)) / (a - 1.0)

        low = 0.0
        high = self.mean
        for _ in range(80):
            middle = 0.5 * (low + high)
            if mean_of(middle) < self.mean:
                low = middle
            else:
                high = middle
        return high

    def draw(self, numbers: np.random.Generator, count: int) -> Floats:
        """`count` times in seconds, shape (count,)."""
        times = self._scale() * (1.0 + numbers.pareto(self.shape, count))
        return np.minimum(times, self.longest * self.mean)


class Weibull(_Law, frozen=True, tag="weibull"):
    """Between heavy (`shape` below 1) and nearly constant (far above 1)."""

    mean: Positive
    shape: Positive = 0.5

    @property
    def average(self) -> float:
        """The mean in seconds."""
        return self.mean

    def draw(self, numbers: np.random.Generator, count: int) -> Floats:
        """`count` times in seconds, shape (count,)."""
        return self.mean / gamma(1.0 + 1.0 / self.shape) * numbers.weibull(self.shape, count)


class Points(_Law, frozen=True, tag="points"):
    """A few fixed times with weights, as in 95 % of 5 ms and 5 % of 300 ms."""

    values: list[NonNegative]
    weights: list[Positive]

    def __post_init__(self) -> None:
        if not self.values or len(self.values) != len(self.weights):
            raise ValueError("values and weights must be equally many, and at least one")

    @property
    def average(self) -> float:
        """The mean in seconds."""
        return sum(v * w for v, w in zip(self.values, self.weights, strict=True)) / sum(
            self.weights
        )

    def draw(self, numbers: np.random.Generator, count: int) -> Floats:
        """`count` times in seconds, shape (count,)."""
        weights = np.asarray(self.weights)
        picked = numbers.choice(len(self.values), size=count, p=weights / weights.sum())
        return np.asarray(self.values, dtype=np.float64)[picked]


class Mixture(_Law, frozen=True, tag="mixture"):
    """One of several memoryless laws, as when a cache is hit or missed."""

    means: list[Positive]
    weights: list[Positive]

    def __post_init__(self) -> None:
        if not self.means or len(self.means) != len(self.weights):
            raise ValueError("means and weights must be equally many, and at least one")

    @property
    def average(self) -> float:
        """The mean in seconds."""
        return sum(m * w for m, w in zip(self.means, self.weights, strict=True)) / sum(self.weights)

    def draw(self, numbers: np.random.Generator, count: int) -> Floats:
        """`count` times in seconds, shape (count,)."""
        weights = np.asarray(self.weights)
        picked = numbers.choice(len(self.means), size=count, p=weights / weights.sum())
        return np.asarray(self.means)[picked] * numbers.exponential(1.0, count)


Law = Constant | Exponential | Gamma | Lognormal | Pareto | Weibull | Points | Mixture


def scaled(law: Law, factor: float) -> Law:
    """The same law with every time multiplied by `factor`."""
    changes: dict[str, Any] = {}
    for name in ("mean", "means", "values"):
        value = getattr(law, name, None)
        if isinstance(value, list):
            changes[name] = [factor * v for v in cast("list[float]", value)]
        elif value is not None:
            changes[name] = factor * value
    return msgspec.structs.replace(law, **changes)


def two_humps(mean: float, spread: float) -> Points:
    """Two equally likely times, `spread` apart from each other (a ratio), for tests."""
    root = exp(0.5 * log(spread))
    scale = 2.0 * mean / (root + 1.0 / root)
    return Points(values=[scale / root, scale * root], weights=[1.0, 1.0])
