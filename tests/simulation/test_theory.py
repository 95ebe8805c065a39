"""The closed forms give the published values, and the simulator agrees with them.

Agreement: the exact value lies in the 99.9 % confidence interval of independent runs, and
the interval is narrow enough to mean something.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import numpy as np
import pytest

from loadgate.admission import Admission
from loadgate.limits.fixed import FixedLimit
from loadgate.policy import Policy, Queue
from loadgate.rates.spec import Rate
from loadgate.shedding.depth import DepthRule
from loadgate.simulation import gate, streams, theory
from loadgate.simulation.arrivals import times_of_phase
from loadgate.simulation.engine import REFUSED, SERVED, Engine
from loadgate.simulation.laws import Constant, Exponential, Law, Lognormal, Points
from loadgate.simulation.stages import Cores, Delay, Pool, Stage
from loadgate.simulation.workload import Client, Workload
from loadgate.telemetry import Telemetry
from loadgate.ticket import Ticket
from loadgate.waiting import WaitingRoom

# Student's t, 99.9 % two-sided, by number of runs.
T = {4: 12.924, 10: 4.781}

NOTHING_WAITS = DepthRule(0.0, 0, 0)
EVERYONE_WAITS = DepthRule(1e6, 1e9, 1e9)


def agree(runs: Sequence[float], exact: float, width: float) -> None:
    """Fail unless `exact` lies in the interval of `runs` and that is within `width` of it."""
    half = T[len(runs)] * float(np.std(runs, ddof=1)) / sqrt(len(runs))
    mean = float(np.mean(runs))
    assert abs(mean - exact) <= half, f"{mean:.5g} ± {half:.2g} does not hold {exact:.5g}"
    assert half <= width * exact, f"± {half:.2g} around {exact:.5g} says little"


def admission(limit: int, depth: DepthRule = NOTHING_WAITS) -> Admission:
    fixed = FixedLimit(initial=limit, min=limit, max=limit)
    return Admission(fixed, depth, WaitingRoom[Ticket](1, "fifo"), Telemetry())


def run(
    seed: int,
    rate: float,
    seconds: float,
    laws: Sequence[Law],
    stages: Sequence[Stage],
    door: Admission,
    client: Client | None = None,
) -> Engine:
    times = times_of_phase(streams.numbers(seed, "arrivals"), 0.0, seconds, (rate, rate))
    sizes = [
        law.draw(streams.numbers(seed, f"work/{i}"), len(times)).tolist()
        for i, law in enumerate(laws)
    ]
    work = Workload(times, [0] * len(times), sizes, (client or Client(),), seconds)
    engine = Engine(
        work,
        stages,
        door,
        gate_dice=streams.dice(seed, "gate"),
        client_dice=streams.dice(seed, "clients"),
    )
    engine.run()
    return engine


def lost(engine: Engine) -> float:
    return engine.verdict.count(REFUSED) / len(engine.verdict)


def in_service(engine: Engine) -> tuple[float, float]:
    """Completions per second and mean seconds in service."""
    done = sum(engine.admission.telemetry.finished.values())
    return done / engine.workload.horizon, engine.held / done


# -- the published values ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("servers", "offered", "value"),
    [(10, 6, 0.043142), (10, 10, 0.214582), (10, 15, 0.410341), (20, 18, 0.109213)],
)
def test_erlang_b_gives_the_published_values(servers: int, offered: float, value: float) -> None:
    assert theory.erlang_b(servers, offered) == pytest.approx(value, abs=1e-6)


@pytest.mark.parametrize(
    ("servers", "offered", "value"), [(5, 2.5, 0.130371), (10, 5, 0.036105), (8, 6.4, 0.457645)]
)
def test_erlang_c_gives_the_published_values(servers: int, offered: float, value: float) -> None:
    assert theory.erlang_c(servers, offered) == pytest.approx(value, abs=1e-6)


@pytest.mark.parametrize(
    ("rate", "burst", "value"),
    [(9, 20, 0.001853), (10, 20, 0.02521), (12, 20, 0.16676), (12, 1, 6 / 11), (12, 5, 0.19915)],
)
def test_the_token_bucket_as_a_queue_gives_the_published_values(
    rate: float, burst: int, value: float
) -> None:
    assert theory.bucket(rate, 10.0, burst) == pytest.approx(value, abs=1e-5)


def test_the_machine_repairman_gives_the_published_table() -> None:
    rates = theory.closed(44, [theory.delay(0.03), theory.cores(8, 0.02)])
    found = [round(float(rates[n - 1]), 1) for n in (10, 15, 20, 22, 25, 30, 44)]
    assert found == [200.0, 296.0, 367.3, 383.5, 395.6, 399.8, 400.0]


def test_a_limit_behind_waiting_and_cores_gives_the_published_values() -> None:
    rates = theory.closed(30, [theory.delay(0.03), theory.cores(8, 0.02)])
    for rate, limit, throughput, latency in (
        (600, 30, 397.84, 0.0706),
        (600, 16, 297.22, 0.0508),
        (360, 20, 312.83, 0.0520),
    ):
        found = theory.loss(rate, rates[:limit].tolist())
        assert found[0] == pytest.approx(throughput, abs=0.01)
        assert found[1] == pytest.approx(latency, abs=1e-4)


@pytest.mark.parametrize("load", [2.0, 5.0, 10.0])
def test_survival_settles_at_load_times_max_queue(load: float) -> None:
    # Far above capacity the depth is a Poisson number plus the one that arrives.
    mean, deviation = theory.survival_depth(load, 100)
    assert mean == pytest.approx(load * 100 + 1)
    assert deviation == pytest.approx(sqrt(load * 100))


def test_the_peak_of_the_scalability_law_is_where_the_formula_says() -> None:
    peak = theory.usl_peak(0.02, 0.0005)
    assert peak == pytest.approx(44.27, abs=0.01)
    # The cores of the simulator, with as many of them as anyone could use.
    cores = Cores(1000, contention=0.02, crosstalk=0.0005)
    assert max(range(1, 100), key=lambda n: n * cores.share(n)) == round(peak)


def test_a_queue_that_cannot_keep_up_has_no_steady_state() -> None:
    with pytest.raises(ValueError, match="must be below"):
        theory.erlang_c(4, 4.0)


# -- the simulator agrees ----------------------------------------------------------------


@pytest.mark.parametrize(
    "law",
    [
        Exponential(mean=0.8),
        Constant(mean=0.8),
        Points(values=[0.2, 3.2], weights=[4, 1]),
    ],
    ids=["exponential", "constant", "two humps"],
)
def test_a_limit_over_plain_waiting_is_erlang_b(law: Law) -> None:
    runs = [lost(run(seed, 10.0, 4_000.0, [law], [Delay()], admission(10))) for seed in range(10)]
    agree(runs, theory.erlang_b(10, 8.0), 0.08)


def test_a_limit_with_an_endless_queue_is_erlang_c() -> None:
    def waited(seed: int) -> float:
        engine = run(
            seed, 6.4, 4_000.0, [Exponential(mean=1.0)], [Delay()], admission(8, EVERYONE_WAITS)
        )
        return sum(wait > 0.0 for wait in engine.wait) / len(engine.wait)

    agree([waited(seed) for seed in range(10)], theory.erlang_c(8, 6.4), 0.06)


def test_a_pool_is_erlang_c_too() -> None:
    law = Exponential(mean=1.0)
    mean_wait = theory.erlang_c(8, 6.4) / (8 - 6.4)

    def waited(seed: int) -> float:
        engine = run(seed, 6.4, 5_000.0, [law], [Pool(8)], admission(100_000))
        return in_service(engine)[1] - 1.0

    agree([waited(seed) for seed in range(10)], mean_wait, 0.2)


@pytest.mark.parametrize(
    "law",
    [
        Exponential(mean=0.02),
        Points(values=[0.005, 0.305], weights=[95, 5]),
        Lognormal(mean=0.02, sigma=1.0),
    ],
    ids=["exponential", "two humps", "lognormal"],
)
def test_a_limit_over_shared_cores_has_the_product_form(law: Law) -> None:
    capacities = [theory.cores(8, 0.02)(n) for n in range(1, 21)]
    throughput, latency, _ = theory.loss(500.0, capacities)
    runs = [in_service(run(s, 500.0, 100.0, [law], [Cores(8)], admission(20))) for s in range(10)]
    agree([x for x, _ in runs], throughput, 0.05)
    agree([w for _, w in runs], latency, 0.08)


@pytest.mark.parametrize(
    "law",
    [Exponential(mean=0.02), Points(values=[0.005, 0.305], weights=[95, 5])],
    ids=["exponential", "two humps"],
)
def test_a_limit_over_waiting_and_cores_is_the_machine_repairman(law: Law) -> None:
    rates = theory.closed(16, [theory.delay(0.03), theory.cores(8, law.average)])
    throughput, latency, _ = theory.loss(600.0, rates.tolist())
    runs = [
        in_service(
            run(s, 600.0, 80.0, [Exponential(mean=0.03), law], [Delay(), Cores(8)], admission(16))
        )
        for s in range(10)
    ]
    agree([x for x, _ in runs], throughput, 0.05)
    agree([w for _, w in runs], latency, 0.05)


def test_contended_cores_have_the_product_form() -> None:
    stations = [theory.delay(0.03), theory.cores(16, 0.02, 0.005, 0.0004)]
    throughput, latency, _ = theory.loss(1366.0, theory.closed(60, stations).tolist())
    laws = [Exponential(mean=0.03), Exponential(mean=0.02)]
    runs = [
        in_service(
            run(s, 1366.0, 20.0, laws, [Delay(), Cores(16, 1.0, 0.005, 0.0004)], admission(60))
        )
        for s in range(10)
    ]
    agree([x for x, _ in runs], throughput, 0.05)
    agree([w for _, w in runs], latency, 0.05)


def test_shared_cores_stretch_every_size_by_the_same_factor() -> None:
    slopes: list[float] = []
    for seed in range(10):
        engine = run(seed, 300.0, 60.0, [Exponential(mean=0.02)], [Cores(8)], admission(100_000))
        sizes = np.asarray(engine.workload.sizes[0])
        seconds = np.asarray(engine.ended) - engine.workload.times
        slopes.append(float((sizes * seconds).sum() / (sizes**2).sum()))
    capacities = [theory.cores(8, 0.02)(n) for n in range(1, 400)]
    _, latency, _ = theory.loss(300.0, capacities)
    agree(slopes, latency / 0.02, 0.05)


@pytest.mark.parametrize(("rate", "burst"), [(12.0, 5), (10.0, 20)])
def test_the_real_token_bucket_is_an_md1b_queue(rate: float, burst: int) -> None:
    policy = Policy(rates=[Rate("all", limit=10.0, per=1.0, burst=float(burst))])

    def refused(seed: int) -> float:
        times = times_of_phase(streams.numbers(seed, "a"), 0.0, 6_000.0, (rate, rate))
        work = Workload(times, [0] * len(times), [[0.0] * len(times)], (Client(),), 6_000.0)
        engine = Engine(
            work,
            [Delay()],
            gate.admission(policy),
            gate_dice=streams.dice(seed, "gate"),
            client_dice=streams.dice(seed, "clients"),
            rates=gate.rates(policy),
        )
        engine.run()
        return lost(engine)

    agree([refused(seed) for seed in range(4)], theory.bucket(rate, 10.0, burst), 0.3)


def test_the_real_queue_sheds_as_a_birth_death_process() -> None:
    shed = DepthRule(1e6, 20.0, 1e9)

    def mean_depth(seed: int) -> float:
        door = admission(10, shed)
        run(seed, 200.0, 150.0, [Exponential(mean=0.1)], [Delay()], door)
        return door.telemetry.queued / 150.0

    mean, _ = theory.survival_depth(2.0, 20)
    agree([mean_depth(seed) for seed in range(10)], mean, 0.05)


def test_retries_amplify_load_as_the_geometric_sum_says() -> None:
    client = Client(retries=3, backoff=5.0)  # long against the service: attempts independent
    runs: list[float] = []
    exact: list[float] = []
    for seed in range(10):
        engine = run(seed, 100.0, 150.0, [Exponential(mean=0.1)], [Delay()], admission(10), client)
        failing = sum(engine.refusals[0].values()) / engine.attempts
        runs.append(engine.attempts / len(engine.verdict))
        exact.append(theory.amplification(failing, 3))
    agree(runs, float(np.mean(exact)), 0.05)


def test_without_retries_every_arrival_is_one_attempt() -> None:
    engine = run(1, 100.0, 20.0, [Exponential(mean=0.1)], [Delay()], admission(2))
    assert engine.attempts == len(engine.verdict)


@pytest.mark.parametrize(("rate", "recovers"), [(130.0, True), (170.0, False)])
def test_a_storm_of_retries_ends_only_below_the_hidden_capacity(
    rate: float, recovers: bool
) -> None:
    """Bronson et al., HotOS 2021: 300/s, one retry after a second, an outage of ten seconds."""
    assert (rate < theory.hidden_capacity(300.0, 1)) is recovers
    seconds = 120.0
    times = times_of_phase(streams.numbers(1, "a"), 0.0, seconds, (rate, rate))
    client = Client(timeout=1.0, cancels=False, retries=1, backoff=1e-6)
    work = Workload(times, [0] * len(times), [[1 / 300] * len(times)], (client,), seconds)
    engine = Engine(
        work,
        [Pool(1)],
        admission(1_000_000),
        gate_dice=streams.dice(1, "gate"),
        client_dice=streams.dice(1, "clients"),
    )
    engine.at(10.0, lambda now: engine.pause(now, 10.0))
    engine.run()
    late = [v for v, t in zip(engine.verdict, times.tolist(), strict=True) if t > 110.0]
    served = late.count(SERVED) / len(late)
    assert served == 1.0 if recovers else served < 0.01


def test_a_queue_without_bound_is_what_the_policy_can_ask_for() -> None:
    policy = Policy(queue=Queue(max_wait=3600.0, max_queue=1e9, discipline="fifo"))
    assert gate.admission(policy).entrance.depth.max_queue == 1e9
