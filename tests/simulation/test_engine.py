"""The engine keeps its promises: same requests for all, same bytes again, nobody lost."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from math import inf
from typing import Any

import numpy as np
import pytest

from loadgate.decisions import Outcome, Reason
from loadgate.limits.fixed import FixedLimit
from loadgate.policy import Policy
from loadgate.simulation import build, gate, run, scenario, streams
from loadgate.simulation.engine import GAVE_UP, REFUSED, SERVED, UNFINISHED, Engine
from loadgate.simulation.stages import Cores, Delay, Pool, Stage
from loadgate.simulation.workload import Client, Workload

BUSY: dict[str, Any] = {
    "title": "busy",
    "slo": 0.25,
    "stages": [
        {"kind": "delay", "time": {"law": "exponential", "mean": 0.03}},
        {"kind": "cores", "count": 2, "time": {"law": "lognormal", "mean": 0.02, "sigma": 1.0}},
        {"kind": "pool", "count": 6, "time": {"law": "gamma", "mean": 0.04}},
    ],
    "clients": [
        {"name": "apps", "share": 3, "keys": 20, "skew": 1.0, "timeout": 0.3, "retries": 2},
        {
            "name": "batch",
            "priority": "background",
            "deadline": {"law": "gamma", "mean": 0.3},
            "timeout": 1.0,
            "cancels": False,
            "budget": 0.1,
            "retries": 3,
        },
    ],
    "phases": [
        {"seconds": 5.0, "load": 0.7, "bursts": {"factor": 3.0, "on": 0.5, "off": 2.0}},
        {
            "seconds": 5.0,
            "load": [0.5, 2.5],
            "pauses": {"every": 2.0, "seconds": 0.2},
            "change": {"cores": {"count": 1}, "pool": {"count": 2}},
        },
        {"seconds": 5.0, "load": 1.2, "wave": {"swing": 0.5, "period": 2.0}},
    ],
}
RATES = [{"name": "each", "rate": "20/second burst 10"}]


def digest(record: run.Record) -> str:
    parts = (record.verdict, record.latency, record.wait, record.reason, record.gauges.limit)
    return hashlib.sha256(b"".join(np.ascontiguousarray(p).tobytes() for p in parts)).hexdigest()


def plain(
    times: list[float],
    sizes: list[float],
    stage: Stage,
    *,
    client: Client | None = None,
    limit: int = 1000,
    settings: dict[str, Any] | None = None,
) -> Engine:
    work = Workload(
        np.asarray(times), [0] * len(times), [sizes], (client or Client(),), max(times) + 1.0
    )
    fixed = FixedLimit(initial=limit, min=limit, max=limit)
    policy = Policy.from_mapping(settings or {"queue": {"max_wait": 0.0, "max_queue": 0}})
    return Engine(
        work,
        [stage],
        gate.admission(policy, fixed),
        gate_dice=streams.dice(1, "gate"),
        client_dice=streams.dice(1, "clients"),
    )


def test_equal_seeds_give_equal_bytes_and_others_do_not() -> None:
    busy = scenario.from_mapping(BUSY)
    policy = run.policy_for(busy, {"rates": RATES})
    first, again, other = (run.simulate(busy, policy, seed) for seed in (7, 7, 8))
    assert digest(first) == digest(again)
    assert digest(first) != digest(other)


def test_equal_seeds_give_equal_bytes_in_another_process() -> None:
    busy = scenario.from_mapping(BUSY)
    mine = digest(run.simulate(busy, run.policy_for(busy), 7))
    code = (
        "import sys; sys.path.insert(0, 'tests/simulation'); import test_engine as t; "
        "b = t.scenario.from_mapping(t.BUSY); "
        "print(t.digest(t.run.simulate(b, t.run.policy_for(b), 7)))"
    )
    told = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert told.stdout.strip() == mine


def test_every_policy_meets_the_same_requests() -> None:
    busy = scenario.from_mapping(BUSY)
    work = [
        run.requests(busy, 3, run.policy_for(busy, {"concurrency": {"algorithm": name}}))
        for name in ("fixed", "adaptive")
    ]
    assert (work[0].times == work[1].times).all()
    assert work[0].sizes == work[1].sizes
    assert work[0].deadlines == work[1].deadlines
    assert work[0].keys == work[1].keys


def test_what_a_policy_refuses_does_not_change_what_others_get() -> None:
    plain_delay = BUSY | {"stages": BUSY["stages"][:1], "clients": [{"name": "apps"}]}
    plain_delay["phases"] = [{"seconds": 20.0, "rate": 300.0}]
    waiting = scenario.from_mapping(plain_delay)
    small, large = (
        run.simulate(
            waiting,
            run.policy_for(waiting, {"concurrency": {"algorithm": "fixed", "initial": limit}}),
            1,
        )
        for limit in (8, 500)
    )
    both = ~np.isnan(small.latency) & ~np.isnan(large.latency)
    assert 100 < both.sum() < len(both)
    # Over plain waiting a request takes what it takes; only the queue adds to it.
    assert small.latency[both] - small.wait[both] == pytest.approx(large.latency[both])


def test_every_arrival_has_one_end_and_every_attempt_is_accounted_for() -> None:
    busy = scenario.from_mapping(BUSY)
    policy = run.policy_for(busy, {"rates": RATES})
    work = run.requests(busy, 5, policy)
    engine = Engine(
        work,
        build.stages(busy),
        gate.admission(policy),
        gate_dice=streams.dice(5, "gate"),
        client_dice=streams.dice(5, "clients"),
        refusal_work=build.refusal_work(busy),
        rates=gate.rates(policy),
    )
    build.schedule(busy, engine)
    engine.run()
    assert UNFINISHED not in engine.verdict
    assert {SERVED, REFUSED, GAVE_UP} == set(engine.verdict)
    counted = engine.admission.telemetry
    refused = sum(sum(reasons.values()) for reasons in engine.refusals)
    ended = sum(counted.finished.values())
    assert engine.attempts == refused + ended + counted.left
    assert counted.finished[Outcome.CANCELLED] > 0
    assert engine.admission.in_flight == 0
    assert engine.admission.room.depth == 0
    assert engine.held == pytest.approx(counted.held)
    reasons = {reason for by_class in engine.refusals for reason in by_class}
    assert {Reason.RATE, Reason.DEADLINE} <= reasons


class Eager(FixedLimit):
    """Rises the moment it hears that someone must wait."""

    def on_wait(self, now: float) -> None:
        self.limit += 1


def test_a_limit_that_rises_for_a_waiter_runs_it_once() -> None:
    work = Workload(np.zeros(3), [0] * 3, [[1.0, 1.0, 1.0]], (Client(),), 1.0)
    engine = Engine(
        work,
        [Delay()],
        gate.admission(Policy(), Eager(initial=1, min=1, max=9)),
        gate_dice=streams.dice(1, "gate"),
        client_dice=streams.dice(1, "clients"),
    )
    engine.run()
    assert engine.ended == [1.0, 1.0, 1.0]
    assert engine.held == 3.0
    assert sum(engine.admission.telemetry.finished.values()) == 3


def test_two_who_share_one_core_take_twice_as_long() -> None:
    engine = plain([0.0, 0.0], [1.0, 1.0], Cores(1))
    engine.run()
    assert engine.ended == pytest.approx([2.0, 2.0])


def test_cores_that_change_speed_keep_the_work_already_done() -> None:
    cores = Cores(1)
    engine = plain([0.0], [1.0], cores)
    engine.at(0.5, lambda now: cores.change(now, speed=0.25))
    engine.run()
    assert engine.ended == [2.5]


def test_a_pool_that_shrinks_starts_nobody_until_fewer_run() -> None:
    pool = Pool(3)

    def shrink(now: float) -> None:
        pool.count = 1

    engine = plain([0.0, 0.0, 0.0, 0.1, 0.2], [1.0, 1.5, 2.0, 1.0, 1.0], pool)
    engine.at(0.5, shrink)
    engine.run()
    assert engine.ended == pytest.approx([1.0, 1.5, 2.0, 3.0, 4.0])


def test_nothing_moves_or_is_seen_while_the_process_stands_still() -> None:
    engine = plain([0.0, 0.6], [1.0, 0.1], Cores(2))
    engine.at(0.5, lambda now: engine.pause(now, 2.0))
    engine.run()
    assert engine.ended == pytest.approx([3.0, 2.6])
    assert engine.admission.telemetry.stalled == 2.0


def test_a_client_that_gives_up_frees_its_place_when_the_service_hears_of_it() -> None:
    sizes = [10.0, 0.5]
    heard = plain([0.0, 2.0], sizes, Delay(), client=Client(timeout=1.0), limit=1)
    heard.run()
    assert heard.verdict == [GAVE_UP, SERVED]
    assert heard.wasted == 1.0
    deaf = Client(timeout=1.0, cancels=False)
    unheard = plain([0.0, 2.0], sizes, Delay(), client=deaf, limit=1)
    unheard.run()
    assert unheard.verdict == [GAVE_UP, REFUSED]
    assert unheard.wasted == 10.0


def test_cancelled_work_leaves_cores_to_the_others() -> None:
    engine = plain([0.0, 0.0], [10.0, 0.9], Cores(1), client=Client(timeout=1.0))
    engine.run()
    assert engine.verdict == [GAVE_UP, GAVE_UP]  # 0.5 each after a second of sharing
    patient = plain([0.0, 0.6], [10.0, 0.9], Cores(1), client=Client(timeout=1.5))
    patient.run()
    # Alone until 0.6, shared until the first leaves at 1.5, then alone for the last 0.45.
    assert patient.verdict == [GAVE_UP, SERVED]
    assert patient.ended[1] == pytest.approx(1.95)


def test_a_refused_client_comes_back_as_often_as_it_may() -> None:
    client = Client(retries=3, backoff=0.1, jitter=False)
    engine = plain([0.0, 0.1], [5.0, 1.0], Delay(), client=client, limit=1)
    engine.run()
    assert engine.attempts == 5  # one for the first, 0.1, 0.2, 0.4 and 0.8 for the second
    assert engine.verdict == [SERVED, REFUSED]
    assert engine.ended[1] == pytest.approx(0.1 + 0.1 + 0.2 + 0.4)


def test_a_budget_stops_retries_that_nothing_earned() -> None:
    times = [0.001 * i for i in range(100)]
    client = Client(retries=3, backoff=0.1, budget=0.1)
    engine = plain(times, [50.0] * 100, Delay(), client=client, limit=1)
    engine.run()
    assert engine.attempts == 110  # the ten saved up before the first


def test_a_patient_client_waits_as_long_as_it_was_told() -> None:
    client = Client(retries=1, backoff=0.0, patient=True)
    engine = plain([0.0, 0.1], [0.5, 1.0], Delay(), client=client, limit=1)
    engine.run()
    assert engine.verdict == [SERVED, SERVED]
    assert engine.ended[1] >= 0.1 + 1.0 + 1.0


def test_priorities_are_served_in_their_order() -> None:
    mapping = BUSY | {
        "stages": [{"kind": "cores", "count": 2, "time": {"law": "exponential", "mean": 0.02}}],
        "clients": [
            {"name": "people", "priority": "critical"},
            {"name": "machines", "priority": "background", "share": 3.0},
        ],
        "phases": [{"seconds": 20.0, "load": 1.6}],
    }
    busy = scenario.from_mapping(mapping)
    settings = {
        "concurrency": {"algorithm": "fixed", "initial": 4},
        "queue": {"discipline": "fifo"},
    }
    record = run.simulate(busy, run.policy_for(busy, settings), 1)
    people, machines = (record.good[record.client == k].mean() for k in (0, 1))
    assert people > 0.98
    assert machines < 0.7


def test_a_refusal_costs_the_service_work() -> None:
    def goodput(cost: float) -> float:
        mapping = BUSY | {"clients": [{"name": "a"}], "refusal_cost": cost}
        mapping["phases"] = [{"seconds": 10.0, "load": 6.0}]
        mapping["stages"] = BUSY["stages"][:2]
        busy = scenario.from_mapping(mapping)
        return float(run.simulate(busy, Policy(), 1).good.mean())

    assert goodput(0.0) > 1.2 * goodput(0.1)


def test_requests_without_end_do_not_keep_the_run_alive() -> None:
    engine = plain([0.0], [inf], Delay())
    engine.run(until=10.0)
    assert engine.verdict == [UNFINISHED]
