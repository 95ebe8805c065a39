"""What does it mean, in words? Sentences for someone who has to choose settings."""

from __future__ import annotations

from loadgate.simulation.compare import Comparison, Result
from loadgate.simulation.figures import percent, points, seconds
from loadgate.simulation.results import phases

# Below this share of the possible a phase is worth a sentence of its own.
_POOR = 0.9
# Classes that differ by more than this in answers in time are worth one.
_UNEQUAL = 0.1


def verdict(comparison: Comparison) -> list[str]:
    """One paragraph for each thing worth knowing, the most important first."""
    said = [_winner(comparison)] if len(comparison.results) > 1 else []
    return said + [" ".join(_about(comparison, result)) for result in comparison.results]


def _winner(comparison: Comparison) -> str:
    first, second, *_ = comparison.ranked()
    lead, half = comparison.lead(first, second)
    seeds = len(first.runs)
    over = f"over {seeds} seeds" if seeds > 1 else "on one seed"
    if lead <= half or lead < 0.002:
        return (
            f"{first.label} and {second.label} answer equally many requests in time {over}; "
            "choose between them by latency, or by what is simpler."
        )
    sure = f" (± {points(half)}%)" if half else "; run more seeds to be sure"
    return (
        f"{first.label} answers most requests in time: {percent(lead)} of all arrivals more than "
        f"{second.label} {over}{sure}."
    )


def _about(comparison: Comparison, result: Result) -> list[str]:
    scenario = comparison.scenario
    good, _ = result.share(lambda run: run.whole.good)
    arrivals = result.mean(lambda run: run.whole.arrivals)
    possible = min(sum(comparison.possible) / max(arrivals, 1.0), 1.0)
    refused, _ = result.share(lambda run: run.whole.overloaded)
    limited, _ = result.share(lambda run: run.whole.rate_limited)
    late, _ = result.share(lambda run: run.whole.late + run.whole.gave_up)
    p99 = result.mean(lambda run: run.whole.p99)
    said = [
        f"{result.label}: {percent(good)} of all requests were answered in time; "
        f"{'everyone' if possible >= 0.999 else f'at most {percent(possible)}'} could have been, "
        f"so it made {percent(min(good / possible, 1.0))} of the possible."
    ]
    if refused > 0.0005:
        said.append(f"It refused {percent(refused)} because the service was full.")
    if limited > 0.0005:
        said.append(
            f"Rates refused {percent(limited)} because a client asked for more than its share."
        )
    needless = refused + limited - (1.0 - possible)
    if needless > 0.005:
        said.append(
            f"{percent(needless)} were refused though the service could have answered them."
        )
    if late > 0.005:
        said.append(
            f"{percent(late)} were answered too late or not at all: they cost work for nothing."
        )
    slos = [client.slo or scenario.slo for client in scenario.clients]
    if p99 == p99:
        inside = "within" if p99 <= min(slos) else "beyond"
        said.append(
            f"The p99 of all answers was {seconds(p99)}, {inside} the SLO of {seconds(min(slos))}."
        )
    said += _phases(comparison, result)
    said += _classes(result)
    attempts = result.mean(lambda run: run.attempts)
    if attempts > 1.01:
        said.append(f"Clients made {attempts:.2f} attempts for each request.")
    wasted = result.mean(lambda run: run.wasted)
    if wasted > 0.01:
        said.append(f"{percent(wasted, 0)} of the service's time went to clients who had left.")
    return said


def _phases(comparison: Comparison, result: Result) -> list[str]:
    if len(comparison.possible) < 2:
        return []
    poor: list[str] = []
    for index, stretch in enumerate(phases(comparison.scenario)):
        possible = comparison.possible[index]
        got = sum(run.by_phase[index] for run in result.runs) / len(result.runs)
        if possible > 0.0 and got < _POOR * possible:
            poor.append(f"{percent(got / possible, 0)} in {stretch.name!r}")
    return [f"It fell short of the possible in: {', '.join(poor)}."] if poor else []


def _classes(result: Result) -> list[str]:
    names = [each.name for each in result.runs[0].classes]
    if len(names) < 2:
        return []
    shares = {
        name: result.mean(
            lambda run, index=index: (
                run.classes[index].good  # type: ignore[misc]  # a default binds it
                / max(run.classes[index].arrivals, 1)
            )
        )
        for index, name in enumerate(names)
    }
    best, worst = max(shares, key=lambda n: shares[n]), min(shares, key=lambda n: shares[n])
    if shares[best] - shares[worst] <= _UNEQUAL:
        return []
    return [
        f"Of {best!r} {percent(shares[best])} were answered in time, "
        f"of {worst!r} {percent(shares[worst])}."
    ]
