"""How good was a limit in one run, beside the best fixed limit on the same requests?"""

from __future__ import annotations

from math import nan
from typing import Final

import msgspec
import numpy as np

from bench.limit_oracle import Best
from loadgate.simulation import results
from loadgate.simulation.run import Record

# A phase in which even the best fixed limit refuses more than this is overloaded; in the
# others every further refusal is a false one.
_FITS: Final = 0.01


class PhaseScore(msgspec.Struct, frozen=True):
    """One phase of one run.

    Attributes:
        name: The phase.
        share: Answers in time, as a share of the best fixed limit's.
        arrivals: How many arrived.
        refused: Refused share of the arrivals.
        refused_best: The same of the best fixed limit.
        p50: Median latency of the served, seconds.
        p99: 99th percentile.
        settled: Seconds until goodput was near the best for good, nan for never.
        harder: Whether the phase asks more of the service than the one before.
        limit: Mean limit in its second half.
        best: The best fixed limit.
        swing: Standard deviation of the limit over its mean, in the second half.
    """

    name: str
    share: float
    arrivals: int
    refused: float
    refused_best: float
    p50: float
    p99: float
    settled: float
    harder: bool
    limit: float
    best: int
    swing: float


class Score(msgspec.Struct, frozen=True):
    """One run of one limit.

    Attributes:
        scenario: File name and variant.
        queue: "default" or "none".
        limit: The label of the limit.
        seed: The seed.
        share: Answers in time, as a share of what the best fixed limits do, all phases.
        false_refusals: Refusals beyond the best fixed limit's in the phases that fit and begin
            no earlier than `bounds.after`, as a share of the arrivals there.
        refused: Refused share of the arrivals after `bounds.after`.
        p99: 99th percentile of latency of the served, seconds.
        slope: Growth of the limit per minute in the last phase.
        waste: Share of the time that places were held for nobody.
        phases: Each phase.
        cuts: Share in each cut of a phase.
    """

    scenario: str
    queue: str
    limit: str
    seed: int
    share: float
    false_refusals: float
    refused: float
    p99: float
    slope: float
    waste: float
    phases: list[PhaseScore]
    cuts: dict[str, float]


def judge(record: Record, best: Best, scenario: str, queue: str, limit: str) -> Score:
    """Put figures on one run.

    Args:
        record: What came of it.
        best: The best fixed limits on the same requests.
        scenario: What the result calls the scenario.
        queue: What it calls the queue.
        limit: What it calls the limit.
    """
    stretches = results.phases(record.scenario)
    arrivals = results.arrivals_per_bin(record)
    series, reference = results.goodput(record), np.asarray(best.series)
    phases: list[PhaseScore] = []
    good = false = fitting = 0
    before = 0.0
    for index, stretch in enumerate(stretches):
        figures = results.figures(record, results.inside(record, stretch.start, stretch.end))
        good += figures.good
        pressure = _pressure(record, index)
        refused_best = best.refused[index] / max(figures.arrivals, 1)
        # `after` leaves the first learning out: no limit knows a service before it has seen it.
        if refused_best <= _FITS and stretch.start >= record.scenario.bounds.after:
            fitting += figures.arrivals
            false += max(figures.refused - best.refused[index], 0)
        half = 0.5 * (stretch.start + stretch.end)
        when = (record.gauges.times >= half) & (record.gauges.times < stretch.end)
        phases.append(
            PhaseScore(
                name=stretch.name,
                share=figures.good / max(best.good[index], 1),
                arrivals=figures.arrivals,
                refused=figures.refused / max(figures.arrivals, 1),
                refused_best=refused_best,
                p50=figures.p50,
                p99=figures.p99,
                settled=results.time_to(series, reference, arrivals, stretch.start, stretch.end),
                harder=pressure >= before,
                limit=float(record.gauges.limit[when].mean()) if when.any() else nan,
                best=best.limits[index],
                swing=results.swing(record, stretch),
            )
        )
        before = pressure
    late = results.inside(record, record.scenario.bounds.after, np.inf)
    whole = results.figures(record, slice(None))
    return Score(
        scenario=scenario,
        queue=queue,
        limit=limit,
        seed=record.seed,
        share=good / max(sum(best.good), 1),
        false_refusals=false / max(fitting, 1),
        refused=float(record.refused[late].mean()) if len(record.times[late]) else 0.0,
        p99=whole.p99,
        slope=results.slope(record, stretches[-1]),
        waste=record.wasted / record.held if record.held else 0.0,
        phases=phases,
        cuts=_cuts(record, reference),
    )


def _pressure(record: Record, index: int) -> float:
    """Seconds of work asked for per second of work possible, in one phase (roughly)."""
    scenario = record.scenario
    phase = scenario.phases[index]
    rate = phase.levels[1] * (scenario.capacity if phase.rate is None else 1.0)
    worst = 0.0
    for stage in scenario.stages:
        if stage.kind == "delay":
            continue
        change = phase.change.get(stage.called)
        work = stage.time.average
        count, speed = stage.count, stage.speed
        if change is not None:
            work *= change.works[1]
            count, speed = change.count or count, change.speed or speed
        worst = max(worst, rate * work / (count * speed))
    return worst


def _cuts(record: Record, reference: np.ndarray) -> dict[str, float]:
    series = results.goodput(record)
    found: dict[str, float] = {}
    for cut in results.cuts(record.scenario):
        low, high = round(cut.start / results.BIN), round(cut.end / results.BIN)
        theirs = float(reference[low:high].sum())
        found[cut.name] = float(series[low:high].sum()) / theirs if theirs else nan
    return found
