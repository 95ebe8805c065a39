from __future__ import annotations

import random
from typing import Any

import pytest

from loadgate.admission import ENDED, RUNNING, WAITING, Admission, Ticket
from loadgate.decisions import ADMIT, Outcome, Reason, Refuse, Wait
from loadgate.shedding.depth import DepthRule
from loadgate.telemetry import Telemetry
from loadgate.waiting import WaitingRoom


class Settable:
    """A limit that is moved by hand and remembers what it heard."""

    def __init__(self, limit: Any) -> None:
        self.limit = limit
        self.heard: list[tuple[Any, ...]] = []

    def on_admit(self, now: float, in_flight: int) -> None:
        self.heard.append(("admit", now, in_flight))

    def on_wait(self, now: float) -> None:
        self.heard.append(("wait", now))

    def on_refuse(self, now: float) -> None:
        self.heard.append(("refuse", now))

    def on_finish(
        self,
        now: float,
        latency: float,
        in_flight: int,
        outcome: Outcome,
        held: float | None = None,
    ) -> None:
        self.heard.append(("finish", now, latency, in_flight, outcome, held))

    def on_stall(self, now: float, duration: float) -> None:
        self.heard.append(("stall", now, duration))

    def explain(self) -> dict[str, Any]:
        return {}

    def count(self, what: str) -> int:
        return sum(1 for heard in self.heard if heard[0] == what)


def admission(
    limit: Any = 1,
    max_wait: float = 1.0,
    max_queue: float | None = 10,
    max_depth: float | None = 20,
    classes: int = 3,
    observe: bool = False,
) -> tuple[Admission, Settable]:
    settable = Settable(limit)
    rule = DepthRule(max_wait, max_queue, max_depth)
    room = WaitingRoom[Ticket](classes)
    return Admission(settable, rule, room, Telemetry(), observe=observe), settable


def test_a_free_place_is_given_at_once() -> None:
    gate, limit = admission()
    ticket = Ticket()
    assert gate.arrive(ticket, 5.0, 0.0) is ADMIT
    assert (ticket.state, gate.in_flight, ticket.crowd) == (RUNNING, 1, 1)
    assert limit.heard == [("admit", 5.0, 1)]


def test_whoever_frees_a_place_wakes_the_next() -> None:
    gate, _ = admission()
    first, second = Ticket(), Ticket()
    gate.arrive(first, 0.0, 0.0)
    assert gate.arrive(second, 0.1, 0.0) == Wait(1.1)
    gate.finish(first, 0.3, Outcome.SUCCESS)
    assert second.state == RUNNING
    assert gate.ended_waits == [second]
    assert (gate.in_flight, gate.room.depth) == (1, 0)
    assert second.started == 0.3


def test_a_rise_of_the_limit_wakes_as_many_as_it_makes_room_for() -> None:
    gate, limit = admission()
    tickets = [Ticket() for _ in range(5)]
    for ticket in tickets:
        gate.arrive(ticket, 0.0, 0.0)
    limit.limit = 3
    gate.stalled(0.01, 0.0)
    assert [t.state for t in tickets] == [RUNNING, RUNNING, RUNNING, WAITING, WAITING]


def test_a_limit_below_what_runs_lets_it_finish_and_admits_nobody() -> None:
    gate, limit = admission(limit=3)
    running = [Ticket() for _ in range(3)]
    for ticket in running:
        gate.arrive(ticket, 0.0, 0.0)
    limit.limit = 1
    gate.finish(running[0], 1.0, Outcome.SUCCESS)
    assert gate.in_flight == 2
    assert isinstance(gate.arrive(Ticket(), 1.0, 0.0), Wait)
    gate.finish(running[1], 1.1, Outcome.SUCCESS)
    assert gate.in_flight == 1
    gate.finish(running[2], 1.2, Outcome.SUCCESS)
    assert gate.in_flight == 1  # the waiter


def test_ending_twice_is_harmless() -> None:
    gate, limit = admission()
    ticket = Ticket()
    gate.arrive(ticket, 0.0, 0.0)
    assert gate.finish(ticket, 1.0, Outcome.SUCCESS)
    assert not gate.finish(ticket, 2.0, Outcome.ERROR)
    assert gate.in_flight == 0
    assert limit.count("finish") == 1


def test_a_timeout_that_races_a_grant_does_nothing() -> None:
    gate, _ = admission()
    first, second = Ticket(), Ticket()
    gate.arrive(first, 0.0, 0.0)
    gate.arrive(second, 0.0, 0.0)
    gate.finish(first, 0.9, Outcome.SUCCESS)
    assert gate.expire(second, 1.0) is None
    assert not gate.leave(second, 1.0)
    assert second.state == RUNNING


def test_whoever_waited_too_long_is_told_how_long() -> None:
    gate, _ = admission(max_wait=0.5)
    gate.arrive(Ticket(), 0.0, 0.0)
    late = Ticket()
    gate.arrive(late, 1.0, 0.0)
    refusal = gate.expire(late, 1.5)
    assert refusal is not None
    assert refusal.reason is Reason.WAIT_TIMEOUT
    assert (refusal.observed, refusal.bound) == (0.5, 0.5)


def test_a_waiter_whose_time_is_up_is_not_given_a_place() -> None:
    gate, _ = admission(max_wait=0.5)
    first, late = Ticket(), Ticket()
    gate.arrive(first, 0.0, 0.0)
    gate.arrive(late, 0.0, 0.0)
    gate.finish(first, 0.6, Outcome.SUCCESS)
    assert late.state == ENDED
    assert late.refusal is not None
    assert gate.ended_waits == [late]
    assert gate.in_flight == 0


def test_up_to_max_queue_everyone_may_wait_whatever_the_dice_say() -> None:
    gate, _ = admission(max_queue=10, max_depth=20)
    gate.arrive(Ticket(), 0.0, 0.0)
    for _ in range(11):  # the eleventh finds ten waiters, which is not above max_queue
        assert isinstance(gate.arrive(Ticket(), 0.0, 0.999), Wait)
    assert gate.room.depth == 11


def test_above_max_queue_an_arrival_survives_with_max_queue_over_depth() -> None:
    gate, _ = admission(max_queue=10, max_depth=100)
    gate.arrive(Ticket(), 0.0, 0.0)
    for _ in range(15):
        gate.arrive(Ticket(), 0.0, 0.0)
    survival = 10 / 15
    refused = gate.arrive(Ticket(), 0.0, survival)
    assert isinstance(refused, Refuse)
    assert refused.reason is Reason.QUEUE_SHED
    assert (refused.observed, refused.bound) == (15, 10)
    assert isinstance(gate.arrive(Ticket(), 0.0, survival - 1e-9), Wait)


def test_at_max_depth_nobody_survives() -> None:
    gate, _ = admission(max_queue=10, max_depth=12)
    gate.arrive(Ticket(), 0.0, 0.0)
    for _ in range(12):
        gate.arrive(Ticket(), 0.0, 0.0)
    refused = gate.arrive(Ticket(), 0.0, 0.0)
    assert isinstance(refused, Refuse)
    assert refused.reason is Reason.QUEUE_FULL


def test_max_queue_zero_means_that_nobody_waits() -> None:
    gate, _ = admission(max_queue=0, max_depth=0)
    gate.arrive(Ticket(), 0.0, 0.0)
    assert isinstance(gate.arrive(Ticket(), 0.0, 0.0), Refuse)


def test_a_queue_in_time_allows_half_of_max_wait_in_work_and_ends_at_all_of_it() -> None:
    gate, _ = admission(limit=10, max_wait=0.1, max_queue=None, max_depth=None)
    now = 0.0
    for _ in range(40):  # ten at a time, 20 ms each: 500 a second
        batch = [Ticket() for _ in range(10)]
        for ticket in batch:
            gate.arrive(ticket, now, 0.0)
        now += 0.02
        for ticket in batch:
            gate.finish(ticket, now, Outcome.SUCCESS)
    max_queue, max_depth = gate.thresholds()
    assert max_queue == pytest.approx(0.1 * 500 / 2)
    assert max_depth == pytest.approx(0.1 * 500)


def test_a_cold_service_lets_half_as_many_wait_as_may_run() -> None:
    gate, _ = admission(limit=20, max_wait=0.1, max_queue=None, max_depth=None)
    assert gate.thresholds() == (10.0, 20.0)


def test_someone_of_a_lower_class_goes_before_an_arrival_is_refused() -> None:
    gate, _ = admission(max_queue=1, max_depth=2)
    gate.arrive(Ticket(), 0.0, 0.0)
    background, default = Ticket(level=2), Ticket(level=1)
    gate.arrive(background, 0.0, 0.0)
    gate.arrive(default, 0.0, 0.0)
    critical = Ticket(level=0)
    assert isinstance(gate.arrive(critical, 0.0, 0.0), Wait)
    assert background.state == ENDED
    assert background.refusal is not None
    assert background.refusal.reason is Reason.PRIORITY
    assert gate.ended_waits == [background]
    assert isinstance(gate.arrive(Ticket(level=2), 0.0, 0.0), Refuse)


def test_what_cannot_be_answered_in_time_is_refused_on_arrival() -> None:
    gate, _ = admission()
    first = Ticket()
    gate.arrive(first, 0.0, 0.0)
    gate.finish(first, 1.0, Outcome.SUCCESS)  # a place is taken for a second
    gate.arrive(Ticket(), 1.0, 0.0)
    hopeless = gate.arrive(Ticket(deadline=1.5), 1.0, 0.0)
    assert isinstance(hopeless, Refuse)
    assert hopeless.reason is Reason.DEADLINE
    assert isinstance(gate.arrive(Ticket(deadline=9.0), 1.0, 0.0), Wait)


def test_a_timeout_that_is_over_gets_no_place_even_if_one_is_free() -> None:
    gate, _ = admission()
    refusal = gate.arrive(Ticket(deadline=1.0), 1.0, 0.0)
    assert isinstance(refusal, Refuse)
    assert refusal.reason is Reason.DEADLINE


def test_latency_ends_at_the_first_answer_and_the_place_at_the_last() -> None:
    gate, limit = admission()
    ticket = Ticket()
    gate.arrive(ticket, 1.0, 0.0)
    ticket.answered_at = 1.2
    gate.finish(ticket, 4.0, Outcome.SUCCESS)
    _, now, latency, crowd, outcome, held = limit.heard[-1]
    assert (now, crowd, outcome, held) == (4.0, 1, Outcome.SUCCESS, 3.0)
    assert latency == pytest.approx(0.2)


def test_a_clock_that_steps_back_breaks_no_count() -> None:
    gate, limit = admission()
    first, second = Ticket(), Ticket()
    gate.arrive(first, 100.0, 0.0)
    gate.arrive(second, 50.0, 0.0)
    gate.finish(first, 40.0, Outcome.SUCCESS)
    assert second.state == RUNNING
    assert gate.telemetry.busy(40.0, gate.in_flight) >= 0.0
    assert gate.telemetry.held == 0.0
    assert limit.heard[-2][-1] == 0.0


@pytest.mark.parametrize("nonsense", [float("nan"), 0, -5])
def test_nonsense_from_a_limit_changes_nothing(nonsense: float) -> None:
    gate, limit = admission(limit=2)
    first = Ticket()
    gate.arrive(first, 0.0, 0.0)
    limit.limit = nonsense
    gate.finish(first, 1.0, Outcome.SUCCESS)
    assert gate.places == 2
    assert gate.arrive(Ticket(), 1.0, 0.0) is ADMIT


def test_observing_counts_what_would_be_refused_and_lets_through() -> None:
    gate, _ = admission(limit=1, max_queue=2, max_depth=4, observe=True)
    for _ in range(10):
        assert gate.arrive(Ticket(), 0.0, 0.0) is ADMIT
    assert gate.in_flight == 10
    assert gate.telemetry.would_refuse[Reason.QUEUE_FULL] == 5
    assert sum(gate.telemetry.refused.values()) == 0


def test_shutting_down_refuses_arrivals_and_waiters_but_not_those_who_run() -> None:
    gate, _ = admission()
    running, waiting = Ticket(), Ticket()
    gate.arrive(running, 0.0, 0.0)
    gate.arrive(waiting, 0.0, 0.0)
    gate.close(0.1)
    assert waiting.refusal is not None
    assert waiting.refusal.reason is Reason.DRAINING
    assert isinstance(gate.arrive(Ticket(), 0.2, 0.0), Refuse)
    assert gate.finish(running, 0.3, Outcome.SUCCESS)
    gate.reopen(0.4)
    assert gate.arrive(Ticket(), 0.5, 0.0) is ADMIT


def test_the_integrals_are_what_was_held_and_waited_and_full() -> None:
    gate, limit = admission(limit=1)
    told = gate.telemetry
    first, second = Ticket(), Ticket()
    gate.arrive(first, 10.0, 0.0)
    gate.arrive(second, 11.0, 0.0)
    assert told.busy(11.5, gate.in_flight) == 1.5
    gate.finish(first, 11.9, Outcome.SUCCESS)
    assert told.queued == pytest.approx(0.9)
    assert second.wait == pytest.approx(0.9)
    gate.finish(second, 14.0, Outcome.SUCCESS)
    assert told.busy(20.0, gate.in_flight) == pytest.approx(4.0)
    assert told.full(20.0) == pytest.approx(4.0)
    gate.arrive(Ticket(), 20.0, 0.0)
    limit.limit = 5
    gate.stalled(21.0, 0.0)
    assert told.full(30.0) == pytest.approx(5.0)
    assert told.limit_seconds == pytest.approx(21.0)
    assert (told.limit_rises, told.limit_falls) == (1, 0)


def test_changing_the_rules_under_load_loses_nobody() -> None:
    gate, _ = admission(limit=1)
    tickets = [Ticket() for _ in range(6)]
    for ticket in tickets:
        gate.arrive(ticket, 0.0, 0.0)
    gate.change(0.1, Settable(4), DepthRule(1.0, 10, 20), observe=False)
    assert gate.in_flight == 4
    assert gate.room.depth == 2
    gate.change(0.2, Settable(1), DepthRule(1.0, 10, 20), observe=True)
    assert (gate.in_flight, gate.room.depth) == (6, 0)


def test_the_depth_of_a_survival_queue_settles_at_max_queue_times_the_overload() -> None:
    # The birth-death chain n -> n + 1 at rate 2 * min(1, 20 / n), n -> n - 1 at rate 1 has
    # weights 40^n / (n - 1)! above 20: the depth is 1 + Poisson(40), so its mean is 41.
    dice = random.Random(7)
    gate, _ = admission(limit=1, max_wait=1e9, max_queue=20, max_depth=1e9, classes=1)
    now, area = 0.0, 0.0
    running: Ticket | None = None
    next_arrival, next_finish = dice.expovariate(2.0), float("inf")
    while now < 20_000:
        before, now = now, min(next_arrival, next_finish)
        if now > 200:
            area += gate.room.depth * (now - before)
        if next_arrival <= next_finish:
            next_arrival = now + dice.expovariate(2.0)
            ticket = Ticket()
            if gate.arrive(ticket, now, dice.random()) is ADMIT:
                running, next_finish = ticket, now + dice.expovariate(1.0)
        elif running is not None:
            gate.finish(running, now, Outcome.SUCCESS)
            running = gate.ended_waits.pop() if gate.ended_waits else None
            next_finish = now + dice.expovariate(1.0) if running else float("inf")
    assert area / (20_000 - 200) == pytest.approx(41.0, rel=0.03)
