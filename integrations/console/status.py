"""What does a live view get to see? One controller's snapshot and its last refusals, as JSON.

The counters are the ones that Prometheus reads, so the views cannot disagree.
"""

from __future__ import annotations

import time
from typing import Any, Final

import msgspec

from loadgate import __version__
from loadgate.controller import AdmissionController
from loadgate.integrations.witness import Sighting, Witness
from loadgate.telemetry import HistogramSnapshot

# Of this process, as nearly as matters: whoever serves loads this when it starts.
_BEGAN: Final = time.monotonic()

# Readers refuse what they do not know rather than show nonsense.
FORMAT = 1


class Counts(msgspec.Struct, frozen=True):
    """A histogram: upper edges in seconds, and counts with one more for the rest."""

    edges: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float


class StoreLook(msgspec.Struct, frozen=True):
    """The shared store as a view shows it.

    Attributes:
        state: Of the circuit breaker: closed (works), half-open (being probed), open (away).
        nodes: Processes that share it.
        decisions: By who decided, since the start.
    """

    state: str
    nodes: int
    decisions: dict[str, int]


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """A controller at one moment; the fields that are not explained are those of `Snapshot`.

    Attributes:
        format: The version of this shape.
        version: The version of loadgate.
        low: The lowest the limit may go.
        high: The highest.
        max_queue: None for no bound, as for `max_depth`.
        max_wait: Seconds, the longest wait.
        latency_target: Seconds, None without one.
        mode: Of the limit: enforce, observe or off.
        requests: Decisions since the start: admitted, rate_limited, overloaded, left.
        classes: The same by priority class.
        sightings: The last refusals, the newest first.
        top_share: Share of the recent refusals that hit one client.
        up: Seconds since the process began.
        store: None without shared rates.
    """

    format: int = FORMAT
    version: str = __version__
    name: str
    at: float
    limit: int
    low: int
    high: int
    in_flight: int
    waiting: int
    peak: int
    max_queue: float | None
    max_depth: float | None
    max_wait: float
    latency_target: float | None
    mode: str
    algorithm: str
    draining: bool
    requests: dict[str, int]
    refused: dict[str, int]
    would_refuse: dict[str, int]
    finished: dict[str, int]
    classes: dict[str, dict[str, int]]
    busy: float
    queued: float
    limit_seconds: float
    saturated: float
    wasted: float
    held: float
    stalled: float
    loop_lag: float
    latency: Counts
    wait: Counts
    limit_state: dict[str, Any]
    rates: dict[str, dict[str, float]]
    sightings: list[Sighting]
    top_share: float
    up: float = 0.0
    store: StoreLook | None = None
    bypassing: bool = False
    brake: float = 1.0
    paced: bool = False


def status_of(controller: AdmissionController, witness: Witness | None = None) -> Status:
    """What `controller` knows now.

    Args:
        controller: Whose.
        witness: What saw its refusals.
    """
    look = controller.snapshot()
    policy = controller.policy
    rate_limited = look.refused.get("rate", 0)
    shared: dict[str, Any] = {} if look.store is None else look.store.rates
    return Status(
        name=look.name,
        at=look.at,
        limit=look.limit,
        low=policy.concurrency.min,
        high=policy.concurrency.max,
        in_flight=look.in_flight,
        waiting=look.waiting,
        peak=look.peak,
        max_queue=_finite(look.max_queue),
        max_depth=_finite(look.max_depth),
        max_wait=policy.queue.max_wait,
        latency_target=policy.concurrency.latency_target,
        mode=policy.concurrency.mode,
        algorithm=look.algorithm,
        draining=look.draining,
        requests={
            "admitted": look.admitted,
            "rate_limited": rate_limited,
            "overloaded": sum(look.refused.values()) - rate_limited,
            "left": look.left,
        },
        refused=look.refused,
        would_refuse=look.would_refuse,
        finished=look.finished,
        classes={
            name: {
                "admitted": counts.admitted,
                "rate_limited": counts.rate_limited,
                "overloaded": counts.overloaded,
            }
            for name, counts in look.classes.items()
        },
        busy=look.busy,
        queued=look.queued,
        limit_seconds=look.limit_seconds,
        saturated=look.saturated,
        wasted=look.wasted,
        held=look.held,
        stalled=look.stalled,
        loop_lag=look.loop_lag,
        latency=_counts(look.latency),
        wait=_counts(look.wait),
        limit_state={
            key: value
            for key, value in look.limit_state.items()
            if isinstance(value, int | float | str | None)
        },
        rates={
            name: {
                "allowed": stats.allowed,
                "refused": stats.refused,
                "would_refuse": stats.would_refuse,
                "keys": stats.keys,
            }
            for name, stats in (look.rates | shared).items()
        },
        sightings=witness.sightings() if witness is not None else [],
        top_share=witness.top_share(look.at) if witness is not None else 0.0,
        up=time.monotonic() - _BEGAN,
        store=None
        if look.store is None
        else StoreLook(look.store.state, look.store.nodes, look.store.decisions),
        bypassing=look.bypassing,
        brake=look.brake,
        paced=look.paced,
    )


def _finite(value: float) -> float | None:
    """JSON knows no infinity."""
    return value if value < float("inf") else None


def _counts(histogram: HistogramSnapshot) -> Counts:
    return Counts(histogram.edges, histogram.counts, histogram.sum)
