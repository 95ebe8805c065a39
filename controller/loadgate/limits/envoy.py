"""What is the latency of an almost idle service? Measure it now and then; follow the ratio.

The algorithm of Envoy's adaptive concurrency filter, the gradient controller.
"""

from __future__ import annotations

from math import ceil, inf, isfinite, sqrt
from typing import Any, Final

from loadgate.decisions import Outcome
from loadgate.limits.settings import real, whole

_SUCCESS: Final = Outcome.SUCCESS
_OVERLOAD: Final = Outcome.OVERLOAD

_LOWEST_GRADIENT: Final = 0.5  # Envoy clamps the gradient to [0.5, 2]
_HIGHEST_GRADIENT: Final = 2.0
# Envoy measures anew after so many updates in a row that end at the lowest limit.
_PATIENCE: Final = 5
_GOLDEN: Final = 0.6180339887498949
# Samples kept of one window; Envoy's histogram has no bound. Beyond it old ones are replaced.
_KEPT: Final = 4096


class EnvoyGradientLimit:
    """Limit times unloaded / present latency, plus a root of the result, every 100 ms.

    The unloaded latency is measured by pinning the limit to `probe` until `probe_requests`
    requests have answered: at the start, every `interval` (with up to 15 % of jitter), and after
    five updates in a row at the lowest limit. That turns requests away that could have been
    served, and under overload it believes what it sees; both are as published. Requests that
    started before the measurement began are not counted in it.

    Published defaults: limit 3 at the start, max 1000, median, buffer 25 %, 50 requests; the
    intervals of 0.1 s and 60 s are those of Envoy's own example (it has no default).

    Departures: failed and cancelled requests are no samples (Envoy counts every reply, so fast
    failures look like spare capacity); updates happen with the first answer after 100 ms
    instead of on a timer; the jitter walks a golden-ratio sequence, so a run can be repeated.

    Args:
        initial: The limit restored after the first measurement.
        min: The lowest limit.
        max: The highest limit.
        update: Seconds between updates.
        interval: Seconds between measurements.
        probe: The limit during a measurement.
        probe_requests: Answers that make a measurement.
        buffer: Share by which latency may exceed the unloaded one.
        percentile: The percentile of a window that stands for it, within (0, 100].
        jitter: Share of `interval` that is added at most.
    """

    __slots__ = (
        "_at_floor",
        "_buffer",
        "_epoch",
        "_interval",
        "_jitter",
        "_measuring",
        "_next_probe",
        "_next_update",
        "_percentile",
        "_phase",
        "_probe",
        "_probe_requests",
        "_restore",
        "_samples",
        "_seen",
        "_unloaded",
        "_update",
        "limit",
        "max",
        "min",
    )

    def __init__(
        self,
        *,
        initial: int,
        min: int,
        max: int,
        update: float = 0.1,
        interval: float = 60.0,
        probe: int = 3,
        probe_requests: int = 50,
        buffer: float = 0.25,
        percentile: float = 50.0,
        jitter: float = 0.15,
    ) -> None:
        self.min = min
        self.max = max
        self._update = real("update", update, 1e-3, 3600.0)
        self._interval = real("interval", interval, self._update, 86400.0)
        self._probe = whole("probe", probe, 1, 1_000_000)
        self._probe_requests = whole("probe_requests", probe_requests, 1, _KEPT)
        self._buffer = real("buffer", buffer, 0.0, 100.0)
        self._percentile = real("percentile", percentile, 1e-3, 100.0) / 100.0
        self._jitter = real("jitter", jitter, 0.0, 1.0)
        self._phase = 0.5
        self._unloaded = 0.0
        self._at_floor = 0
        self._next_update = -inf
        self._next_probe = inf
        self.limit = initial
        self._measure(-inf)

    def _measure(self, now: float) -> None:
        self._measuring = True
        self._restore = self.limit
        self._epoch = now
        self._samples: list[float] = []
        self._seen = 0
        self.limit = max(self.min, min(self._probe, self.max))

    def on_admit(self, now: float, in_flight: int) -> None:
        """Nothing is learned from an arrival."""

    def on_wait(self, now: float) -> None:
        """Nothing is learned from a waiter."""

    def on_refuse(self, now: float) -> None:
        """Nothing is learned from a refusal."""

    def on_stall(self, now: float, duration: float) -> None:
        """Envoy knows of no pauses."""

    def on_finish(
        self,
        now: float,
        latency: float,
        in_flight: int,
        outcome: Outcome,
        held: float | None = None,
    ) -> None:
        """Count the latency; update or end a measurement when its time has come."""
        if outcome is not _SUCCESS and outcome is not _OVERLOAD:
            return
        if not 0.0 < latency < inf or not isfinite(now):
            return
        if now - (latency if held is None else held) < self._epoch:
            # A clock that stepped back would make every request look too old.
            if now < self._epoch:
                self._epoch = now
            return
        if len(self._samples) < _KEPT:
            self._samples.append(latency)
        else:
            self._samples[self._seen % _KEPT] = latency
        self._seen += 1
        if self._measuring:
            if self._seen >= self._probe_requests:
                self._unloaded = self._window()
                self.limit = self._restore
                self._measuring = False
                self._at_floor = 0
                self._phase = (self._phase + _GOLDEN) % 1.0
                self._next_update = now + self._update
                self._next_probe = now + self._interval * (1.0 + self._jitter * self._phase)
        elif now >= self._next_update or now < self._next_update - 2.0 * self._update:
            self._next_update = now + self._update
            self._adjust()
            if now >= self._next_probe or self._at_floor >= _PATIENCE:
                self._measure(now)

    def _window(self) -> float:
        ordered = sorted(self._samples)
        value = ordered[max(ceil(len(ordered) * self._percentile) - 1, 0)]
        self._samples = []
        self._seen = 0
        return value

    def _adjust(self) -> None:
        gradient = self._unloaded * (1.0 + self._buffer) / self._window()
        gradient = min(max(gradient, _LOWEST_GRADIENT), _HIGHEST_GRADIENT)
        scaled = self.limit * gradient
        self.limit = min(max(int(scaled + sqrt(scaled)), self.min), self.max)
        self._at_floor = self._at_floor + 1 if self.limit == self.min else 0

    def explain(self) -> dict[str, Any]:
        """Say the limit, the unloaded latency, and whether it is being measured."""
        return {
            "algorithm": "envoy-gradient",
            "limit": self.limit,
            "min": self.min,
            "max": self.max,
            "unloaded_latency": self._unloaded or None,
            "measuring": self._measuring,
            "limit_after_measuring": self._restore if self._measuring else None,
        }
