"""Does it still hold where nobody tuned it? The same scenarios with other numbers and order."""

from __future__ import annotations

import msgspec

from loadgate.simulation import streams
from loadgate.simulation.laws import scaled
from loadgate.simulation.run import requests
from loadgate.simulation.scenario import Phase, Scenario, StageSpec


def moved(scenario: Scenario, amount: float, seed: int) -> Scenario:
    """Move services, rates and cores by up to `amount` (0.3: ±30 %) and shuffle the phases.

    Args:
        scenario: The scenario to move.
        amount: Largest relative change, 0 to below 1.
        seed: Equal seeds move alike.
    """
    dice = streams.dice(seed, f"moved/{scenario.title}")

    def factor() -> float:
        return 1.0 + amount * (2.0 * dice.random() - 1.0)

    stages: list[StageSpec] = []
    for stage in scenario.stages:
        count = max(1, round(stage.count * factor()))
        stages.append(
            msgspec.structs.replace(stage, time=scaled(stage.time, factor()), count=count)
        )
    # The loads are shares of the capacity, which has moved with cores and times by now.
    phases = [_phase(phase, factor()) for phase in scenario.phases]
    dice.shuffle(phases)
    changed = [_fitting(phase, scenario.stages, stages) for phase in phases]
    return msgspec.structs.replace(scenario, stages=stages, phases=changed)


def shortened(scenario: Scenario, most: int) -> Scenario:
    """The same scenario with its phases cut down in proportion to about `most` requests."""
    expected = len(requests(scenario, 0))
    if expected <= most:
        return scenario
    factor = most / expected
    phases = [
        msgspec.structs.replace(
            phase,
            seconds=phase.seconds * factor,
            cuts=[cut * factor for cut in phase.cuts],
        )
        for phase in scenario.phases
    ]
    return msgspec.structs.replace(scenario, phases=phases)


def _phase(phase: Phase, factor: float) -> Phase:
    def times(level: float | list[float] | None) -> float | list[float] | None:
        if isinstance(level, list):
            return [factor * each for each in level]
        return None if level is None else factor * level

    return msgspec.structs.replace(phase, load=times(phase.load), rate=times(phase.rate))


def _fitting(phase: Phase, before: list[StageSpec], after: list[StageSpec]) -> Phase:
    """Keep a step from 8 to 3 cores a step by the same ratio."""
    change = dict(phase.change)
    for old, new in zip(before, after, strict=True):
        mine = change.get(old.called)
        if mine is not None and mine.count is not None:
            count = max(1, round(mine.count * new.count / old.count))
            change[old.called] = msgspec.structs.replace(mine, count=count)
    return msgspec.structs.replace(phase, change=change)
