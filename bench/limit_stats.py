"""What do several seeds say together? Means, their bounds, and differences in pairs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf, isnan, nan, sqrt
from statistics import median

import msgspec
import numpy as np

from bench.limit_judge import Score

# Scenarios on which limits are compared with each other; B1, B7 and B13 have bounds of their own.
JUDGED = ("b02", "b03", "b04", "b05", "b06", "b08", "b09", "b10", "b11", "b12")

# Student's t, 95 % two-sided, by degrees of freedom; beyond the table it is 2.
_T = (inf, 12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179,
      2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093)  # fmt: skip


class Mean(msgspec.Struct, frozen=True):
    """A mean over seeds and the half width of its 95 % confidence interval."""

    mean: float
    half: float

    @property
    def low(self) -> float:
        """The lower bound; the mean itself when one seed allows no bound."""
        return self.mean - (0.0 if self.half == inf else self.half)

    @property
    def high(self) -> float:
        """The upper bound."""
        return self.mean + (0.0 if self.half == inf else self.half)


def mean_of(values: Iterable[float]) -> Mean:
    """The mean of `values` and its bounds."""
    array = np.asarray([value for value in values if not isnan(value)])
    if not len(array):
        return Mean(nan, inf)
    freedom = len(array) - 1
    t = _T[freedom] if freedom < len(_T) else 2.0
    half = t * float(array.std(ddof=1)) / sqrt(len(array)) if freedom else inf
    return Mean(float(array.mean()), half)


class Table:
    """Scores, found by scenario, queue and limit.

    Args:
        scores: Every score of a benchmark.
    """

    def __init__(self, scores: Sequence[Score]) -> None:
        self.scores = list(scores)
        self.scenarios = list(dict.fromkeys(score.scenario for score in scores))
        self.queues = list(dict.fromkeys(score.queue for score in scores))
        self.limits = list(dict.fromkeys(score.limit for score in scores))
        self._by: dict[tuple[str, str, str], list[Score]] = {}
        for score in sorted(scores, key=lambda score: score.seed):
            self._by.setdefault((score.scenario, score.queue, score.limit), []).append(score)

    @property
    def judged(self) -> list[str]:
        """The scenarios on which limits are compared."""
        return [name for name in self.scenarios if name.startswith(JUDGED)]

    def limits_of(self, queue: str) -> list[str]:
        """The limits that ran behind this queue."""
        return [
            limit
            for limit in self.limits
            if any(self.get(scenario, queue, limit) for scenario in self.scenarios)
        ]

    def get(self, scenario: str, queue: str, limit: str) -> list[Score]:
        """The scores of one cell, by seed."""
        return self._by.get((scenario, queue, limit), [])

    def share(self, scenario: str, queue: str, limit: str) -> Mean:
        """Share of the best fixed limit in one cell."""
        return mean_of(score.share for score in self.get(scenario, queue, limit))

    def geometric(self, queue: str, limit: str) -> Mean:
        """Geometric mean of the shares over the judged scenarios, seed by seed."""
        return mean_of(self._by_seed(queue, limit).values())

    def _by_seed(self, queue: str, limit: str) -> dict[int, float]:
        by_seed: dict[int, list[float]] = {}
        for scenario in self.judged:
            for score in self.get(scenario, queue, limit):
                by_seed.setdefault(score.seed, []).append(max(score.share, 1e-6))
        return {seed: float(np.exp(np.log(shares).mean())) for seed, shares in by_seed.items()}

    def worst(self, queue: str, limit: str) -> tuple[float, str]:
        """The lowest mean share over the judged scenarios, and where."""
        shares = [(self.share(name, queue, limit).mean, name) for name in self.judged]
        return min(shares) if shares else (nan, "")

    def ahead(self, scenario: str, queue: str, limit: str, other: str) -> Mean:
        """By how much `limit` is better than `other`, seed by seed on the same requests."""
        theirs = {score.seed: score.share for score in self.get(scenario, queue, other)}
        return mean_of(
            score.share - theirs[score.seed]
            for score in self.get(scenario, queue, limit)
            if score.seed in theirs
        )

    def ahead_overall(self, queue: str, limit: str, other: str) -> Mean:
        """By how much the geometric mean of `limit` is higher than that of `other`, in pairs."""
        mine, theirs = self._by_seed(queue, limit), self._by_seed(queue, other)
        return mean_of(mine[seed] - theirs[seed] for seed in mine if seed in theirs)

    def settling(self, queue: str, limit: str, *, harder: bool) -> tuple[float, int, int]:
        """Seconds until goodput is near the best after a change, over all such phases.

        Args:
            queue: The queue.
            limit: The limit.
            harder: After changes that ask more of the service (time to protect), or less
                (time to recover).

        Returns:
            The median in seconds (never counts as the length of the phase or more), how many
            never came near, and how many changes there were.
        """
        found: list[float] = []
        for scenario in self.scenarios:
            for score in self.get(scenario, queue, limit):
                found += [p.settled for p in score.phases[1:] if p.harder == harder]
        never = sum(isnan(value) for value in found)
        if not found:
            return nan, 0, 0
        return median(inf if isnan(value) else value for value in found), never, len(found)
