"""How well could anyone have done? Bounds and best results that no policy can beat.

The best fixed limit of every phase, searched on the same requests, is in `bench/limit_oracle`;
here are those that need no search.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush

import numpy as np

from loadgate.simulation import build, theory
from loadgate.simulation.laws import Floats
from loadgate.simulation.scenario import Scenario


def fixed(scenario: Scenario, limits: Sequence[int], rate: float) -> dict[int, tuple[float, float]]:
    """Completions per second and mean latency of fixed limits without a queue, exactly.

    Holds for cores and delays in sequence under Poisson arrivals, any service law (for cores
    and delays), outside of phases that change something.

    Args:
        scenario: Only its stages matter.
        limits: The limits.
        rate: Arrivals per second.

    Raises:
        ValueError: The scenario has a pool with a law that is not exponential: a queue in
            order of arrival has a product form only then.
    """
    stations: list[Callable[[int], float]] = []
    for stage in scenario.stages:
        mean = stage.time.average
        if stage.kind == "delay":
            stations.append(theory.delay(mean))
            continue
        if stage.kind == "pool" and type(stage.time).__name__ != "Exponential":
            raise ValueError(f"stage {stage.called}: a pool needs exponential times here")
        stations.append(
            theory.cores(stage.count, mean / stage.speed, stage.contention, stage.crosstalk)
        )
    capacities = theory.closed(max(limits), stations)
    return {n: theory.loss(rate, capacities[:n].tolist())[:2] for n in limits}


def fluid(scenario: Scenario) -> list[float]:
    """Requests that could be served: what arrives or what can be done, the less at each moment.

    No randomness, and no work carried from one moment to the next: bursts count with their
    mean, and clients who come back later are not foreseen. Pauses take their time away.

    Returns:
        Requests, for each phase.
    """
    found: list[float] = []
    for phase in scenario.phases:
        first, last = build.rate_of(scenario, phase)
        steps = np.linspace(0.0, 1.0, 1001)
        offered = first + (last - first) * steps
        if phase.wave is not None:
            offered = offered * (
                1.0
                + phase.wave.swing * np.sin(2 * np.pi * steps * phase.seconds / phase.wave.period)
            )
        possible = np.full(len(steps), np.inf)
        for stage in scenario.stages:
            if stage.kind == "delay":
                continue
            change = phase.change.get(stage.called)
            low, high = (1.0, 1.0) if change is None else change.works
            count = stage.count if change is None or change.count is None else change.count
            speed = stage.speed if change is None or change.speed is None else change.speed
            most = build.changed(stage, count, speed).most
            if phase.pauses is not None:
                stood = len(build.pauses_of(phase)) * phase.pauses.seconds
                most *= 1.0 - stood / phase.seconds
            possible = np.minimum(
                possible, most / (stage.time.average * (low + (high - low) * steps))
            )
        served = float(np.trapezoid(np.minimum(offered, possible), steps)) * phase.seconds
        found.append(served)
    return found


def by_priority(offered: Sequence[float], capacity: float) -> list[float]:
    """Requests per second of each class when the first is always served first.

    Args:
        offered: Arrivals per second of each class, the most important first.
        capacity: Requests per second altogether.
    """
    left = capacity
    served: list[float] = []
    for rate in offered:
        served.append(min(rate, left))
        left -= served[-1]
    return served


def max_min(offered: Sequence[float], capacity: float) -> Floats:
    """The max-min fair share of each client: nobody can get more without a poorer one losing.

    Args:
        offered: Arrivals per second of each client, shape (n,).
        capacity: Requests per second altogether.

    Returns:
        Requests per second of each, in the order given, shape (n,).
    """
    asked = np.asarray(offered, dtype=np.float64)
    share = np.zeros(len(asked))
    left = capacity
    order = np.argsort(asked, kind="stable")
    for place, client in enumerate(order):
        share[client] = min(asked[client], left / (len(asked) - place))
        left -= share[client]
    return share


def clairvoyant(
    times: Sequence[float], sizes: Sequence[float], deadlines: Sequence[float], cores: int = 1
) -> int:
    """Requests that end in time under one who knows every size and may stop and resume.

    Earliest deadline first on one server of `cores` times the speed (which no real set of
    cores can beat), and whenever what is known does not fit any more, the request with most
    work left is dropped (Moore and Hodgson's rule, applied to the work left at each arrival).

    Args:
        times: When each arrives, rising, shape (n,).
        sizes: Seconds of work of one core, shape (n,).
        deadlines: The moment each must have ended, shape (n,).
        cores: How many there are.
    """
    open_work: dict[int, float] = {}
    by_deadline: list[tuple[float, int]] = []
    done, now = 0, 0.0

    def work_until(moment: float) -> int:
        nonlocal now
        ended = 0
        while by_deadline and now < moment:
            deadline, job = by_deadline[0]
            if job not in open_work:
                heappop(by_deadline)
                continue
            needed = open_work[job] / cores
            if now + needed <= moment:
                now += needed
                heappop(by_deadline)
                del open_work[job]
                ended += now <= deadline + 1e-9
            else:
                open_work[job] -= (moment - now) * cores
                now = moment
        now = max(now, moment)
        return ended

    for job, arrival in enumerate(times):
        done += work_until(arrival)
        open_work[job] = sizes[job]
        heappush(by_deadline, (deadlines[job], job))
        # Moore and Hodgson: walk by deadline; at the first that is late, drop the largest so far.
        while True:
            passed, late = now, False
            seen: list[int] = []
            for deadline, known in sorted(by_deadline):
                if known not in open_work:
                    continue
                seen.append(known)
                passed += open_work[known] / cores
                if passed > deadline + 1e-9:
                    late = True
                    break
            if not late:
                break
            del open_work[max(seen, key=lambda k: open_work[k])]
    return done + work_until(float("inf") if by_deadline else now)
