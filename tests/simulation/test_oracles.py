"""The bounds that no policy can beat are right, and are not beaten."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from loadgate.limits.fixed import FixedLimit
from loadgate.simulation import oracles, results, run, scenario

SERVICE: dict[str, Any] = {
    "title": "service",
    "slo": 0.25,
    "refusal_cost": 0.0,
    "stages": [
        {"kind": "delay", "time": {"law": "exponential", "mean": 0.03}},
        {"kind": "cores", "count": 8, "time": {"law": "exponential", "mean": 0.02}},
    ],
    "phases": [{"seconds": 60.0, "load": 1.5}],
    "policy": {"queue": {"max_wait": 0.0, "max_queue": 0}},
}


def test_the_exact_oracle_agrees_with_simulated_fixed_limits() -> None:
    service = scenario.from_mapping(SERVICE)
    policy = run.policy_for(service)
    exact = oracles.fixed(service, [8, 24, 40], 600.0)
    for limit, (throughput, latency) in exact.items():
        served: list[float] = []
        seconds: list[float] = []
        for seed in range(3):
            fixed = FixedLimit(initial=limit, min=limit, max=limit)
            record = run.simulate(service, policy, seed, limit=fixed)
            heard = record.latency[~np.isnan(record.latency)]
            served.append(len(heard) / 60.0)
            seconds.append(float(heard.mean()))
        assert np.mean(served) == pytest.approx(throughput, rel=0.02)
        assert np.mean(seconds) == pytest.approx(latency, rel=0.02)


def test_the_exact_oracle_refuses_what_has_no_product_form() -> None:
    pool = SERVICE | {
        "stages": [{"kind": "pool", "count": 2, "time": {"law": "constant", "mean": 0.1}}]
    }
    with pytest.raises(ValueError, match="exponential"):
        oracles.fixed(scenario.from_mapping(pool), [2], 10.0)


def test_the_fluid_bound_follows_load_capacity_and_work() -> None:
    phases = [
        {"seconds": 10.0, "load": 0.5},
        {"seconds": 10.0, "load": 3.0},
        {"seconds": 10.0, "load": [0.0, 2.0]},
        {"seconds": 10.0, "load": 1.0, "change": {"cores": {"count": 2}}},
        {"seconds": 10.0, "load": 1.0, "change": {"cores": {"work": [1.0, 4.0]}}},
        {"seconds": 10.0, "load": 2.0, "pauses": {"every": 4.0, "seconds": 1.0}},
    ]
    bound = oracles.fluid(scenario.from_mapping(SERVICE | {"phases": phases}))
    # The ramp passes capacity at half time; the drift serves 400 / w as w goes from 1 to 4.
    assert bound == pytest.approx(
        [2000.0, 4000.0, 3000.0, 1000.0, 4000.0 * np.log(4.0) / 3.0, 3200.0], rel=1e-3
    )


def test_no_limit_beats_the_fluid_bound() -> None:
    service = scenario.from_mapping(SERVICE)
    bound = oracles.fluid(service)[0]
    for algorithm in ("fixed", "aimd", "adaptive"):
        policy = run.policy_for(service, {"concurrency": {"algorithm": algorithm}})
        good = run.simulate(service, policy, 1).good.sum()
        assert 0.5 * bound < good < 1.02 * bound


def test_the_first_class_is_served_first() -> None:
    assert oracles.by_priority([100.0, 200.0, 300.0], 350.0) == [100.0, 200.0, 50.0]
    assert oracles.by_priority([500.0, 10.0], 350.0) == [350.0, 0.0]


def test_max_min_gives_the_modest_what_they_ask_and_the_greedy_the_rest() -> None:
    shares = oracles.max_min([600.0, 30.0, 3.0, 200.0], 333.0)
    assert shares.tolist() == [150.0, 30.0, 3.0, 150.0]
    assert oracles.max_min([1.0, 2.0], 10.0).tolist() == [1.0, 2.0]


def test_the_clairvoyant_drops_the_one_that_would_ruin_the_others() -> None:
    times, sizes, deadlines = [0.0, 0.0, 0.0], [10.0, 1.0, 1.0], [10.0, 10.0, 10.0]
    assert oracles.clairvoyant(times, sizes, deadlines) == 2
    assert oracles.clairvoyant(times, sizes, deadlines, cores=2) == 3
    # A short one that comes late pushes the long one aside for a moment.
    assert oracles.clairvoyant([0.0, 1.0], [5.0, 1.0], [8.0, 2.5]) == 2


def test_nobody_serves_more_deadlines_than_the_clairvoyant() -> None:
    mapping = SERVICE | {
        "stages": SERVICE["stages"][1:],
        "clients": [{"deadline": {"law": "constant", "mean": 0.1}}],
        "slo": 0.1,
        "phases": [{"seconds": 1.0, "rate": 700.0}],
    }
    service = scenario.from_mapping(mapping)
    work = run.requests(service, 1)
    ends = (work.times + 0.1).tolist()
    best = oracles.clairvoyant(work.times.tolist(), work.sizes[0], ends, cores=8)
    for algorithm in ("fixed", "adaptive"):
        policy = run.policy_for(service, {"concurrency": {"algorithm": algorithm}})
        assert run.simulate(service, policy, 1).good.sum() <= best
    assert best <= len(work)


def test_fairness_is_one_when_all_got_the_same_part_of_their_share() -> None:
    shares = np.asarray([10.0, 20.0, 30.0])
    assert results.fairness(0.7 * shares, shares) == pytest.approx(1.0)
    assert results.fairness(np.asarray([10.0, 0.0, 0.0]), shares) == pytest.approx(1 / 3)


def test_time_to_recover_is_measured_on_the_same_arrivals() -> None:
    best = np.full(100, 50.0)
    arrivals = np.full(100, 50.0)
    mine = best.copy()
    mine[40:60] = 10.0  # bins of half a second: poor from 20 to 30 s
    assert results.time_to(mine, best, arrivals, 0.0, 20.0) == 0.0
    # Five seconds at 95 %: one poor bin may weigh in no more than 5 % of ten bins.
    assert results.time_to(mine, best, arrivals, 20.0, 50.0) == pytest.approx(10.0, abs=0.5)
    assert np.isnan(results.time_to(np.zeros(100), best, arrivals, 0.0, 50.0))


def test_cuts_divide_a_phase_and_nothing_else() -> None:
    mapping = SERVICE | {
        "phases": [
            {"seconds": 10.0, "load": 0.5},
            {"seconds": 30.0, "load": 1.5, "cuts": [5.0, 15.0], "name": "crowd"},
        ]
    }
    cuts = results.cuts(scenario.from_mapping(mapping))
    assert [(cut.name, cut.start, cut.end) for cut in cuts] == [
        ("crowd, 0 to 5 s", 10.0, 15.0),
        ("crowd, 5 to 15 s", 15.0, 25.0),
        ("crowd, 15 to 30 s", 25.0, 40.0),
    ]
