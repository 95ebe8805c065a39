"""How long is the queue that latency betrays? Grow while it is short, shrink when it is long.

The algorithm of Netflix's concurrency-limits, VegasLimit.
"""

from __future__ import annotations

from math import ceil, log10
from typing import Any, Final

from loadgate.limits.sampled import SampledLimit
from loadgate.limits.settings import real, whole

# The fractional part of the golden ratio: its multiples modulo 1 spread evenly.
_GOLDEN: Final = 0.6180339887498949


def _steps(limit: float) -> int:
    """Netflix's lookup: log10 of the whole limit, at least 1; so 1 below 100, 2 below 1000."""
    return max(1, int(log10(max(int(limit), 1))))


class VegasLimit(SampledLimit):
    """TCP Vegas on requests: queue = limit times (1 - unloaded latency / latency).

    With g = log10 of the limit (at least 1): a queue up to g adds 6 g, below 3 g adds g, above
    6 g takes g, a drop takes g, and nothing moves while less than half of the limit is used. The
    unloaded latency is the smallest sample seen; after 15 to 30 samples per unit of the limit
    the next sample replaces it, *whatever the load*, so a probe under overload believes the
    overload, and below a limit of 6 no latency can lower it further. Both are as published.

    Published defaults: initial 20, min 1, max 1000, smoothing 1.0, probe multiplier 30. Behind
    the window (the sane way to run it) a sample is the mean of a second.

    Departures: the jitter of the probe walks a golden-ratio sequence instead of rolling dice, so
    that a run can be repeated; a latency that is not positive is no sample.

    Args:
        initial: The limit at the start.
        min: The lowest limit.
        max: The highest limit.
        window: Seconds of one window; None for sample by sample.
        smoothing: Weight of the new estimate, within (0, 1].
        probe: Samples per unit of the limit between probes, before the jitter of 0.5 to 1.
    """

    __slots__ = ("_count", "_estimate", "_jitter", "_probe", "_smoothing", "_unloaded")

    algorithm = "vegas"

    def __init__(
        self,
        *,
        initial: int,
        min: int,
        max: int,
        window: float | None = 1.0,
        smoothing: float = 1.0,
        probe: int = 30,
    ) -> None:
        super().__init__(initial=initial, min=min, max=max, window=window)
        self._smoothing = real("smoothing", smoothing, 1e-6, 1.0)
        self._probe = whole("probe", probe, 1, 1_000_000)
        self._estimate = float(initial)
        self._unloaded = 0.0
        self._count = 0
        self._jitter = 0.5

    def law(self, latency: float, in_flight: int, dropped: bool) -> float:
        """Return the new estimate after one sample."""
        estimate = self._estimate
        self._count += 1
        if self._count >= (0.5 + 0.5 * self._jitter) * self._probe * estimate:
            self._jitter = (self._jitter + _GOLDEN) % 1.0
            self._count = 0
            self._unloaded = latency
            return estimate
        if self._unloaded == 0.0 or latency < self._unloaded:
            self._unloaded = latency
            return estimate
        step = _steps(estimate)
        queue = ceil(estimate * (1.0 - self._unloaded / latency))
        if dropped:
            new = estimate - step
        elif in_flight * 2 < estimate:
            return estimate
        elif queue <= step:
            new = estimate + 6 * step
        elif queue < 3 * step:
            new = estimate + step
        elif queue > 6 * step:
            new = estimate - step
        else:
            return estimate
        new = min(max(new, self.min), self.max)
        self._estimate = (1.0 - self._smoothing) * estimate + self._smoothing * new
        return self._estimate

    def state(self) -> dict[str, Any]:
        """Say the estimate and the unloaded latency it rests on."""
        return {
            "estimate": self._estimate,
            "unloaded_latency": self._unloaded or None,
            "samples_since_probe": self._count,
        }
