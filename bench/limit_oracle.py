"""What is the best that a fixed limit could have done? Found for each seed, kept on disk.

For every phase of a run the best fixed limit is searched on the very same requests: first a
coarse geometric grid around the bandwidth-delay product, widened while the best lies at its
edge, then twice the neighbourhood of each phase's best. A clairvoyant who switches between
these limits at the phase boundaries is the reference of the benchmark.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from bench import limit_kept
from loadgate.limits.fixed import FixedLimit
from loadgate.policy import Policy
from loadgate.simulation import results
from loadgate.simulation.run import Record, simulate
from loadgate.simulation.scenario import Scenario
from loadgate.simulation.workload import Workload

HIGHEST: Final = 1000
_COARSE: Final = 1.6
# A wider grid must pay by more than the noise of a few requests.
_GAIN: Final = 1.0005


class Trial(msgspec.Struct, frozen=True):
    """One fixed limit: what it did in each phase, and its goodput over time."""

    good: list[int]
    refused: list[int]
    series: list[float]


class Best(msgspec.Struct, frozen=True):
    """The best fixed limit of each phase.

    Attributes:
        limits: The limit, for each phase.
        good: Answers in time of that limit in that phase.
        refused: Refusals of that limit in that phase.
        series: Goodput per bin, in each phase of its best limit.
        tried: Every limit tried, and its answers in time by phase.
    """

    limits: list[int]
    good: list[int]
    refused: list[int]
    series: list[float]
    tried: dict[int, list[int]]


def best_fixed(
    scenario: Scenario,
    policy: Policy,
    seed: int,
    work: Workload,
    keep: Path | None = None,
    *,
    refine: int = 2,
    fresh: bool = False,
) -> Best:
    """Find the best fixed limit of each phase of `scenario` for `seed`.

    Args:
        scenario: What happens.
        policy: Only its queue matters.
        seed: The seed.
        work: The requests of that seed.
        keep: Folder in which answers are kept.
        refine: How many times the neighbourhood of each best is searched.
        fresh: Search again, whatever is kept.
    """
    kept = limit_kept.Kept(
        keep if limit_kept.can_be_kept(scenario, policy) else None, Best, fresh=fresh
    )
    key = _key(scenario, policy, seed, refine)
    best = kept.get(key)
    if best is None:
        best = _search(scenario, policy, seed, work, refine)
        kept.put(key, best)
    return best


def _search(scenario: Scenario, policy: Policy, seed: int, work: Workload, refine: int) -> Best:
    tried: dict[int, Trial] = {}

    def attempt(limits: Iterable[int]) -> None:
        for limit in limits:
            if limit not in tried:
                fixed = FixedLimit(initial=limit, min=limit, max=limit)
                tried[limit] = _trial(simulate(scenario, policy, seed, limit=fixed, workload=work))

    def winner(phase: int) -> int:
        return max(tried, key=lambda n: (tried[n].good[phase], -tried[n].refused[phase], -n))

    product = scenario.capacity * sum(stage.time.average for stage in scenario.stages)
    attempt(_whole(product * _COARSE**k for k in range(-3, 5)))
    count = len(scenario.phases)
    for _ in range(12):
        low, high = min(tried), max(tried)
        wider: set[int] = set()
        for phase in range(count):
            best = winner(phase)
            if best == low > 1:
                wider.update(_whole([low / _COARSE]))
            if best == high < HIGHEST and _pays(tried, phase):
                wider.update(_whole([high * _COARSE]))
        if not wider:
            break
        attempt(sorted(wider))
    for _ in range(refine):
        known = sorted(tried)
        between: set[int] = set()
        for phase in range(count):
            at = known.index(winner(phase))
            for other in known[max(at - 1, 0) : at + 2]:
                between.update(_whole([(other * known[at]) ** 0.5]))
        attempt(sorted(between - set(tried)))
    limits = [winner(phase) for phase in range(count)]
    series = np.zeros(len(tried[limits[0]].series))
    for stretch, limit in zip(results.phases(scenario), limits, strict=True):
        low, high = round(stretch.start / results.BIN), round(stretch.end / results.BIN)
        series[low:high] = tried[limit].series[low:high]
    return Best(
        limits=limits,
        good=[tried[limit].good[i] for i, limit in enumerate(limits)],
        refused=[tried[limit].refused[i] for i, limit in enumerate(limits)],
        series=series.tolist(),
        tried={limit: tried[limit].good for limit in sorted(tried)},
    )


def _trial(record: Record) -> Trial:
    counted = [
        results.figures(record, results.inside(record, stretch.start, stretch.end))
        for stretch in results.phases(record.scenario)
    ]
    return Trial(
        good=[figures.good for figures in counted],
        refused=[figures.refused for figures in counted],
        series=results.goodput(record).tolist(),
    )


def _pays(tried: dict[int, Trial], phase: int) -> bool:
    below, top = sorted(tried)[-2:]
    return tried[top].good[phase] > _GAIN * tried[below].good[phase]


def _whole(limits: Iterable[float]) -> list[int]:
    return sorted({min(max(round(limit), 1), HIGHEST) for limit in limits})


def _key(scenario: Scenario, policy: Policy, seed: int, refine: int) -> str:
    # What is asked of the limit itself, as where it starts, does not touch a fixed one.
    asked = msgspec.to_builtins(policy)
    concurrency = asked.pop("concurrency", {})
    return limit_kept.key_of(
        [limit_kept.of_runs(), limit_kept.of_limit("fixed"), limit_kept.of_bench("limit_oracle")],
        limit_kept.plain(scenario, "policy"),
        asked,
        [concurrency.get("mode"), concurrency.get("max_share")],
        seed,
        refine,
    )
