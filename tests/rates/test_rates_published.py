"""What others have published, and what queueing theory says exactly."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from statistics import fmean, stdev
from typing import Any

import pytest

from loadgate.rates import Limiter, create


def poisson(rate: float, seed: int) -> Iterator[float]:
    dice = random.Random(seed)
    now = 0.0
    while True:
        now += dice.expovariate(rate)
        yield now


@pytest.mark.parametrize(
    ("algorithm", "admitted"),
    [
        ("fixed-window", 178),
        ("sliding-window-counter", 178),
        ("sliding-window-log", 174),
        ("token-bucket", 184),
        ("leaky-bucket", 184),
    ],
)
def test_the_published_poisson_experiment_is_reproduced(algorithm: str, admitted: int) -> None:
    # Mean rate 6/s for 30 s, limit 10/s, capacity 20.
    burst = 20 if algorithm.endswith("bucket") else None
    limiter: Limiter[Any] = create(algorithm, limit=10, per=1.0, burst=burst)
    arrivals = 0
    for now in poisson(6, 42):
        if now >= 30:
            break
        arrivals += 1
        limiter.hit("client", now)
    assert arrivals == 184
    assert limiter.allowed == admitted
    assert limiter.refused == arrivals - admitted


def refused_share(limiter: Limiter[Any], rate: float, seed: int) -> tuple[float, float]:
    """Mean over batches, and 4 standard errors of it: one false alarm in 16,000 runs."""
    batches, size = 16, 5_000
    arrivals = poisson(rate, seed)
    shares: list[float] = []
    for _ in range(batches):
        before = limiter.refused
        for _ in range(size):
            limiter.hit("client", next(arrivals))
        shares.append((limiter.refused - before) / size)
    return fmean(shares), 4.0 * stdev(shares) / math.sqrt(batches)


@pytest.mark.parametrize(
    ("rate", "burst", "blocked"),
    [
        (9, 20, 0.001853),
        (10, 20, 0.02521),
        (12, 20, 0.16676),
        (12, 1, 12 / 22),
        (12, 5, 0.19915),
    ],
)
@pytest.mark.parametrize("algorithm", ["token-bucket", "leaky-bucket"])
def test_a_bucket_under_poisson_load_blocks_as_a_queue_of_constant_service(
    algorithm: str, rate: float, burst: int, blocked: float
) -> None:
    # M/D/1/B: the bucket's level is the unfinished work of a server of 10 a second.
    bucket: Limiter[Any] = create(algorithm, limit=10, burst=burst)
    share, error = refused_share(bucket, rate, seed=7)
    assert share == pytest.approx(blocked, abs=error)


@pytest.mark.parametrize("rate", [6, 10, 15])
def test_the_log_under_poisson_load_blocks_as_erlang_says(rate: float) -> None:
    # Erlang B: an accepted request holds one of 10 places for one second.
    erlang = 1.0
    for places in range(1, 11):
        erlang = rate * erlang / (places + rate * erlang)
    log: Limiter[Any] = create("sliding-window-log", limit=10)
    share, error = refused_share(log, rate, seed=11)
    assert share == pytest.approx(erlang, abs=error)


@pytest.mark.parametrize("rate", [6, 10, 15])
def test_a_fixed_window_under_poisson_load_blocks_what_exceeds_the_limit(rate: float) -> None:
    # 1 - E[min(N, 10)] / rate, with N Poisson.
    admitted, chance = 0.0, math.exp(-rate)
    for count in range(200):
        admitted += min(count, 10) * chance
        chance *= rate / (count + 1)
    window: Limiter[Any] = create("fixed-window", limit=10)
    share, error = refused_share(window, rate, seed=13)
    assert share == pytest.approx(1.0 - admitted / rate, abs=error)


def test_bursts_at_a_boundary_are_what_the_docs_say() -> None:
    # Everything a client can have within a tenth of a second around the turn of a window.
    got: dict[str, int] = {}
    for algorithm in ("fixed-window", "sliding-window-counter", "sliding-window-log"):
        limiter: Limiter[Any] = create(algorithm, limit=100)
        moments = [0.95 + step * 0.0001 for step in range(1_000)]
        got[algorithm] = sum(limiter.hit("k", now).allowed for now in moments)
    assert got["fixed-window"] == 200
    # 100 before the turn; after it the old window fades by 5 % until 1.05.
    assert 100 <= got["sliding-window-counter"] <= 106
    assert got["sliding-window-log"] == 100


@pytest.mark.parametrize(("limit", "most"), [(10, 0.08), (50, 0.03), (200, 0.02)])
def test_the_sliding_counter_admits_a_few_per_cent_more_than_the_log(
    limit: int, most: float
) -> None:
    for load in (0.6, 0.9, 1.0, 1.2, 2.0):
        counter: Limiter[Any] = create("sliding-window-counter", limit=limit)
        log: Limiter[Any] = create("sliding-window-log", limit=limit)
        arrivals = poisson(limit * load, seed=3)
        for _ in range(8_000):
            now = next(arrivals)
            counter.hit("k", now)
            log.hit("k", now)
        assert -0.01 < counter.allowed / log.allowed - 1.0 < most
