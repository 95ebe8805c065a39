"""Is latency above its own long mean? Then the limit falls with the ratio of the two.

The algorithm of Netflix's concurrency-limits, Gradient2Limit.
"""

from __future__ import annotations

from typing import Any, Final

from loadgate.limits.sampled import SampledLimit
from loadgate.limits.settings import real, whole

# From Gradient2Limit: the long mean is a plain mean for so many samples, and a mean more than
# twice the sample is shrunk by 5 % so that it does not lag after an overload.
_WARM_UP: Final = 10
_LAG: Final = 2.0
_SHRINK: Final = 0.95


class Gradient2Limit(SampledLimit):
    """Limit times clamp(tolerance x long mean / latency, 0.5, 1), plus a queue of 4, smoothed.

    The long mean is exponential over `long_window` updates and learns from every sample, also
    from overloaded ones; so a slow-down that lasts is believed in the end and the limit climbs
    again. Drops are not looked at. Nothing moves while less than half of the limit is used. All
    of this is as published.

    Published defaults: initial 20, min 20, max 200, smoothing 0.2, queue 4, long window 600,
    tolerance 1.5, behind a window of one second.

    Args:
        initial: The limit at the start.
        min: The lowest limit; below 8 it is never reached by latency alone.
        max: The highest limit.
        window: Seconds of one window; None for sample by sample.
        smoothing: Weight of the new estimate, within (0, 1].
        queue: Requests added at each update.
        long_window: Updates of the long mean.
        tolerance: How far latency may rise above the long mean, at least 1.
    """

    __slots__ = ("_estimate", "_factor", "_long", "_queue", "_seen", "_smoothing", "_tolerance")

    algorithm = "gradient2"

    def __init__(
        self,
        *,
        initial: int,
        min: int,
        max: int,
        window: float | None = 1.0,
        smoothing: float = 0.2,
        queue: float = 4.0,
        long_window: int = 600,
        tolerance: float = 1.5,
    ) -> None:
        super().__init__(initial=initial, min=min, max=max, window=window)
        self._smoothing = real("smoothing", smoothing, 1e-6, 1.0)
        self._queue = real("queue", queue, 0.0, 1e6)
        self._factor = 2.0 / (whole("long_window", long_window, 1, 10_000_000) + 1)
        self._tolerance = real("tolerance", tolerance, 1.0, 1e6)
        self._estimate = float(initial)
        self._long = 0.0
        self._seen = 0

    def law(self, latency: float, in_flight: int, dropped: bool) -> float:
        """Return the new estimate after one sample."""
        if self._seen < _WARM_UP:
            self._seen += 1
            mean = self._long + (latency - self._long) / self._seen
        else:
            mean = self._long * (1.0 - self._factor) + latency * self._factor
        self._long = mean * _SHRINK if mean / latency > _LAG else mean
        estimate = self._estimate
        if in_flight < estimate / 2:
            return estimate
        gradient = min(max(self._tolerance * mean / latency, 0.5), 1.0)
        new = estimate * gradient + self._queue
        new = estimate * (1.0 - self._smoothing) + new * self._smoothing
        self._estimate = min(max(new, self.min), self.max)
        return self._estimate

    def state(self) -> dict[str, Any]:
        """Say the estimate and the long mean."""
        return {"estimate": self._estimate, "long_latency": self._long or None}
