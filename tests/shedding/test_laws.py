from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgate.admission import Admission, Ticket
from loadgate.decisions import ADMIT, Outcome
from loadgate.limits.fixed import FixedLimit
from loadgate.shedding.depth import DepthRule
from loadgate.shedding.laws import Law, Ramp, RuleName, Survival, WaitBudget, law
from loadgate.telemetry import Telemetry
from loadgate.waiting import WaitingRoom


def mean_depth(rule: Law, load: float, max_queue: float, max_depth: float, seconds: int) -> float:
    """Mean waiters of one server (M/M/1, one request a second) under `load`."""
    dice = random.Random(11)
    limit = FixedLimit(initial=1, min=1, max=1)
    room = WaitingRoom[Ticket](1, "fifo")
    gate = Admission(limit, DepthRule(1e9, max_queue, max_depth), room, Telemetry(), rule=rule)
    now = area = 0.0
    running: Ticket | None = None
    next_arrival, next_end = dice.expovariate(load), float("inf")
    while now < seconds:
        before, now = now, min(next_arrival, next_end)
        area += room.depth * (now - before) if now > seconds / 20 else 0.0
        if next_arrival <= next_end:
            next_arrival = now + dice.expovariate(load)
            ticket = Ticket()
            if gate.arrive(ticket, now, dice.random()) is ADMIT:
                running, next_end = ticket, now + dice.expovariate(1.0)
        elif running is not None:
            gate.finish(running, now, Outcome.SUCCESS)
            running = gate.ended_waits.pop() if gate.ended_waits else None
            next_end = now + dice.expovariate(1.0) if running else float("inf")
    return area / (seconds * 0.95)


@pytest.mark.parametrize("load", [1.5, 2.0, 5.0])
def test_under_survival_the_depth_settles_at_max_queue_times_the_load(load: float) -> None:
    # Above 20 the birth-death chain is Poisson(20 load) and one more.
    seen = mean_depth(Survival(), load, 20, 1e9, 10_000)
    assert seen == pytest.approx(20 * load + 1, rel=0.04)


@pytest.mark.parametrize("load", [1.5, 2.0, 5.0])
def test_under_the_ramp_it_settles_where_the_line_refuses_the_excess(load: float) -> None:
    a, b = 40, 80
    seen = mean_depth(Ramp(), load, a, b, 10_000)
    # The equilibrium of the fluid; an arrival is counted after it has joined.
    assert seen == pytest.approx(a + (1 - 1 / load) * (b - a), rel=0.06)


@given(st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 1e6))
def test_every_chance_is_a_probability(depth: float, a: float, b: float) -> None:
    for name in ("survival", "ramp", "budget"):
        rule_name: RuleName = name
        chance = law(rule_name, 0.1).chance(depth, min(a, b), max(a, b), 100.0, 0.0)
        assert 0.0 <= chance <= 1.0


def test_the_ramp_is_a_straight_line() -> None:
    ramp = Ramp()
    chances = [ramp.chance(depth, 10, 20, 1.0, 0.0) for depth in (0, 10, 12.5, 15, 20, 30)]
    assert chances == [1.0, 1.0, 0.75, 0.5, 0.0, 0.0]
    assert ramp.chance(0, 0, 0, 1.0, 0.0) == 0.0


def test_a_burst_may_fill_the_whole_budget() -> None:
    budget = WaitBudget(0.1)
    assert budget.chance(39, 0, 0, 400.0, 0.0) == 1.0  # the expected wait is below 0.1 s
    assert budget.chance(40, 0, 0, 400.0, 0.0) == 0.0


def test_a_queue_in_which_everyone_waits_is_standing_and_its_budget_short() -> None:
    budget = WaitBudget(0.1)
    budget.waited(0.0, 0.05)
    for n in range(1, 12):
        budget.waited(n * 0.01, 0.05)
    assert budget.standing
    assert budget.budget == pytest.approx(0.005)
    assert budget.chance(1, 0, 0, 400.0, 0.2) == 1.0
    assert budget.chance(3, 0, 0, 400.0, 0.2) == 0.0


def test_one_short_wait_in_the_interval_shows_that_it_was_a_burst() -> None:
    budget = WaitBudget(0.1)
    budget.waited(0.0, 0.05)
    budget.waited(0.05, 0.001)
    budget.waited(0.12, 0.05)
    assert not budget.standing


def test_a_queue_that_has_drained_is_a_burst_again() -> None:
    budget = WaitBudget(0.1)
    for n in range(13):
        budget.waited(n * 0.01, 0.05)
    assert budget.standing
    assert budget.chance(0, 0, 0, 400.0, 1.0) == 1.0
    assert not budget.standing
