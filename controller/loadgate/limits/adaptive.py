"""How many requests can this service run at once? Find out, and follow it."""

from __future__ import annotations

from math import inf, sqrt
from typing import Any, Final

from loadgate.decisions import Outcome
from loadgate.limits.settings import real

_SUCCESS: Final = Outcome.SUCCESS
_OVERLOAD: Final = Outcome.OVERLOAD
_KAPPA: Final = 2.2  # headroom in standard deviations of a Poisson number in flight


class AdaptiveLimit:
    """Throughput times unloaded latency + √-headroom, learned from windows."""

    __slots__ = (
        "_base",
        "_bound",
        "_ends",
        "_lost",
        "_n",
        "_start",
        "_sum",
        "_target",
        "latency_target",
        "limit",
        "max",
        "min",
    )

    def __init__(
        self, *, initial: int, min: int, max: int, latency_target: float | None = None
    ) -> None:
        self.limit = initial
        self.min = min
        self.max = max
        self.latency_target = (
            None if latency_target is None else real("latency_target", latency_target, 1e-6)
        )
        self._target = float(initial)
        self._base = inf
        self._open(-inf)

    def _open(self, now: float) -> None:
        self._start = now
        self._ends = now + 0.25
        self._n = 0
        self._sum = 0.0
        self._lost = 0
        self._bound = False

    def on_admit(self, now: float, in_flight: int) -> None:
        """Remember whether the limit bound."""
        if in_flight >= self.limit:
            self._bound = True

    def on_wait(self, now: float) -> None:
        """The limit bound."""
        self._bound = True

    def on_refuse(self, now: float) -> None:
        """The limit bound."""
        self._bound = True

    def on_stall(self, now: float, duration: float) -> None:
        """Start the window again."""
        self._open(now)

    def on_finish(
        self,
        now: float,
        latency: float,
        in_flight: int,
        outcome: Outcome,
        held: float | None = None,
    ) -> None:
        """Add to the window; think when it closes."""
        if outcome is _SUCCESS:
            self._n += 1
            self._sum += latency
        elif outcome is _OVERLOAD:
            self._lost += 1
        if (now > self._ends and self._n >= 20) or now < self._start:
            self._think(now)

    def _think(self, now: float) -> None:
        span, n = now - self._start, self._n
        if self._start > -inf and 0.0 < span < 60.0 and self._sum > 0.0:
            mean, rate = self._sum / n, n / span
            self._base = mean if mean < self._base else self._base * 1.001
            if self._bound:
                little = rate * self._base
                goal = little + _KAPPA * sqrt(little) + 1.0
                late = self.latency_target is not None and mean > self.latency_target
                if late or self._lost * 10 > n:
                    goal = self._target * 0.85
                elif mean < 1.15 * self._base:
                    goal = max(goal, self._target * 1.3)
                self._target = min(max(goal, 0.8 * self._target), 1.4 * self._target)
                self._target = min(max(self._target, self.min), self.max)
                self.limit = int(self._target)
        self._open(now)

    def explain(self) -> dict[str, Any]:
        """Say the limit and what it rests on."""
        return {
            "algorithm": "adaptive",
            "limit": self.limit,
            "min": self.min,
            "max": self.max,
            "unloaded_latency": None if self._base == inf else self._base,
            "latency_target": self.latency_target,
        }
