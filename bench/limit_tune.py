"""Are the others only badly set? Twenty random settings of each, and the best of them competes.

Settings are drawn around the published defaults, tried on seeds that the benchmark does not
use, and the one with the highest geometric mean of goodput over all scenarios enters the
benchmark a second time under the limit's name and a star. The published defaults themselves
are the first of the twenty.
"""

from __future__ import annotations

import gc
import inspect
from collections.abc import Sequence
from math import exp, log
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from bench import limit_kept
from bench.limit_moved import shortened
from bench.limit_settings import Contender
from loadgate.errors import PolicyError
from loadgate.limits import ALGORITHMS, PUBLISHED, create
from loadgate.policy import Policy
from loadgate.simulation import streams
from loadgate.simulation.run import policy_for, requests, simulate
from loadgate.simulation.scenario import Scenario

SETTINGS: Final = 20
REQUESTS: Final = 20_000
SEEDS: Final = (1001, 1002, 1003)
# Numbers are drawn between a quarter and four times the default, evenly on a log scale.
_SPREAD: Final = 4.0


class Trial(msgspec.Struct, frozen=True):
    """All settings of one limit on one scenario.

    Attributes:
        name: What the result calls the scenario.
        scenario: What happens.
        contenders: One limit with several settings.
        keep: Folder in which results are kept.
        fresh: Try again, whatever is kept.
    """

    name: str
    scenario: Scenario
    contenders: tuple[Contender, ...]
    keep: Path | None = None
    fresh: bool = False


def settings_of(algorithm: str, count: int = SETTINGS) -> tuple[Contender, ...]:
    """The published defaults of `algorithm` and `count` - 1 random settings around them."""
    dice = streams.dice(1, f"settings/{algorithm}")
    published: dict[str, Any] = dict(PUBLISHED.get(algorithm, {}))
    found = [Contender(f"{algorithm}*", algorithm, published)]
    while len(found) < count:
        settings: dict[str, Any] = {
            "initial": round(exp(dice.uniform(log(4), log(200)))),
            "min": dice.choice([1, published.get("min", 1)]),
            "max": dice.choice([1000, published.get("max", 1000)]),
        }
        settings["initial"] = min(max(settings["initial"], settings["min"]), settings["max"])
        for name, default in _numbers(algorithm, published).items():
            drawn = default * exp(dice.uniform(-log(_SPREAD), log(_SPREAD)))
            settings[name] = round(drawn) if isinstance(default, int) else drawn
        try:
            create(algorithm, **settings)
        except PolicyError:
            continue  # outside of what the limit accepts: draw again
        found.append(Contender(f"{algorithm}*", algorithm, settings))
    return tuple(found)


def try_out(trial: Trial) -> list[float]:
    """Mean share of arrivals answered in time, for each setting."""
    policy = policy_for(trial.scenario)
    kept = limit_kept.Kept(
        trial.keep if limit_kept.can_be_kept(trial.scenario, policy) else None,
        list[float],
        fresh=trial.fresh,
    )
    key = _key(trial, policy)
    found = kept.get(key)
    if found is None:
        found = _try_out(trial, policy)
        kept.put(key, found)
    return found


def _try_out(trial: Trial, policy: Policy) -> list[float]:
    gc.disable()
    scenario = shortened(trial.scenario, REQUESTS)
    totals = np.zeros(len(trial.contenders))
    for seed in SEEDS:
        work = requests(scenario, seed, policy)
        for index, contender in enumerate(trial.contenders):
            limit = contender.create(policy.concurrency.initial)
            record = simulate(scenario, policy, seed, limit=limit, workload=work)
            totals[index] += float(record.good.mean())
    gc.collect()
    return [float(total) / len(SEEDS) for total in totals]


def best(contenders: Sequence[Contender], goodput: Sequence[Sequence[float]]) -> Contender:
    """The setting with the highest geometric mean.

    Args:
        contenders: The settings of one limit.
        goodput: For each scenario, what each setting reached.
    """
    means = np.log(np.maximum(np.asarray(goodput), 1e-6)).mean(axis=0)
    return contenders[int(np.argmax(means))]


def _key(trial: Trial, policy: Policy) -> str:
    algorithms = sorted({contender.algorithm for contender in trial.contenders})
    return limit_kept.key_of(
        [
            limit_kept.of_runs(),
            limit_kept.of_bench("limit_tune", "limit_moved"),
            *(limit_kept.of_limit(algorithm) for algorithm in algorithms),
        ],
        limit_kept.plain(trial.scenario),
        msgspec.to_builtins(policy),
        [[contender.algorithm, contender.settings] for contender in trial.contenders],
    )


def _numbers(algorithm: str, published: dict[str, Any]) -> dict[str, float]:
    """The options of a limit that are numbers, with their defaults."""
    found: dict[str, float] = {}
    for name, parameter in inspect.signature(ALGORITHMS[algorithm]).parameters.items():
        default = published.get(name, parameter.default)
        numeric = isinstance(default, int | float) and not isinstance(default, bool)
        if name not in {"initial", "min", "max"} and numeric and default > 0:
            found[name] = default
    return found
