"""How much was ever done at once, and how fast at best? Their product is the limit.

The limiter that Kratos (and in variants go-zero and Sentinel) calls BBR.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, isfinite
from typing import Any, Final

from loadgate.decisions import Outcome
from loadgate.errors import PolicyError
from loadgate.limits.settings import real, whole

_SUCCESS: Final = Outcome.SUCCESS

_READING: Final = 0.5  # seconds between readings of the saturation, Kratos
_DECAY: Final = 0.95  # weight of the old saturation at each reading, Kratos
_COOL_OFF: Final = 1.0  # seconds for which the start of an episode keeps the gate shut, Kratos
_FASTEST: Final = 1e-3  # Kratos counts latency in whole milliseconds, at least one


class BbrLimit:
    """The busiest bucket's completions times the fastest bucket's mean latency.

    The window holds `buckets` buckets; the present one is not looked at, and the product is
    recomputed when a bucket ends. A request is let in while the number before it is not above the
    product, hence the limit is the product plus one, and never below 2; both are Kratos's
    quirks, and so is that the busiest and the fastest bucket need not be the same, which
    overestimates bursty services and those with few requests per bucket.

    Kratos enforces this only while the smoothed CPU load is at least 80 %, or within a second
    of the start of an episode of refusals. With `saturation`, a function that says how busy the
    process is from 0 to 1, the same gate stands here: while it is open the limit is `max`.

    Published defaults: window 10 s, 100 buckets, threshold 0.8.

    Departures: until the first bucket with an answer has ended the limit is `initial` (Kratos
    has none); failures do not count as answers.

    Args:
        initial: The limit before anything was measured.
        min: The lowest limit.
        max: The highest limit, and the limit while the gate is open.
        window: Seconds that are remembered.
        buckets: Buckets of the window.
        saturation: How busy the process is, 0 to 1; None enforces the product always.
        threshold: Smoothed saturation from which the product is enforced.
    """

    __slots__ = (
        "_busy",
        "_count",
        "_episode",
        "_next_reading",
        "_product",
        "_saturation",
        "_slot",
        "_spent",
        "_threshold",
        "_width",
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
        window: float = 10.0,
        buckets: int = 100,
        saturation: Callable[[], float] | None = None,
        threshold: float = 0.8,
    ) -> None:
        if saturation is not None and not callable(saturation):
            raise PolicyError("saturation", f"{saturation!r} is not a function")
        self.min = min
        self.max = max
        count = whole("buckets", buckets, 2, 10_000)
        self._width = real("window", window, 0.1, 3600.0) / count
        self._threshold = real("threshold", threshold, 0.0, 1.0)
        self._saturation = saturation
        self._count = [0] * count
        self._spent = [0.0] * count
        self._slot = -1
        self._product = initial - 1
        self._busy = 0.0
        self._next_reading = -inf
        self._episode: float | None = None
        self.limit = initial if saturation is None else max

    def on_admit(self, now: float, in_flight: int) -> None:
        """Read the saturation when its time has come."""
        if self._saturation is not None:
            self._gate(now)

    def on_wait(self, now: float) -> None:
        """An episode of refusals starts, as far as Kratos would tell."""
        self.on_refuse(now)

    def on_refuse(self, now: float) -> None:
        """An episode of refusals starts, unless one lasts."""
        if self._saturation is not None:
            if self._episode is None and self._busy >= self._threshold:
                self._episode = now
            self._gate(now)

    def on_stall(self, now: float, duration: float) -> None:
        """Kratos knows of no pauses."""

    def on_finish(
        self,
        now: float,
        latency: float,
        in_flight: int,
        outcome: Outcome,
        held: float | None = None,
    ) -> None:
        """Count a success into its bucket; a new bucket computes the product anew."""
        if outcome is not _SUCCESS or not 0.0 < latency < inf or not isfinite(now):
            return
        slot = int(now // self._width)
        if slot != self._slot:
            self._turn(slot)
        index = slot % len(self._count)
        self._count[index] += 1
        self._spent[index] += latency
        if self._saturation is not None:
            self._gate(now)

    def _turn(self, slot: int) -> None:
        size = len(self._count)
        if self._slot >= 0 and 0 < slot - self._slot < size:
            passed = range(self._slot + 1, slot + 1)
        else:  # the first, a step of the clock, or silence for longer than the window
            passed = range(slot, slot + size)
        if self._slot >= 0 and any(self._count):
            self._product = self._measure()
        for old in passed:
            self._count[old % size] = 0
            self._spent[old % size] = 0.0
        self._slot = slot
        if self._saturation is None:
            self._enforce(True)

    def _measure(self) -> int:
        most = 1
        fastest = inf
        for count, spent in zip(self._count, self._spent, strict=True):
            if count:
                most = max(most, count)
                fastest = min(fastest, spent / count)
        fastest = max(fastest, _FASTEST)
        return int(min(most * fastest / self._width + 0.5, 1e9))

    def _gate(self, now: float) -> None:
        if self._saturation is not None and not now < self._next_reading:
            self._next_reading = now + _READING
            reading = self._saturation()
            if 0.0 <= reading <= 1.0:
                self._busy = _DECAY * self._busy + (1.0 - _DECAY) * reading
        enforced = self._busy >= self._threshold
        if not enforced and self._episode is not None:
            if 0.0 <= now - self._episode <= _COOL_OFF:
                enforced = True
            else:
                self._episode = None
        self._enforce(enforced)

    def _enforce(self, enforced: bool) -> None:
        limit = max(self._product, 1) + 1 if enforced else self.max
        self.limit = self.min if limit < self.min else self.max if limit > self.max else limit

    def explain(self) -> dict[str, Any]:
        """Say the limit, the product behind it, and the gate."""
        return {
            "algorithm": "bbr",
            "limit": self.limit,
            "min": self.min,
            "max": self.max,
            "product": self._product,
            "saturation": self._busy if self._saturation is not None else None,
            "threshold": self._threshold,
        }
