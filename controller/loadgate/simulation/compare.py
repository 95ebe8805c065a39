"""Which policy suits this service? The same requests in front of several, over several seeds."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, sqrt
from typing import Final

import numpy as np

from loadgate.policy import Policy
from loadgate.simulation import oracles
from loadgate.simulation.run import requests, simulate
from loadgate.simulation.scenario import Scenario
from loadgate.simulation.summary import Summary, summarize

# Student's t, 95 % two-sided, by degrees of freedom; beyond the table it is 2.
_T: Final = (inf, 12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


@dataclass(slots=True, frozen=True)
class Candidate:
    """A policy and what reports call it."""

    label: str
    policy: Policy


@dataclass(slots=True, frozen=True)
class Result:
    """What one candidate did, one summary per seed."""

    candidate: Candidate
    runs: list[Summary]

    @property
    def label(self) -> str:
        """What reports call it."""
        return self.candidate.label

    def share(self, part: Callable[[Summary], float]) -> tuple[float, float]:
        """Mean over seeds of `part` per arrival, and half its 95 % interval (0 for one seed)."""
        return spread([part(run) / max(run.whole.arrivals, 1) for run in self.runs])

    def mean(self, part: Callable[[Summary], float]) -> float:
        """Mean over seeds of `part`, leaving out runs in which it is nan."""
        values = np.asarray([part(run) for run in self.runs])
        known = values[~np.isnan(values)]
        return float(known.mean()) if len(known) else float("nan")


@dataclass(slots=True, frozen=True)
class Comparison:
    """What all candidates did with the same requests.

    Attributes:
        scenario: What happened.
        results: One for each candidate, in the order given.
        possible: Requests that anyone could have answered at most, for each phase.
    """

    scenario: Scenario
    results: list[Result]
    possible: list[float]

    def ranked(self) -> list[Result]:
        """The candidates, the one with most answers in time first."""
        return sorted(self.results, key=lambda r: -r.share(lambda run: run.whole.good)[0])

    def lead(self, first: Result, second: Result) -> tuple[float, float]:
        """By how much of the arrivals `first` answers more in time, and half the interval."""
        return spread(
            [
                (mine.whole.good - theirs.whole.good) / max(mine.whole.arrivals, 1)
                for mine, theirs in zip(first.runs, second.runs, strict=True)
            ]
        )


def compare(
    scenario: Scenario,
    candidates: Sequence[Candidate],
    seeds: Sequence[int],
    advance: Callable[[str], None] = lambda _: None,
) -> Comparison:
    """Run `scenario` for every seed in front of every candidate.

    Args:
        scenario: What happens.
        candidates: At least one.
        seeds: At least one.
        advance: Called after each run with a few words.

    Raises:
        PolicyError: A client has a priority that a policy does not know.
    """
    runs: list[list[Summary]] = [[] for _ in candidates]
    for seed in seeds:
        for index, candidate in enumerate(candidates):
            # Levels of priority depend on the policy, so each draws (the same) requests anew.
            work = requests(scenario, seed, candidate.policy)
            record = simulate(scenario, candidate.policy, seed, workload=work)
            runs[index].append(summarize(record))
            del record, work
            gc.collect()
            advance(f"{candidate.label}, seed {seed}")
    results = [Result(c, r) for c, r in zip(candidates, runs, strict=True)]
    arrived = None if scenario.trace is None else results[0].runs[0].whole.arrivals
    return Comparison(scenario, results, _possible(scenario, arrived))


def spread(values: Sequence[float]) -> tuple[float, float]:
    """Mean and half the 95 % interval; 0.0 when one value allows none."""
    array = np.asarray(values)
    freedom = len(array) - 1
    if freedom < 1:
        return float(array.mean()), 0.0
    t = _T[freedom] if freedom < len(_T) else 2.0
    return float(array.mean()), t * float(array.std(ddof=1)) / sqrt(len(array))


def _possible(scenario: Scenario, arrived: int | None) -> list[float]:
    """The fluid bound of each phase; a trace has no rates, so there all arrivals are possible."""
    if arrived is None:
        return oracles.fluid(scenario)
    return [arrived * phase.seconds / scenario.seconds for phase in scenario.phases]
