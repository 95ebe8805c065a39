"""How do the limits of Netflix's family hear of requests: one by one, or a window at a time?

The laws (`aimd`, `vegas`, `gradient2`) see samples of (latency, in-flight, dropped) and nothing
else. Which outcome is a sample is decided here, once: a success is one, an overload is a dropped
one, everything else is none. Netflix's servlet filter counts every answer as a success, so fast
failures look like spare capacity; that fault is not copied.
"""

from __future__ import annotations

from math import inf, isfinite
from typing import Any, Final

from loadgate.decisions import Outcome

_SUCCESS: Final = Outcome.SUCCESS
_OVERLOAD: Final = Outcome.OVERLOAD

# Both from Netflix's WindowedLimit: fewer samples than this, or faster ones, are thrown away.
WINDOW_SAMPLES: Final = 10
WINDOW_FASTEST: Final = 100e-6


class SampledLimit:
    """A limit whose law is fed sample by sample, or with the mean of a window.

    With `window=None` every sample reaches the law. Otherwise Netflix's WindowedLimit is
    followed: a window closes with the first sample that ends later than its end; the law then
    sees the mean latency, the highest in-flight and whether *any* sample was dropped; a window
    of fewer than 10 samples is thrown away whole (so under 10 requests a second nothing moves),
    and samples faster than 100 µs are not counted at all. The next window is twice the fastest
    latency long, but at least and at most `window`, so in the default it is just `window`.

    Departures: a latency that is not positive and finite is no sample (Netflix raises, and with
    it loses the permit); a clock that steps back re-opens the window instead of freezing it.

    Args:
        initial: The limit at the start, within [min, max].
        min: The lowest limit, at least 1.
        max: The highest limit.
        window: Seconds of one window; None for sample by sample.
    """

    __slots__ = (
        "_closes",
        "_dropped",
        "_max_in_flight",
        "_samples",
        "_sum",
        "_window",
        "limit",
        "max",
        "min",
        "updates",
    )

    algorithm = "sampled"

    def __init__(self, *, initial: int, min: int, max: int, window: float | None = 1.0) -> None:
        self.limit = initial
        self.min = min
        self.max = max
        self.updates = 0
        self._window = window
        self._closes = -inf
        self._samples = 0
        self._sum = 0.0
        self._max_in_flight = 0
        self._dropped = False

    def law(self, latency: float, in_flight: int, dropped: bool) -> float:
        """Return the new estimate of the limit; it is truncated and kept in bounds here."""
        raise NotImplementedError

    def state(self) -> dict[str, Any]:
        """Return what the law remembers, ready for JSON."""
        return {}

    def on_admit(self, now: float, in_flight: int) -> None:
        """Nothing is learned from an arrival."""

    def on_wait(self, now: float) -> None:
        """Nothing is learned from a waiter."""

    def on_refuse(self, now: float) -> None:
        """Nothing is learned from a refusal."""

    def on_stall(self, now: float, duration: float) -> None:
        """The published laws know of no pauses."""

    def on_finish(
        self,
        now: float,
        latency: float,
        in_flight: int,
        outcome: Outcome,
        held: float | None = None,
    ) -> None:
        """Feed the law, or the window in front of it."""
        if outcome is _SUCCESS:
            dropped = False
        elif outcome is _OVERLOAD:
            dropped = True
        else:
            return
        if not 0.0 < latency < inf or not isfinite(now):
            return
        window = self._window
        if window is None:
            self._apply(latency, in_flight, dropped)
            return
        if latency < WINDOW_FASTEST:
            return
        self._samples += 1
        self._sum += latency
        if in_flight > self._max_in_flight:
            self._max_in_flight = in_flight
        if dropped:
            self._dropped = True
        if now > self._closes or now < self._closes - 2.0 * window:
            samples, total = self._samples, self._sum
            most, any_dropped = self._max_in_flight, self._dropped
            self._closes = now + window
            self._samples = self._max_in_flight = 0
            self._sum = 0.0
            self._dropped = False
            if samples >= WINDOW_SAMPLES:
                self._apply(total / samples, most, any_dropped)

    def _apply(self, latency: float, in_flight: int, dropped: bool) -> None:
        self.updates += 1
        limit = int(self.law(latency, in_flight, dropped))
        self.limit = self.min if limit < self.min else self.max if limit > self.max else limit

    def explain(self) -> dict[str, Any]:
        """Say the limit, its bounds and what the law remembers."""
        return {
            "algorithm": self.algorithm,
            "limit": self.limit,
            "min": self.min,
            "max": self.max,
            "window": self._window,
            "updates": self.updates,
            **self.state(),
        }
