"""Does a limit hold what its scenario demands? The bounds of the files against the scores."""

from __future__ import annotations

from collections.abc import Mapping
from math import isnan
from typing import Final

from bench.limit_stats import Table, mean_of
from loadgate.simulation.scenario import Scenario

# Absolute slack for one seed: shares of single seeds scatter with a standard deviation of up to
# 0.015 around their mean, so that a limit on its bound would fail every other time without it.
ONE_SEED = 0.03


# Bounds that `adaptive` is known to miss, with the value that it must not exceed meanwhile
# (docs/adaptive.md says why). They keep a smoke run of one seed red for what gets worse; the
# benchmark itself knows nothing of them and says what is missed.
KNOWN_MISSES: Final = {("b06-slow-downstream", "false_refusals"): 0.06}

NOTHING: Final[Mapping[tuple[str, str], float]] = {}


def broken(
    table: Table,
    scenarios: Mapping[str, Scenario],
    limit: str,
    queue: str,
    slack: float = 0.0,
    known: Mapping[tuple[str, str], float] = NOTHING,
) -> list[str]:
    """Say in words which bounds do not hold.

    Args:
        table: The scores.
        scenarios: The scenarios by name, for their bounds.
        limit: The limit that is judged.
        queue: Behind this queue.
        slack: Allowed beyond each bound on a share of arrivals.
        known: Values up to which a missed bound is no news, by scenario and what is bounded.
    """
    found: list[str] = []
    for name, scenario in scenarios.items():
        scores = table.get(name, queue, limit)
        if not scores:
            continue
        bounds = scenario.bounds
        share = mean_of(score.share for score in scores)
        if bounds.share is not None and share.low < bounds.share - slack:
            found.append(f"{name}: share {share.low:.3f} is below {bounds.share:g}")
        for what, bound in (
            ("false_refusals", bounds.false_refusals),
            ("refused", bounds.refused),
        ):
            value = mean_of(getattr(score, what) for score in scores).mean
            allowed = known.get((name, what), 0.0)
            if bound is not None and value > max(bound + 0.2 * slack, allowed):
                found.append(f"{name}: {what} {value:.4f} is above {bound:g}")
        p99 = mean_of(score.p99 for score in scores).mean
        if bounds.p99 is not None and (isnan(p99) or p99 > bounds.p99):
            found.append(f"{name}: p99 {p99:.3f} s is above {bounds.p99:g} s")
        slope = mean_of(score.slope for score in scores).mean
        # A slope over two minutes of one seed is mostly noise; ten seeds tell.
        if bounds.slope is not None and slope > bounds.slope + 5.0 * slack:
            found.append(f"{name}: the limit grows by {slope:.1%} a minute")
    return found
