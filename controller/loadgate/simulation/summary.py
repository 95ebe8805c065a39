"""What is kept of a run when many are compared? Counts, series in bins, and nothing per request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from loadgate.decisions import Reason
from loadgate.simulation import results
from loadgate.simulation.laws import Floats
from loadgate.simulation.run import REASONS, Gauges, Record

BINS: Final = 120
_RATE: Final = REASONS.index(Reason.RATE)


@dataclass(slots=True, frozen=True)
class ClassSummary:
    """What one class of clients got (times in seconds, from the intended start).

    Attributes:
        name: The class.
        arrivals: How many arrived.
        good: Answered in time.
        late: Answered too late.
        rate_limited: Refused for good by a rate (429).
        overloaded: Refused for good because the service was full (503).
        gave_up: Left without an answer (or had none when the run ended).
        p50: Median latency of the answered; nan if none.
        p99: Their 99th percentile.
    """

    name: str
    arrivals: int
    good: int
    late: int
    rate_limited: int
    overloaded: int
    gave_up: int
    p50: float
    p99: float


@dataclass(slots=True, frozen=True)
class Summary:
    """One run.

    Attributes:
        seed: The seed.
        classes: Each class of clients.
        whole: All of them together.
        by_phase: Answered in time, for each phase.
        edges: Edges of the bins in seconds, shape (BINS + 1,).
        arrivals: Arrivals per second in each bin, shape (BINS,).
        good: Answered in time, per second, by bin of arrival.
        refused: Last refusals of those refused for good, per second, by reason.
        p50: Median latency of those who arrived in each bin; nan if none was answered.
        p99: Their 99th percentile.
        gauges: Limit, in flight and waiting over time.
        attempts: Attempts per arrival.
        wasted: Share of the time in which places were held for clients who had left.
        refusals: Refused attempts by reason.
    """

    seed: int
    classes: list[ClassSummary]
    whole: ClassSummary
    by_phase: list[int]
    edges: Floats
    arrivals: Floats
    good: Floats
    refused: dict[Reason, Floats]
    p50: Floats
    p99: Floats
    gauges: Gauges
    attempts: float
    wasted: float
    refusals: dict[str, int]


def summarize(record: Record) -> Summary:
    """Reduce a record to what reports show."""
    seconds = record.scenario.seconds
    edges = np.linspace(0.0, seconds, BINS + 1)
    width = seconds / BINS
    where = np.minimum((record.times / width).astype(np.int64), BINS - 1)

    def per_second(chosen: NDArray[np.bool_]) -> Floats:
        return np.bincount(where[chosen], minlength=BINS)[:BINS] / width

    refused = record.refused
    p50, p99 = _quantiles(record, where)
    every = np.ones(len(record.times), dtype=np.bool_)
    classes = [
        _class(record, client.name, record.client == index)
        for index, client in enumerate(record.clients)
    ]
    by_reason = {
        reason: per_second(refused & (record.reason == index))
        for index, reason in enumerate(REASONS)
        if bool((refused & (record.reason == index)).any())
    }
    return Summary(
        seed=record.seed,
        classes=classes,
        whole=_class(record, "all", every),
        by_phase=[
            int(record.good[results.inside(record, stretch.start, stretch.end)].sum())
            for stretch in results.phases(record.scenario)
        ],
        edges=edges,
        arrivals=per_second(every),
        good=per_second(record.good),
        refused=by_reason,
        p50=p50,
        p99=p99,
        gauges=record.gauges,
        attempts=record.attempts / max(len(record.times), 1),
        wasted=record.wasted / record.held if record.held else 0.0,
        refusals=results.refusals(record),
    )


def _class(record: Record, name: str, mine: NDArray[np.bool_]) -> ClassSummary:
    good, refused = record.good & mine, record.refused & mine
    answered = mine & ~np.isnan(record.latency)
    rate_limited = int((refused & (record.reason == _RATE)).sum())
    p50, p99 = (
        np.quantile(record.latency[answered], [0.5, 0.99]) if answered.any() else (np.nan, np.nan)
    )
    return ClassSummary(
        name=name,
        arrivals=int(mine.sum()),
        good=int(good.sum()),
        late=int(answered.sum() - good.sum()),
        rate_limited=rate_limited,
        overloaded=int(refused.sum()) - rate_limited,
        gave_up=int(mine.sum() - answered.sum() - refused.sum()),
        p50=float(p50),
        p99=float(p99),
    )


def _quantiles(record: Record, where: NDArray[np.int64]) -> tuple[Floats, Floats]:
    p50, p99 = np.full(BINS, np.nan), np.full(BINS, np.nan)
    answered = np.flatnonzero(~np.isnan(record.latency))
    starts = np.searchsorted(where[answered], np.arange(BINS + 1))
    for index in range(BINS):
        latency = record.latency[answered[starts[index] : starts[index + 1]]]
        if len(latency):
            p50[index], p99[index] = np.quantile(latency, [0.5, 0.99])
    return p50, p99
