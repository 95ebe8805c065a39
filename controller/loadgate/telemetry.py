"""What happened? Plain counters, time integrals and histograms, read when somebody asks.

Nothing here is pushed anywhere. The hot path adds to slots; a scrape reads them. Time
integrals (`busy`, `queued`) give exact means between any two scrapes, which sampled gauges
cannot.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

import msgspec

from loadgate.decisions import Outcome, Reason

# Upper edges in seconds: the decades of a web service in steps of about 2.5, from a cached
# answer to a slow report; above the last edge everything is "more".
EDGES: tuple[float, ...] = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
)  # fmt: skip


class Histogram:
    """Counts by upper edge in seconds, and the sum; one slot more than edges for the rest."""

    __slots__ = ("counts", "edges", "sum")

    def __init__(self, edges: tuple[float, ...] = EDGES) -> None:
        self.edges = edges
        self.counts = [0] * (len(edges) + 1)
        self.sum = 0.0

    def add(self, seconds: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.edges, seconds)] += 1
        self.sum += seconds

    def freeze(self) -> HistogramSnapshot:
        """The counts as they are now."""
        return HistogramSnapshot(self.edges, tuple(self.counts), self.sum)


class HistogramSnapshot(msgspec.Struct, frozen=True, gc=False):
    """A histogram at one moment.

    Attributes:
        edges: Upper edges in seconds, shape (n,).
        counts: Values at or below each edge and above the one before, shape (n + 1,).
        sum: Sum of all values in seconds.
    """

    edges: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float

    @property
    def count(self) -> int:
        """Number of values."""
        return sum(self.counts)


class Telemetry:
    """The counters of one controller. They only ever grow."""

    __slots__ = (
        "admitted",
        "arrived",
        "at",
        "busy",
        "deciding",
        "evicted",
        "finished",
        "held",
        "latency",
        "left",
        "outcomes",
        "queued",
        "refused",
        "stalled",
        "stalls",
        "wait",
        "wasted",
        "would_refuse",
    )

    def __init__(self) -> None:
        self.arrived = 0
        self.admitted = 0
        self.finished = 0
        self.left = 0
        self.evicted = 0
        # Every label exists from the start: a series that appears late breaks rate().
        self.refused = dict.fromkeys(Reason, 0)
        self.would_refuse = dict.fromkeys(Reason, 0)
        self.outcomes = dict.fromkeys(Outcome, 0)
        self.at = 0.0
        self.busy = 0.0
        self.queued = 0.0
        self.held = 0.0
        self.wasted = 0.0
        self.stalls = 0
        self.stalled = 0.0
        self.latency = Histogram()
        self.wait = Histogram()


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A controller at one moment; what every exporter reads.

    Attributes:
        name: The controller's name.
        at: Monotonic seconds of the reading.
        limit: Requests that may run at once.
        in_flight: Requests running.
        waiting: Requests in the queue.
        arrived: Requests that asked, since the start.
        admitted: Requests that got a place, since the start.
        finished: Requests that ended, by outcome.
        refused: Requests refused, by reason; `rate` is the 429s.
        would_refuse: Requests that a stage in `observe` mode would have refused, by reason.
        left: Waiters that were cancelled or whose client left before they had a place.
        busy: Integral of `in_flight` over time, seconds.
        queued: Integral of `waiting` over time, seconds.
        held: Sum of the times that places were occupied by requests that ended, seconds.
        wasted: Part of `held` spent on requests nobody waited for any more, seconds.
        latency: Seconds to the first answer.
        wait: Seconds in the queue of those who got a place after waiting.
        drain_rate: Places that become free each second when all are taken; 0 if unknown.
        max_queue: Waiters up to which everyone may wait, now.
        max_depth: Waiters at which every arrival is refused, now.
        loop_lag: Age of the event loop's last tick in seconds, 0 when nothing runs.
        stalls: Times the event loop stood still for long enough to matter.
        stalled: Seconds it stood still then.
        draining: Whether the controller is shutting down.
        algorithm: The name of the limit's algorithm.
        limit_state: What the limit says of itself (`Limit.explain`).
        rates: What each rate says of itself, by name.
    """

    name: str
    at: float
    limit: int
    in_flight: int
    waiting: int
    arrived: int
    admitted: int
    finished: dict[str, int]
    refused: dict[str, int]
    would_refuse: dict[str, int]
    left: int
    busy: float
    queued: float
    held: float
    wasted: float
    latency: HistogramSnapshot
    wait: HistogramSnapshot
    drain_rate: float
    max_queue: float
    max_depth: float
    loop_lag: float
    stalls: int
    stalled: float
    draining: bool
    algorithm: str
    limit_state: dict[str, Any]
    rates: dict[str, Any]
