"""What must come out? Closed forms from queueing theory that a simulation can be held to.

All of them are exact under their stated assumptions. Rates are per second, times in seconds,
loads (`offered`) in Erlangs: mean arrivals during a mean service time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import exp, fsum, log, sqrt

import numpy as np

from loadgate.simulation.laws import Floats


def erlang_b(servers: int, offered: float) -> float:
    """Share of Poisson arrivals that find all `servers` busy and are lost, for any service law.

    Also the refused share of a sliding-window log of `servers` requests per window, with
    `offered` the arrivals per window: every accepted request occupies a slot for one window.
    """
    blocked = 1.0
    for n in range(1, servers + 1):
        blocked = offered * blocked / (n + offered * blocked)
    return blocked


def erlang_c(servers: int, offered: float) -> float:
    """Share of Poisson arrivals that must wait in an M/M/c queue without bound.

    Raises:
        ValueError: `offered` is not below `servers`; such a queue has no steady state.
    """
    if offered >= servers:
        raise ValueError(f"offered {offered:g} must be below servers {servers}")
    lost = erlang_b(servers, offered)
    return lost / (1.0 - offered / servers * (1.0 - lost))


def loss(rate: float, capacities: Sequence[float]) -> tuple[float, float, float]:
    """A limit of N in front of a service that completes `capacities[n - 1]` a second at n.

    Product form: the probability of n in service is proportional to the product of
    rate/capacity up to n. Exact for processor sharing and plain delays with any law of
    service times, and, with capacities from `closed`, for both in sequence (Norton).

    Args:
        rate: Poisson arrivals per second.
        capacities: Completions per second with 1, 2, ... N in service.

    Returns:
        Completions per second, mean seconds in service, refused share.
    """
    weights = np.concatenate(([0.0], np.cumsum(np.log(rate / np.asarray(capacities)))))
    chance = np.exp(weights - weights.max())
    chance /= chance.sum()
    throughput = rate * (1.0 - float(chance[-1]))
    mean = float((chance * np.arange(len(chance))).sum())
    return throughput, mean / throughput, float(chance[-1])


def closed(crowd: int, stations: Sequence[Callable[[int], float]]) -> Floats:
    """Completions per second of a closed network with 1 to `crowd` requests in it.

    A request that ends is replaced at once, as behind a limit under overload. With one plain
    delay and one multi-core station this is the machine repairman.

    Args:
        crowd: Most requests in the network.
        stations: For each station, work per second over mean work per request, given how many
            are there (`cores` and `delay` make them).

    Returns:
        Completions per second, shape (crowd,).
    """
    # Convolution of log weights, station by station (Buzen), scaled to avoid overflow.
    total = np.zeros(crowd + 1)
    total[1:] = -np.inf
    for station in stations:
        own = np.concatenate(([0.0], np.cumsum([-log(station(n)) for n in range(1, crowd + 1)])))
        joined = np.empty(crowd + 1)
        for n in range(crowd + 1):
            joined[n] = np.logaddexp.reduce(total[: n + 1] + own[n::-1])
        total = joined
    return np.exp(total[:-1] - total[1:])


def cores(
    count: int, work: float, contention: float = 0.0, crosstalk: float = 0.0
) -> Callable[[int], float]:
    """Completions per second at n of processor-sharing cores (see `stages.Cores`)."""

    def rate(n: int) -> float:
        return min(n, count) / (work * (1.0 + contention * (n - 1) + crosstalk * n * (n - 1)))

    return rate


def delay(seconds: float) -> Callable[[int], float]:
    """Completions per second at n of plain waiting."""
    return lambda n: n / seconds


def bucket(rate: float, limit: float, burst: int) -> float:
    """Share of Poisson arrivals that a token bucket refuses.

    A token bucket is an M/D/1 queue with room for `burst` (the one in service included): the
    missing tokens are its customers, each served in 1/limit seconds.

    Args:
        rate: Arrivals per second.
        limit: Tokens per second.
        burst: Tokens at most, whole.
    """
    load = rate / limit
    # Chain embedded at departures: a(k) arrivals during one service, from 0 to burst - 1 left.
    arrivals = [exp(-load)]
    for k in range(1, burst + 1):
        arrivals.append(arrivals[-1] * load / k)
    left = [1.0]
    for n in range(burst - 1):
        known = left[0] * arrivals[n] + fsum(left[j] * arrivals[n - j + 1] for j in range(1, n + 1))
        left.append((left[n] - known) / arrivals[0])
    empty = left[0] / fsum(left)
    return 1.0 - 1.0 / (empty + load)


def survival_depth(load: float, max_queue: int, deepest: int = 20_000) -> tuple[float, float]:
    """Mean and standard deviation of the depth of a queue shed by `max_queue / depth`.

    A birth-death process: births at `load` times the survival at the depth found, deaths at
    one (the rate at which places become free). Under overload the mean is near
    load * max_queue: the rule alone bounds nothing.

    Args:
        load: Offered work over capacity.
        max_queue: Waiters up to which everyone may wait.
        deepest: Where the chain is cut off.
    """
    depth = np.arange(deepest)
    births = load * np.minimum(1.0, max_queue / np.maximum(depth, 1))
    weights = np.concatenate(([0.0], np.cumsum(np.log(births))))
    chance = np.exp(weights - weights.max())
    chance /= chance.sum()
    at = np.arange(deepest + 1)
    mean = float((chance * at).sum())
    return mean, sqrt(float((chance * (at - mean) ** 2).sum()))


def amplification(failing: float, retries: int) -> float:
    """Attempts per request when each attempt fails with probability `failing` by itself."""
    return fsum(failing**k for k in range(retries + 1))


def hidden_capacity(capacity: float, retries: int) -> float:
    """Load per second above which a storm of retries never ends (Bronson et al., HotOS 2021).

    Below capacity all is well until something starts the storm; if every request then comes
    1 + `retries` times, the service recovers only when that fits.
    """
    return capacity / (1 + retries)


def usl_peak(contention: float, crosstalk: float) -> float:
    """The crowd at which the Universal Scalability Law has its maximum."""
    return sqrt((1.0 - contention) / crosstalk)
