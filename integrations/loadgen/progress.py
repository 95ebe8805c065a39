"""What is happening? Counts of a running load, cut into intervals for a live view."""

from __future__ import annotations

import msgspec

from loadgate.integrations.loadgen.plan import Plan
from loadgate.integrations.loadgen.result import (
    OVERLOADED,
    RATE_LIMITED,
    Failure,
    is_success,
    percentile,
)


class ClassCounts(msgspec.Struct):
    """What the clients of one class have seen in one interval.

    Attributes:
        sent: Requests that left.
        good: Successes within the SLO.
        slow: Successes beyond it.
        limited: Answers 429.
        refused: Answers 503.
        gave_up: Requests whose client lost patience.
        broken: Every other end.
    """

    sent: int = 0
    good: int = 0
    slow: int = 0
    limited: int = 0
    refused: int = 0
    gave_up: int = 0
    broken: int = 0


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """One interval of a running load, by the time at which things happened.

    Attributes:
        at: End of the interval, seconds after the start.
        seconds: Its length.
        phase: The phase of its middle.
        classes: Counts by class.
        p50, p99: Latency of the successes that ended in it, seconds, nan without any.
    """

    at: float
    seconds: float
    phase: str
    classes: dict[str, ClassCounts]
    p50: float | None
    p99: float | None


class Counts:
    """Collects until the next cut."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._names = [one.name for one in plan.classes]
        self._since = 0.0
        self._fresh()

    def _fresh(self) -> None:
        self._classes = {name: ClassCounts() for name in self._names}
        self._latencies: list[float] = []

    def sent(self, name: str) -> None:
        """A request left."""
        self._classes[name].sent += 1

    def ended(self, name: str, status: int, latency: float) -> None:
        """A request ended."""
        counts = self._classes[name]
        if is_success(status):
            self._latencies.append(latency)
            if latency <= self._plan.slo:
                counts.good += 1
            else:
                counts.slow += 1
        elif status == OVERLOADED:
            counts.refused += 1
        elif status == RATE_LIMITED:
            counts.limited += 1
        elif status == Failure.TIMEOUT:
            counts.gave_up += 1
        else:
            counts.broken += 1

    def cut(self, now: float) -> Progress:
        """Hand out the interval that ends now and begin the next."""
        middle = (self._since + now) / 2
        started = (
            phase.name
            for phase, start in zip(self._plan.phases, self._plan.starts(), strict=True)
            if start <= middle
        )
        *_, phase = ("", *started)
        progress = Progress(
            at=now,
            seconds=now - self._since,
            phase=phase,
            classes=self._classes,
            p50=percentile(self._latencies, 0.5) if self._latencies else None,
            p99=percentile(self._latencies, 0.99) if self._latencies else None,
        )
        self._since = now
        self._fresh()
        return progress
