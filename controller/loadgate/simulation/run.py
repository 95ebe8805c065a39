"""What would happen? One scenario, one policy, one seed; and what came of it, as arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import nan
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from loadgate.decisions import Reason
from loadgate.limits.base import Limit
from loadgate.policy import Policy
from loadgate.simulation import build, gate, streams
from loadgate.simulation.engine import GAVE_UP, REFUSED, SERVED, Engine
from loadgate.simulation.laws import Floats
from loadgate.simulation.scenario import Scenario
from loadgate.simulation.workload import Client, Workload

# Gauges are read this many times per run: two for each pixel of a wide plot.
_LOOKS: Final = 1200
# Seconds after the last arrival within which everything must have ended: a service that is
# buried under retries may otherwise go on for ever.
_AFTERWARDS: Final = 120.0

REASONS: Final = tuple(Reason)


@dataclass(slots=True, frozen=True)
class Gauges:
    """What was read at regular moments, arrays of shape (looks,)."""

    times: Floats
    limit: Floats
    in_flight: Floats
    waiting: Floats


@dataclass(slots=True, frozen=True)
class Record:
    """What came of every arrival of one run, arrays of shape (n,).

    Attributes:
        seed: The seed.
        scenario: What happened.
        clients: The classes of clients.
        times: Intended starts in seconds, rising.
        client: Index into `clients`.
        verdict: UNFINISHED, SERVED, REFUSED or GAVE_UP (see `engine`).
        latency: Seconds from the intended start to the answer that was heard; nan if none.
        wait: Seconds of it in the queue.
        reason: Index into `REASONS` of the last refusal, -1 if never refused.
        slo: Seconds within which the answer counts.
        gauges: The limit, in flight and waiting over time.
        attempts: All attempts of all clients.
        refusals: Refused attempts by class and reason.
        held: Seconds that places were held.
        wasted: Seconds of it for clients who had gone.
        explanation: What the limit says of itself at the end.
    """

    seed: int
    scenario: Scenario
    clients: tuple[Client, ...]
    times: Floats
    client: NDArray[np.int64]
    verdict: NDArray[np.int8]
    latency: Floats
    wait: Floats
    reason: NDArray[np.int8]
    slo: Floats
    gauges: Gauges
    attempts: int
    refusals: tuple[dict[Reason, int], ...]
    held: float
    wasted: float
    explanation: dict[str, Any]

    @property
    def good(self) -> NDArray[np.bool_]:
        """Whether each arrival was answered in time."""
        with np.errstate(invalid="ignore"):
            return np.asarray(self.latency <= self.slo)

    @property
    def refused(self) -> NDArray[np.bool_]:
        """Whether each arrival was refused for good."""
        return np.asarray(self.verdict == REFUSED)

    @property
    def gave_up(self) -> NDArray[np.bool_]:
        """Whether each arrival's client left without an answer."""
        return np.asarray(self.verdict == GAVE_UP)


def policy_for(scenario: Scenario, settings: Mapping[str, Any] | None = None) -> Policy:
    """The policy of `settings` (as in a policy file) over what the scenario asks for.

    Raises:
        PolicyError: A setting is wrong.
    """
    return Policy.from_mapping(_merged(scenario.policy, settings or {}))


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        known = merged.get(key)
        if isinstance(known, Mapping) and isinstance(value, Mapping):
            merged[key] = _merged(
                cast("Mapping[str, Any]", known), cast("Mapping[str, Any]", value)
            )
        else:
            merged[key] = value
    return merged


def simulate(
    scenario: Scenario,
    policy: Policy,
    seed: int,
    *,
    limit: Limit | None = None,
    workload: Workload | None = None,
) -> Record:
    """Run `scenario` behind `policy`.

    Args:
        scenario: What happens.
        policy: What stands in front of the service.
        seed: At least 0; equal seeds give equal requests whatever the policy, and equal
            records for equal policies.
        limit: A limit to use instead of the policy's.
        workload: The requests, if they were drawn before (`requests`).
    """
    work = workload if workload is not None else requests(scenario, seed, policy)
    engine = Engine(
        work,
        build.stages(scenario),
        gate.admission(policy, limit),
        gate_dice=streams.dice(seed, "gate"),
        client_dice=streams.dice(seed, "clients"),
        refusal_work=build.refusal_work(scenario),
        rates=gate.rates(policy),
    )
    build.schedule(scenario, engine)
    watch = _Watch(engine, work.horizon)
    engine.run(until=work.horizon + _AFTERWARDS)
    return _record(scenario, seed, work, engine, watch.gauges())


def requests(scenario: Scenario, seed: int, policy: Policy | None = None) -> Workload:
    """Every request of `scenario` for `seed`; they depend on nothing else.

    Raises:
        PolicyError: A client has a priority that the policy does not know.
    """
    priorities = tuple((policy or Policy()).priorities)
    return build.workload(scenario, seed, priorities)


class _Watch:
    """Reads the gauges at regular moments.

    A class and not a function that passes itself on: nothing refers in a circle when the run is
    over, so all of it is freed at once.
    """

    __slots__ = ("_engine", "_looks", "_step")

    def __init__(self, engine: Engine, horizon: float) -> None:
        self._engine = engine
        self._step = horizon / _LOOKS
        self._looks: list[tuple[float, int, int, int]] = []
        engine.at(0.0, self._look)

    def _look(self, now: float) -> None:
        looks, admission = self._looks, self._engine.admission
        at = len(looks) * self._step
        looks.append((at, admission.places, admission.in_flight, admission.room.depth))
        if len(looks) < _LOOKS:
            self._engine.at(len(looks) * self._step, self._look)

    def gauges(self) -> Gauges:
        """What was read."""
        table = np.asarray(self._looks, dtype=np.float64).reshape(-1, 4)
        return Gauges(table[:, 0], table[:, 1], table[:, 2], table[:, 3])


def _record(
    scenario: Scenario, seed: int, work: Workload, engine: Engine, gauges: Gauges
) -> Record:
    verdict = np.asarray(engine.verdict, dtype=np.int8)
    ended = np.asarray(engine.ended)
    client = np.asarray(work.client, dtype=np.int64)
    index = {reason: i for i, reason in enumerate(REASONS)}
    served = verdict == SERVED
    return Record(
        seed=seed,
        scenario=scenario,
        clients=work.clients,
        times=work.times,
        client=client,
        verdict=verdict,
        latency=np.where(served, np.where(served, ended, 0.0) - work.times, nan),
        wait=np.where(served, np.asarray(engine.wait), nan),
        reason=np.asarray(
            [-1 if reason is None else index[reason] for reason in engine.why], dtype=np.int8
        ),
        slo=np.asarray([c.slo for c in work.clients])[client] if len(client) else np.empty(0),
        gauges=gauges,
        attempts=engine.attempts,
        refusals=tuple(engine.refusals),
        held=engine.held,
        wasted=engine.wasted,
        explanation=engine.admission.limit.explain(),
    )
