"""What happened? Plain counters, time integrals and histograms, read when somebody asks.

Nothing here is pushed anywhere. The hot path adds to slots; a scrape reads them, and reading
changes nothing that counts. Time integrals (`busy`, `queued`, `limit_seconds`, `saturated`)
give exact means between any two scrapes, which sampled gauges cannot.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

import msgspec

from loadgate.decisions import Outcome, Reason

# Upper edges in seconds: the decades of a web service in steps of about 2.5, from a cached
# answer to a slow report; above the last edge everything is "more".
EDGES: tuple[float, ...] = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
)  # fmt: skip

# A wait is bounded by `max_wait`, usually 0.1 s, so most of what there is to see lies below it.
WAIT_EDGES: tuple[float, ...] = (0.0005, *EDGES)

# Seconds after which a peak is forgotten at the earliest; it is forgotten at the latest after
# twice as long (if somebody looks). The usual scrape interval is 15 to 60 s.
PEAK_MEMORY = 60.0

# Priority classes that are counted from the start; a policy with more of them makes room.
CLASSES = 8

# Monotonic time is never negative, so this is no moment at which every place became taken.
_NOT_FULL = -1.0


def with_edges(edges: tuple[float, ...], *extra: float | None) -> tuple[float, ...]:
    """`edges` and `extra` in order: a quantile is exact only where an edge is.

    Args:
        edges: Upper edges in seconds.
        extra: Bounds that matter, in seconds; None and 0 are left out.
    """
    return tuple(sorted({*edges, *(edge for edge in extra if edge)}))


def integral(held: float, started: float, in_flight: int, now: float) -> float:
    """Integral of `in_flight` until `now`, from numbers that were read together.

    With nobody running, `started` is what rounding has left behind (under a millisecond after
    a billion requests) and is left out.
    """
    return held + max(0.0, in_flight * now - started) if in_flight else held


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
    """The counters of one controller.

    What can be derived is not counted: who was admitted has finished or still runs, and who
    arrived was admitted, refused, left or waits. The integral of `in_flight` is what those
    who ended have held and what those who run hold so far, for which the sum of their
    starting times (`started`, which falls again) is enough.

    Args:
        latency_edges: Upper edges of the latency histogram in seconds.
        wait_edges: Upper edges of the wait histogram in seconds.
    """

    __slots__ = (
        "admitted",
        "evicted",
        "finished",
        "full_since",
        "held",
        "latency",
        "left",
        "limit_at",
        "limit_falls",
        "limit_rises",
        "limit_seconds",
        "overloaded",
        "peak",
        "peak_before",
        "peak_since",
        "queued",
        "queued_at",
        "rate_limited",
        "refused",
        "saturated",
        "spared",
        "stalled",
        "stalls",
        "started",
        "wait",
        "wasted",
        "would_refuse",
    )

    def __init__(
        self,
        latency_edges: tuple[float, ...] = EDGES,
        wait_edges: tuple[float, ...] = WAIT_EDGES,
    ) -> None:
        # By priority class.
        self.admitted = [0] * CLASSES
        self.rate_limited = [0] * CLASSES
        self.overloaded = [0] * CLASSES
        # Every label exists from the start: a series that appears late breaks rate().
        self.finished = dict.fromkeys(Outcome, 0)
        self.refused = dict.fromkeys(Reason, 0)
        self.would_refuse = dict.fromkeys(Reason, 0)
        self.left = 0
        self.evicted = 0
        # Let through because enough had been refused already (see shedding.refused_share).
        self.spared = 0
        self.started = 0.0
        self.held = 0.0
        self.wasted = 0.0
        # The integral of the waiters up to `queued_at`.
        self.queued = 0.0
        self.queued_at = 0.0
        self.stalls = 0
        self.stalled = 0.0
        # Time with every place taken, up to `full_since` if all are taken now.
        self.saturated = 0.0
        self.full_since = _NOT_FULL
        # The integral of the limit up to `limit_at`.
        self.limit_seconds = 0.0
        self.limit_at = 0.0
        self.limit_rises = 0
        self.limit_falls = 0
        # The most that ran at once since `peak_since`, and in the stretch of time before it.
        self.peak = 0
        self.peak_before = 0
        self.peak_since = 0.0
        self.latency = Histogram(latency_edges)
        self.wait = Histogram(wait_edges)

    def running(self) -> int:
        """Requests that were admitted and have not ended."""
        return sum(self.admitted) - sum(self.finished.values())

    def arrived(self, waiting: int) -> int:
        """Requests that asked, of which so many wait."""
        return sum(self.admitted) + sum(self.refused.values()) + self.left + waiting

    def busy(self, now: float, in_flight: int) -> float:
        """Integral of `in_flight` over time until `now`, seconds."""
        return integral(self.held, self.started, in_flight, now)

    def full(self, now: float) -> float:
        """Seconds until `now` during which every place was taken."""
        return self.saturated + (max(0.0, now - self.full_since) if self.full_since >= 0 else 0.0)

    def note_fullness(self, now: float, full: bool) -> None:
        """Every place is taken from now on, or not."""
        if full:
            if self.full_since < 0:
                self.full_since = now
        elif self.full_since >= 0:
            self.saturated += max(0.0, now - self.full_since)
            self.full_since = _NOT_FULL

    def note_limit(self, now: float, old: int, new: int) -> None:
        """The limit moves from `old` to `new`."""
        self.limit_seconds += old * max(0.0, now - self.limit_at)
        self.limit_at = now
        if new > old:
            self.limit_rises += 1
        else:
            self.limit_falls += 1

    def begin(self, now: float) -> None:
        """Time starts at `now`; called once, before anything is counted."""
        self.queued_at = self.limit_at = self.peak_since = now

    def peak_lately(self, in_flight: int, now: float) -> int:
        """The most that ran at once in the last `PEAK_MEMORY` seconds, and up to as long before.

        Two readers do not disturb each other: time decides what is forgotten, not reading.
        """
        lately = max(self.peak_before, self.peak)
        if now - self.peak_since >= PEAK_MEMORY:
            self.peak_before, self.peak, self.peak_since = self.peak, in_flight, now
        return lately

    def classes_changed(self, old: Sequence[str], new: Sequence[str]) -> None:
        """The priority classes have other names now: counts follow the names."""
        for counts in (self.admitted, self.rate_limited, self.overloaded):
            kept = dict(zip(old, counts, strict=False))
            # Never shorter, because a permit made under the old classes may still be counted;
            # and what belonged to classes that are gone stays in the sum.
            gone = sum(counts) - sum(kept.get(name, 0) for name in new)
            spare = max(CLASSES, len(counts), len(new) + 1) - len(new)
            counts[:] = [*(kept.get(name, 0) for name in new), *[0] * (spare - 1), gone]


class ClassCounts(msgspec.Struct, frozen=True, gc=False):
    """What became of the requests of one priority class.

    Attributes:
        admitted: They got a place.
        rate_limited: They were refused with 429.
        overloaded: They were refused with 503.
    """

    admitted: int
    rate_limited: int
    overloaded: int


class BrakeLook(msgspec.Struct, frozen=True, gc=False):
    """A signal that may brake the limit, at one moment.

    Attributes:
        value: The signal: seconds of lag, or a pressure from 0 to 1.
        target: The value above which it brakes.
        factor: What it leaves of the limit, 1.0 when it does not brake.
        broken: Readings that were no number and were ignored.
        explanation: The same in a sentence.
    """

    value: float
    target: float
    factor: float
    broken: int
    explanation: str


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A controller at one moment; what every exporter reads.

    Attributes:
        name: The controller's name.
        at: Monotonic seconds of the reading.
        limit: Requests that may run at once.
        in_flight: Requests running under the limit.
        long_lived: Requests that run on beside the limit, without a place.
        waiting: Requests in the queue.
        arrived: Requests that asked, since the start.
        admitted: Requests that got a place, since the start.
        finished: Requests that ended, by outcome.
        refused: Requests refused, by reason; `rate` is the 429s.
        would_refuse: Requests that a stage in `observe` mode would have refused, by reason.
        left: Waiters that were cancelled or whose client left before they had a place.
        classes: What became of requests, by priority class.
        peak: The most requests that ran at once in the last one or two minutes.
        busy: Integral of `in_flight` over time, seconds.
        queued: Integral of `waiting` over time, seconds.
        limit_seconds: Integral of `limit` over time, seconds.
        saturated: Seconds during which every place was taken.
        limit_rises: Times the limit has risen.
        limit_falls: Times the limit has fallen.
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
        paced: Whether requests begin a few at a time, because the event loop is late.
        draining: Whether the controller is shutting down.
        algorithm: The name of the limit's algorithm.
        limit_state: What the limit says of itself (`Limit.explain`).
        rates: What each rate says of itself, by name.
        store: How the shared store fares (`StoreStats`), None without one.
        contended: Whether a client with a name waited or was refused in the last seconds, so
            that clients are compared.
        fair_level: Place-seconds that a typical client used lately, 0 while not contended.
        evicted: Waiters that had to go for an arrival.
        spared: Let through because enough had been refused (`queue.max_refused`).
        bypassing: Whether the kill switch lets everyone through.
        bypassed: Requests it has let through.
        brake: What signals leave of the limit, 1.0 when none brakes.
        signals: Every signal that may brake, by name.
        memory_used: Bytes in use, 0 if `signals.max_memory` is not set.
        memory_bound: Bytes that may be.
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
    classes: dict[str, ClassCounts]
    peak: int
    busy: float
    queued: float
    limit_seconds: float
    saturated: float
    limit_rises: int
    limit_falls: int
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
    store: Any = None
    contended: bool = False
    fair_level: float = 0.0
    evicted: int = 0
    spared: int = 0
    bypassing: bool = False
    bypassed: int = 0
    brake: float = 1.0
    signals: dict[str, BrakeLook] = {}  # msgspec copies it for each instance
    memory_used: int = 0
    memory_bound: int = 0
    long_lived: int = 0
    paced: bool = False
