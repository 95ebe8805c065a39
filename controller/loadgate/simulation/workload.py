"""Which requests will come? All of them, drawn before the run, whatever a policy does.

Arrival i has its intended moment, its client, its size in every stage and its deadline fixed
here. Policies that refuse more, or let clients retry more, still meet exactly these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from loadgate.simulation.laws import Floats


@dataclass(slots=True, frozen=True)
class Client:
    """How the clients of one class behave (times in seconds).

    Attributes:
        name: The class, as reports show it.
        level: Priority class of their requests, 0 is served first.
        priority: Its name in the policy.
        slo: An answer later than this after the intended start is worth nothing.
        timeout: An attempt is given up after this; inf for never.
        cancels: Whether giving up reaches the service (else it works on for nobody).
        retries: Attempts after the first one.
        backoff: Pause before the first retry; it doubles with each.
        jitter: Whether the pause is drawn from [0, pause) (full jitter).
        budget: Retries a class may make per success (a bucket of 10), inf for any number.
        patient: Whether a refused client waits as long as `retry_after` says.
        cost: What a request costs the rates.
    """

    name: str = "clients"
    level: int = 0
    priority: str = "default"
    slo: float = inf
    timeout: float = inf
    cancels: bool = True
    retries: int = 0
    backoff: float = 0.05
    jitter: bool = True
    budget: float = inf
    patient: bool = False
    cost: float = 1.0


@dataclass(slots=True, frozen=True)
class Workload:
    """The requests of one run, in order of arrival.

    Attributes:
        times: Intended starts in seconds, rising, shape (n,).
        client: Index into `clients`, shape (n,).
        sizes: One list for each stage: seconds of work, shape (n,).
        deadlines: Seconds from the start of an attempt that the service is told of, None if
            never any, shape (n,).
        keys: Who asks, shape (n,); None for those who do not say, and if none of them does.
        clients: The classes.
        horizon: Seconds after which nothing arrives.
    """

    times: Floats
    client: list[int]
    sizes: list[list[float]]
    clients: tuple[Client, ...]
    horizon: float
    deadlines: list[float] | None = None
    keys: Sequence[str | None] | None = None

    def __len__(self) -> int:
        return len(self.client)


def simple(times: Floats, sizes: list[Floats], horizon: float, slo: float = inf) -> Workload:
    """A workload of one class of plain clients, from arrays."""
    return Workload(
        times=np.asarray(times, dtype=np.float64),
        client=[0] * len(times),
        sizes=[np.asarray(size, dtype=np.float64).tolist() for size in sizes],
        clients=(Client(slo=slo),),
        horizon=horizon,
    )
