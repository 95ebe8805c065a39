"""How good was it? Figures from the record of a run, whole and by stretch of time.

An arrival belongs to the stretch in which it was meant to start, whenever it ended, so that
every policy is judged on the same requests.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import nan
from typing import Final

import numpy as np
from numpy.typing import NDArray

from loadgate.simulation.laws import Floats
from loadgate.simulation.run import Record
from loadgate.simulation.scenario import Scenario

# Seconds for which goodput must stay near the best before a disturbance counts as over, and
# the share of it that is near: the definition of time to recover used in the literature on
# overload control (1 s goodput at 95 % for 5 s), with the five seconds taken as one window.
_STEADY: Final = 5.0
NEAR: Final = 0.95
# Arrivals a window must hold: at 13/s five seconds are 65 requests, too few to tell 95 %.
_ENOUGH: Final = 200.0
# Width of the bins of goodput over time, seconds.
BIN: Final = 0.5


@dataclass(slots=True, frozen=True)
class Stretch:
    """A part of a run: a phase, or a cut of one.

    Attributes:
        name: What reports call it.
        start: Seconds from the beginning of the run.
        end: Where it ends.
        phase: Index of the phase it lies in.
    """

    name: str
    start: float
    end: float
    phase: int


@dataclass(slots=True, frozen=True)
class Figures:
    """What came of the arrivals of one stretch (times in seconds).

    Attributes:
        arrivals: How many.
        good: Answered in time.
        refused: Refused for good.
        gave_up: Left without an answer.
        p50: Median latency of the served, from the intended start; nan if none.
        p99: Their 99th percentile.
    """

    arrivals: int
    good: int
    refused: int
    gave_up: int
    p50: float
    p99: float


def phases(scenario: Scenario) -> list[Stretch]:
    """The phases of a scenario as stretches."""
    start = 0.0
    found: list[Stretch] = []
    for index, phase in enumerate(scenario.phases):
        name = phase.name or f"phase {index + 1}"
        found.append(Stretch(name, start, start + phase.seconds, index))
        start += phase.seconds
    return found


def cuts(scenario: Scenario) -> list[Stretch]:
    """The pieces of those phases that ask to be cut."""
    found: list[Stretch] = []
    for whole, phase in zip(phases(scenario), scenario.phases, strict=True):
        if phase.cuts:
            edges = [0.0, *phase.cuts, phase.seconds]
            found += [
                Stretch(
                    f"{whole.name}, {low:g} to {high:g} s",
                    whole.start + low,
                    whole.start + high,
                    whole.phase,
                )
                for low, high in pairwise(edges)
            ]
    return found


def inside(record: Record, start: float, end: float) -> slice:
    """The arrivals meant to start in [start, end)."""
    low, high = np.searchsorted(record.times, [start, end])
    return slice(int(low), int(high))


def figures(record: Record, where: slice, chosen: NDArray[np.bool_] | None = None) -> Figures:
    """Count the arrivals of `where`, or those of them that are `chosen` (shape (n,))."""
    picked = slice(None) if chosen is None else chosen[where]
    latency = record.latency[where][picked]
    served = latency[~np.isnan(latency)]
    p50, p99 = np.quantile(served, [0.5, 0.99]) if len(served) else (nan, nan)
    return Figures(
        arrivals=len(latency),
        good=int(record.good[where][picked].sum()),
        refused=int(record.refused[where][picked].sum()),
        gave_up=int(record.gave_up[where][picked].sum()),
        p50=float(p50),
        p99=float(p99),
    )


def goodput(record: Record, width: float = BIN) -> Floats:
    """Answers in time per arrival bin of `width` seconds, shape (bins,)."""
    bins = max(1, int(np.ceil(record.scenario.seconds / width)))
    index = np.minimum((record.times[record.good] / width).astype(np.int64), bins - 1)
    return np.bincount(index, minlength=bins).astype(np.float64)


def time_to(
    series: Floats, best: Floats, arrivals: Floats, start: float, end: float, width: float = BIN
) -> float:
    """Seconds from `start` until goodput stays near the best for a while.

    Args:
        series: Goodput per bin, shape (bins,).
        best: That of the reference on the same arrivals, shape (bins,).
        arrivals: Arrivals per bin, shape (bins,).
        start: When it was disturbed.
        end: When the next disturbance comes.
        width: Seconds per bin.

    Returns:
        0.0 if it never fell; nan if it does not come near before `end`.
    """
    low, high = round(start / width), min(round(end / width), len(series))
    rate = float(arrivals[low:high].sum()) / max(end - start, width)
    span = max(_STEADY, _ENOUGH / rate if rate > 0.0 else 0.0)
    window = min(max(1, round(span / width)), high - low)
    if window <= 0:
        return nan
    ones = np.ones(window)
    mine = np.convolve(series[low:high], ones, mode="valid")
    theirs = np.convolve(best[low:high], ones, mode="valid")
    near = np.flatnonzero(mine >= NEAR * theirs)
    return float(near[0]) * width if len(near) else nan


def arrivals_per_bin(record: Record, width: float = BIN) -> Floats:
    """Arrivals per bin of `width` seconds, shape (bins,)."""
    bins = max(1, int(np.ceil(record.scenario.seconds / width)))
    index = np.minimum((record.times / width).astype(np.int64), bins - 1)
    return np.bincount(index, minlength=bins).astype(np.float64)


def swing(record: Record, stretch: Stretch) -> float:
    """How restless the limit is in the second half of a stretch: sd over mean."""
    middle = 0.5 * (stretch.start + stretch.end)
    when = (record.gauges.times >= middle) & (record.gauges.times < stretch.end)
    limit = record.gauges.limit[when]
    return float(limit.std() / limit.mean()) if len(limit) else 0.0


def slope(record: Record, stretch: Stretch) -> float:
    """Growth of the limit per minute in a stretch's last two thirds, as a share of its mean."""
    begin = stretch.start + (stretch.end - stretch.start) / 3.0
    when = (record.gauges.times >= begin) & (record.gauges.times < stretch.end)
    times, limit = record.gauges.times[when], record.gauges.limit[when]
    if len(times) < 2:
        return 0.0
    return float(np.polyfit(times, limit, 1)[0] * 60.0 / limit.mean())


def refusals(record: Record) -> dict[str, int]:
    """Refused attempts by reason, the most frequent first."""
    total: dict[str, int] = {}
    for by_reason in record.refusals:
        for reason, count in by_reason.items():
            total[reason.value] = total.get(reason.value, 0) + count
    return dict(sorted(total.items(), key=lambda item: -item[1]))


def fairness(rates: Floats, shares: Floats) -> float:
    """Jain's index over what clients got beside their max-min fair share.

    Args:
        rates: Answers per second of each client, shape (clients,).
        shares: The fair rate of each (`oracles.max_min`), shape (clients,).

    Returns:
        1.0 when all got the same part of their share, 1/clients when one got everything.
    """
    got = rates / shares
    return float(got.sum() ** 2 / (len(got) * (got**2).sum()))
