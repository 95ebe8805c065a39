"""How does a scenario become a run? Requests, stages and a gate, all made for one seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import inf

import msgspec
import numpy as np

from loadgate.errors import PolicyError
from loadgate.simulation import streams
from loadgate.simulation.arrivals import times_of_phase
from loadgate.simulation.engine import Engine
from loadgate.simulation.laws import Floats
from loadgate.simulation.scenario import ClientSpec, Phase, Scenario, StageSpec
from loadgate.simulation.stages import Cores, Delay, Pool, Stage
from loadgate.simulation.traces import Arrivals, read_trace
from loadgate.simulation.workload import Client, Workload


def workload(scenario: Scenario, seed: int, priorities: tuple[str, ...] = ("default",)) -> Workload:
    """Draw every request of `scenario` for `seed`.

    Args:
        scenario: What happens.
        seed: At least 0; equal seeds give equal requests.
        priorities: The policy's classes, highest first.

    Raises:
        PolicyError: A client has a priority that the policy does not know.
    """
    horizon = scenario.seconds
    trace = read_trace(scenario) if scenario.trace is not None else None
    times_by_client: list[Floats] = []
    total = sum(client.share for client in scenario.clients)
    for index, client in enumerate(scenario.clients):
        if trace is not None:
            picked = streams.numbers(seed, f"trace/{index}").random(len(trace.times))
            times = (
                trace.times
                if len(scenario.clients) == 1
                else trace.times[picked < client.share / total]
            )
        else:
            times = _client_times(scenario, seed, client, client.share / total)
        times_by_client.append(times[times < horizon])
    which = np.repeat(np.arange(len(times_by_client)), [len(t) for t in times_by_client])
    times = np.concatenate(times_by_client)
    order = np.argsort(times, kind="stable")
    sizes = [
        _sizes(scenario, seed, stage, times_by_client, trace)[order].tolist()
        for stage in scenario.stages
    ]
    return Workload(
        times=times[order],
        client=which[order].tolist(),
        sizes=sizes,
        clients=tuple(
            _client(spec, index, scenario.slo, priorities)
            for index, spec in enumerate(scenario.clients)
        ),
        horizon=horizon,
        deadlines=_deadlines(scenario, seed, times_by_client, order),
        keys=_keys(scenario, seed, times_by_client, order, trace),
    )


def stages(scenario: Scenario) -> list[Stage]:
    """The stages of the service, as they are before the first phase."""
    made: list[Stage] = []
    for spec in scenario.stages:
        if spec.kind == "cores":
            made.append(Cores(spec.count, spec.speed, spec.contention, spec.crosstalk))
        elif spec.kind == "pool":
            made.append(Pool(spec.count, spec.speed))
        else:
            made.append(Delay())
    return made


def refusal_work(scenario: Scenario) -> float:
    """Core-seconds that one refusal costs."""
    for spec in scenario.stages:
        if spec.kind == "cores":
            return scenario.refusal_cost * spec.time.average
    return 0.0


def schedule(scenario: Scenario, engine: Engine) -> None:
    """Tell the engine when the service changes and when it stands still."""
    start = 0.0
    for phase in scenario.phases:
        for spec, stage in zip(scenario.stages, engine.stages, strict=True):
            if not isinstance(stage, Delay):
                change = phase.change.get(spec.called)
                count = spec.count if change is None or change.count is None else change.count
                speed = spec.speed if change is None or change.speed is None else change.speed
                engine.at(start, _change(engine, stage, count, speed))
        if phase.pauses is not None:
            for at in pauses_of(phase):
                engine.at(start + at, partial(engine.pause, seconds=phase.pauses.seconds))
        start += phase.seconds


def pauses_of(phase: Phase) -> list[float]:
    """When the process begins to stand still, seconds after the beginning of the phase.

    The first time after a whole interval; the last one is over before the phase is.
    """
    pauses, found = phase.pauses, list[float]()
    if pauses is not None:
        at = pauses.every
        while at + pauses.seconds < phase.seconds:
            found.append(at)
            at += pauses.every
    return found


def _change(
    engine: Engine, stage: Cores | Pool, count: int, speed: float
) -> Callable[[float], None]:
    def change(now: float) -> None:
        if isinstance(stage, Cores):
            stage.change(now, count=count, speed=speed)
        else:
            stage.count = count
            stage.speed = speed
            engine.fill(stage, now)

    return change


def changed(spec: StageSpec, count: int, speed: float) -> StageSpec:
    """The same stage with other cores or places."""
    return msgspec.structs.replace(spec, count=count, speed=speed)


def rate_of(scenario: Scenario, phase: Phase) -> tuple[float, float]:
    """Arrivals per second at the beginning and at the end of `phase`."""
    first, last = phase.levels
    factor = scenario.capacity if phase.rate is None else 1.0
    return first * factor, last * factor


def _client_times(scenario: Scenario, seed: int, client: ClientSpec, share: float) -> Floats:
    start = 0.0
    parts: list[Floats] = []
    for index, phase in enumerate(scenario.phases):
        first, last = rate_of(scenario, phase)
        name = f"{client.name}/{index}"
        parts.append(
            times_of_phase(
                streams.numbers(seed, f"arrivals/{name}"),
                start,
                phase.seconds,
                (first * share, last * share),
                bursts=phase.bursts,
                wave=phase.wave,
                batches=phase.batches,
                # One path for all classes: bursts come together.
                burst_numbers=streams.numbers(seed, f"bursts/{index}"),
            )
        )
        start += phase.seconds
    return np.concatenate(parts)


def _sizes(
    scenario: Scenario,
    seed: int,
    stage: StageSpec,
    times_by_client: list[Floats],
    trace: Arrivals | None,
) -> Floats:
    parts: list[Floats] = []
    for client, times in zip(scenario.clients, times_by_client, strict=True):
        if trace is not None and trace.durations is not None and stage.called == trace.stage:
            parts.append(trace.durations[np.searchsorted(trace.times, times)])
            continue
        numbers = streams.numbers(seed, f"work/{client.name}/{stage.called}")
        parts.append(stage.time.draw(numbers, len(times)) * _factors(scenario, stage, times))
    return np.concatenate(parts)


def _factors(scenario: Scenario, stage: StageSpec, times: Floats) -> Floats:
    """The factor on the work of each request, from the phase in which it arrives."""
    factors = np.ones(len(times))
    start = 0.0
    for phase in scenario.phases:
        change = phase.change.get(stage.called)
        if change is not None and change.work != 1.0:
            low, high = np.searchsorted(times, [start, start + phase.seconds])
            first, last = change.works
            progress = (times[low:high] - start) / phase.seconds
            factors[low:high] = first + (last - first) * progress
        start += phase.seconds
    return factors


def _client(spec: ClientSpec, index: int, slo: float, priorities: tuple[str, ...]) -> Client:
    if spec.priority not in priorities:
        raise PolicyError(
            f"clients[{index}].priority",
            f"{spec.priority!r} is none of the policy's: {', '.join(priorities)}",
        )
    return Client(
        name=spec.name,
        level=priorities.index(spec.priority),
        priority=spec.priority,
        slo=spec.slo if spec.slo is not None else slo,
        timeout=inf if spec.timeout is None else spec.timeout,
        cancels=spec.cancels,
        retries=spec.retries,
        backoff=spec.backoff,
        jitter=spec.jitter,
        budget=inf if spec.budget is None else spec.budget,
        patient=spec.patient,
        cost=spec.cost,
    )


def _deadlines(
    scenario: Scenario, seed: int, times_by_client: list[Floats], order: np.ndarray
) -> list[float] | None:
    if all(client.deadline is None for client in scenario.clients):
        return None
    parts = [
        np.full(len(times), inf)
        if client.deadline is None
        else client.deadline.draw(streams.numbers(seed, f"deadlines/{client.name}"), len(times))
        for client, times in zip(scenario.clients, times_by_client, strict=True)
    ]
    return np.concatenate(parts)[order].tolist()  # type: ignore[no-any-return]  # numpy says Any


def _keys(
    scenario: Scenario,
    seed: int,
    times_by_client: list[Floats],
    order: np.ndarray,
    trace: Arrivals | None,
) -> Sequence[str | None] | None:
    if trace is not None and trace.clients is not None:
        times = np.concatenate(times_by_client)[order]
        return [trace.clients[int(i)] for i in np.searchsorted(trace.times, times)]
    if all(client.keys is None for client in scenario.clients):
        return None
    names: list[str | None] = []
    for client, times in zip(scenario.clients, times_by_client, strict=True):
        if client.keys is None or client.keys == 1:
            names += [None if client.keys is None else client.name] * len(times)
            continue
        weights = np.arange(1, client.keys + 1, dtype=np.float64) ** -client.skew
        numbers = streams.numbers(seed, f"keys/{client.name}")
        picked = numbers.choice(client.keys, size=len(times), p=weights / weights.sum())
        names += [f"{client.name}-{k}" for k in picked.tolist()]
    return [names[int(i)] for i in order]
