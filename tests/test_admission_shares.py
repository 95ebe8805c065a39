"""Who goes first, who is counted, and what a request of several places does."""

from __future__ import annotations

import random
from typing import Any

import pytest

from loadgate.admission import ENDED, RUNNING, WAITING, Admission, Ticket
from loadgate.decisions import ADMIT, Outcome, Reason, Refuse, Wait
from loadgate.limits.fixed import FixedLimit
from loadgate.making import make_admission, remake_admission
from loadgate.policy import Concurrency, Policy, Queue
from loadgate.telemetry import Telemetry
from loadgate.ticket import Note

CLASSES = ("critical", "default", "background")


def gate(limit: int = 1, queue: dict[str, Any] | None = None, **settings: Any) -> Admission:
    places: dict[str, Any] = {"algorithm": "fixed", "initial": limit}
    places |= settings.pop("concurrency", {})
    waiting: dict[str, Any] = {
        "max_queue": 2.0,
        "max_depth": 4.0,
        "max_wait": 10.0,
        **(queue or {}),
    }
    policy = Policy(concurrency=Concurrency(**places), queue=Queue(**waiting), **settings)
    return make_admission(policy, Telemetry())


def of(client: Any, level: int = 1, places: int = 1, deadline: float = float("inf")) -> Ticket:
    note = Note(places) if places > 1 else None
    return Ticket(level=level, client=client, deadline=deadline, note=note)


# -- fair shares -------------------------------------------------------------------------------


def test_when_someone_must_go_it_is_one_of_the_client_that_has_had_the_most() -> None:
    door = gate()
    door.arrive(of("x"), 0.0, 0.0)
    greedy = [of("greedy") for _ in range(4)]
    for ticket in greedy:
        door.arrive(ticket, 0.0, 0.0)
    polite = of("polite")
    assert isinstance(door.arrive(polite, 0.0, 0.0), Wait)
    assert [t.state for t in greedy] == [WAITING, WAITING, WAITING, ENDED]
    refusal = greedy[-1].refusal
    assert refusal is not None
    assert refusal.reason is Reason.FAIR_SHARE
    assert refusal.observed > refusal.bound
    assert door.ended_waits == [greedy[-1]]


def test_the_arrival_itself_goes_when_its_client_has_had_the_most() -> None:
    door = gate()
    for name in "abcde":
        door.arrive(of(name), 0.0, 0.0)
    for _ in range(3):
        refused = door.arrive(of("a"), 0.0, 0.0)
        assert isinstance(refused, Refuse)
    assert door.telemetry.evicted == 0


def test_equals_are_not_thrown_out_for_one_another() -> None:
    door = gate()
    for name in "abcde":
        door.arrive(of(name), 0.0, 0.0)
    newcomer = door.arrive(of("f"), 0.0, 0.0)
    assert isinstance(newcomer, Refuse)
    assert newcomer.reason is Reason.QUEUE_FULL


def test_a_lower_class_goes_before_a_heavier_client() -> None:
    door = gate()
    door.arrive(of("x"), 0.0, 0.0)
    light = of("light", level=2)
    for ticket in (light, of("greedy"), of("greedy"), of("greedy")):
        door.arrive(ticket, 0.0, 0.0)
    assert isinstance(door.arrive(of("greedy"), 0.0, 0.0), Wait)
    assert light.refusal is not None
    assert light.refusal.reason is Reason.PRIORITY


def test_nothing_is_accounted_while_places_are_free_and_nobody_contends() -> None:
    door = gate(limit=10)
    ticket = of("a")
    assert door.arrive(ticket, 0.0, 0.0) is ADMIT
    assert ticket.note is None
    assert door.open == 10
    assert not door.contended


def test_while_the_service_is_contended_everyone_is_compared_and_then_no_more() -> None:
    door = gate(limit=2)
    first = [of("a"), of("a"), of("b")]
    for ticket in first:
        door.arrive(ticket, 0.0, 0.0)
    assert door.contended
    assert door.open == 0
    for ticket in first:
        door.finish(ticket, 1.0, Outcome.SUCCESS)
    late = of("a")
    assert door.arrive(late, 2.0, 0.0) is ADMIT
    assert late.note is not None
    door.finish(late, 2.1, Outcome.SUCCESS)
    at_ease = of("a")
    assert door.arrive(at_ease, 9.0, 0.0) is ADMIT
    assert at_ease.note is None
    assert door.open == 2


def test_requests_without_a_client_cost_nothing_until_one_with_a_name_must_ask() -> None:
    door = gate()
    for _ in range(3):
        door.arrive(of(None), 0.0, 0.0)
    assert not door.contended
    door.arrive(of("a"), 0.0, 0.0)
    assert door.contended
    nameless = of(None)
    door.arrive(nameless, 0.0, 0.0)
    assert nameless.note is not None


def test_the_account_of_a_client_with_several_keys_is_the_one_asked_for_or_the_first() -> None:
    door = gate(queue={"fair_by": "account"})
    key = door.accounts.account_of
    assert key(of({"address": "10.0.0.1", "account": "7"})) == "7"
    assert key(of({"address": "10.0.0.1"})) == "10.0.0.1"
    assert key(of({})) is None
    assert key(of("name")) == "name"


def test_clients_are_not_compared_where_nobody_asks_for_it() -> None:
    door = gate(queue={"fair_by": ""})
    for _ in range(5):
        door.arrive(of("greedy"), 0.0, 0.0)
    refused = door.arrive(of("polite"), 0.0, 0.0)
    assert isinstance(refused, Refuse)
    assert refused.reason is Reason.QUEUE_FULL
    assert not door.contended


def test_a_greedy_client_gains_nothing_by_asking_again_and_again() -> None:
    """The polite one gets the same beside ten thousand vain attempts as beside a hundred."""

    def polite_served(attempts: int) -> float:
        dice = random.Random(3)
        door = gate(limit=2, queue={"max_queue": 3.0, "max_depth": 6.0, "max_wait": 0.5})
        now, asked, served = 0.0, 0, 0
        running: list[tuple[float, Ticket]] = []
        waiting: dict[int, Ticket] = {}
        polite: set[int] = set()
        events = sorted(
            [(dice.uniform(0, 100), "polite") for _ in range(1000)]
            + [(dice.uniform(0, 100), "greedy") for _ in range(attempts)]
        )
        for at, who in events:
            while running and min(running)[0] <= at:
                end = min(running, key=lambda pair: pair[0])
                running.remove(end)
                door.finish(end[1], end[0], Outcome.SUCCESS)
                for ticket in door.ended_waits:
                    waiting.pop(id(ticket), None)
                    if ticket.state == RUNNING:
                        running.append((end[0] + 0.1, ticket))
                        served += id(ticket) in polite
                door.ended_waits.clear()
            now = at
            for ticket in [t for t in waiting.values() if t.until <= now]:
                door.expire(ticket, now)
                del waiting[id(ticket)]
            ticket = of(who)
            keep.append(ticket)  # or its id could be another's
            if who == "polite":
                asked += 1
                polite.add(id(ticket))
            if door.arrive(ticket, now, dice.random()) is ADMIT:
                running.append((now + 0.1, ticket))
                served += who == "polite"
            elif ticket.state == WAITING:
                waiting[id(ticket)] = ticket
            for other in door.ended_waits:
                waiting.pop(id(other), None)
            door.ended_waits.clear()
        return served / asked

    keep: list[Ticket] = []
    few, many = polite_served(1_500), polite_served(15_000)
    assert few > 0.9
    assert many >= 0.95 * few


# -- reserves ----------------------------------------------------------------------------------


def test_a_class_with_a_reserve_gets_its_places_under_a_flood_of_higher_ones() -> None:
    door = gate(limit=10, queue={"discipline": "fifo"}, reserve={"background": 0.2})
    running = [of(None, level=0) for _ in range(10)]
    for ticket in running:
        door.arrive(ticket, 0.0, 0.0)
    background = [of(None, level=2) for _ in range(3)]
    for ticket in (*background, *(of(None, level=0) for _ in range(20))):
        door.arrive(ticket, 0.0, 0.0)
    for ticket in running[:4]:
        door.finish(ticket, 1.0, Outcome.SUCCESS)
    assert [t.state for t in background] == [RUNNING, RUNNING, ENDED]


def test_what_a_reserve_does_not_use_is_borrowed_and_taken_back() -> None:
    door = gate(limit=4, reserve={"critical": 0.5})
    borrowed = [of(None, level=2) for _ in range(4)]
    for ticket in borrowed:
        assert door.arrive(ticket, 0.0, 0.0) is ADMIT
    default, critical = of(None, level=1), of(None, level=0)
    door.arrive(default, 0.1, 0.0)
    door.arrive(critical, 0.2, 0.0)
    door.finish(borrowed[0], 1.0, Outcome.SUCCESS)
    assert (critical.state, default.state) == (RUNNING, WAITING)


def test_a_protected_arrival_takes_the_wait_of_a_higher_class() -> None:
    door = gate(limit=10, reserve={"background": 0.1})
    for _ in range(10):
        door.arrive(of(None, level=0), 0.0, 0.0)
    higher = [of(None, level=0) for _ in range(4)]
    for ticket in higher:
        door.arrive(ticket, 0.0, 0.0)
    assert isinstance(door.arrive(of(None, level=2), 0.0, 0.0), Wait)
    assert higher[-1].state == ENDED
    assert isinstance(door.arrive(of(None, level=2), 0.0, 0.0), Refuse)


# -- places ------------------------------------------------------------------------------------


def test_a_request_of_several_places_takes_them_and_gives_them_back() -> None:
    door = gate(limit=4)
    large, small = of(None, places=3), of(None)
    assert door.arrive(large, 0.0, 0.0) is ADMIT
    assert door.arrive(small, 0.0, 0.0) is ADMIT
    assert door.in_flight == 4
    assert door.telemetry.busy(2.0, door.in_flight) == pytest.approx(8.0)
    door.finish(large, 2.0, Outcome.SUCCESS)
    assert door.in_flight == 1
    assert door.telemetry.held == pytest.approx(6.0)
    assert door.telemetry.busy(2.0, door.in_flight) == pytest.approx(8.0)


@pytest.mark.parametrize("discipline", ["default", "fifo", "fair"])
def test_no_smaller_one_overtakes_a_large_one_whose_turn_it_is(discipline: str) -> None:
    door = gate(limit=3, queue={"discipline": discipline, "max_queue": 99, "max_depth": 99})
    running = [of(None) for _ in range(3)]
    for ticket in running:
        door.arrive(ticket, 0.0, 0.0)
    large = of(None, places=3)
    door.arrive(large, 0.0, 0.0)
    door.finish(running[0], 0.01, Outcome.SUCCESS)  # its turn has come
    small = [of(None) for _ in range(5)]
    for ticket in small:
        assert isinstance(door.arrive(ticket, 0.2, 0.0), Wait)
    door.finish(running[1], 0.3, Outcome.SUCCESS)
    assert [t.state for t in small] == [WAITING] * 5
    door.finish(running[2], 0.4, Outcome.SUCCESS)
    assert large.state == RUNNING
    assert door.in_flight == 3


def test_a_higher_class_does_not_wait_for_a_large_one_of_a_lower_class() -> None:
    door = gate(limit=2)
    running = [of(None), of(None)]
    for ticket in running:
        door.arrive(ticket, 0.0, 0.0)
    large = of(None, level=2, places=2)
    door.arrive(large, 0.0, 0.0)
    door.finish(running[0], 0.1, Outcome.SUCCESS)
    assert door.arrive(of(None, level=0), 0.2, 0.0) is ADMIT
    assert large.state == WAITING


@pytest.mark.parametrize("how", ["leave", "expire"])
def test_places_gathered_for_one_that_goes_are_given_to_the_others(how: str) -> None:
    door = gate(limit=2)
    running = [of(None), of(None)]
    for ticket in running:
        door.arrive(ticket, 0.0, 0.0)
    large, small = of(None, places=2), of(None)
    door.arrive(large, 0.0, 0.0)
    door.finish(running[0], 0.1, Outcome.SUCCESS)
    door.arrive(small, 0.2, 0.0)
    assert small.state == WAITING
    if how == "leave":
        door.leave(large, 0.3)
    else:
        door.expire(large, 0.3)
    assert small.state == RUNNING
    assert door.arrive(of(None), 0.4, 0.0) != ADMIT


def test_one_that_is_larger_than_the_limit_runs_alone() -> None:
    door = gate(limit=2)
    first, huge = of(None), of(None, places=9)
    door.arrive(first, 0.0, 0.0)
    assert isinstance(door.arrive(huge, 0.0, 0.0), Wait)
    door.finish(first, 0.1, Outcome.SUCCESS)
    assert huge.state == RUNNING
    assert isinstance(door.arrive(of(None), 0.2, 0.0), Wait)


def test_no_client_holds_more_than_its_share_of_the_places() -> None:
    door = gate(limit=10, concurrency={"max_share": 0.2})
    mine = [of("slow") for _ in range(2)]
    for ticket in mine:
        assert door.arrive(ticket, 0.0, 0.0) is ADMIT
    refused = door.arrive(of("slow"), 0.0, 0.0)
    assert isinstance(refused, Refuse)
    assert refused.reason is Reason.FAIR_SHARE
    assert (refused.observed, refused.bound) == (3, 2)
    assert door.arrive(of("other"), 0.0, 0.0) is ADMIT
    assert all(door.arrive(of(None), 0.0, 0.0) is ADMIT for _ in range(5))
    door.finish(mine[0], 1.0, Outcome.SUCCESS)
    assert door.arrive(of("slow"), 1.0, 0.0) is ADMIT


# -- timeouts ----------------------------------------------------------------------------------


def test_a_place_does_not_go_to_who_can_no_longer_use_it_while_others_wait() -> None:
    door = gate(queue={"discipline": "fifo"})
    first = of(None)
    door.arrive(first, 0.0, 0.0)
    door.finish(first, 1.0, Outcome.SUCCESS)  # a request runs for a second
    running = of(None)
    door.arrive(running, 1.0, 0.0)
    hopeless, patient = of(None, deadline=4.0), of(None)
    assert isinstance(door.arrive(hopeless, 1.0, 0.0), Wait)
    door.arrive(patient, 1.0, 0.0)
    door.finish(running, 3.5, Outcome.SUCCESS)
    assert patient.state == RUNNING
    assert hopeless.refusal is not None
    assert hopeless.refusal.reason is Reason.DEADLINE
    assert hopeless.refusal.bound == pytest.approx(0.5)


def test_only_those_who_are_served_before_it_make_a_request_hopeless() -> None:
    door = gate(queue={"max_queue": 100, "max_depth": 200})
    first = of(None)
    door.arrive(first, 0.0, 0.0)
    door.finish(first, 0.1, Outcome.SUCCESS)
    door.arrive(of(None), 0.1, 0.0)
    for _ in range(50):
        door.arrive(of(None, level=2), 0.1, 0.0)
    assert isinstance(door.arrive(of(None, level=1, deadline=0.5), 0.1, 0.0), Wait)
    hopeless = door.arrive(of(None, level=2, deadline=0.5), 0.1, 0.0)
    assert isinstance(hopeless, Refuse)
    assert hopeless.reason is Reason.DEADLINE


# -- signals, modes, caps ----------------------------------------------------------------------


def test_a_brake_takes_places_and_the_limit_does_not_learn_from_it() -> None:
    door = gate(limit=10)
    door.brake_to(0.3, 0.0)
    assert (door.places, door.learned, door.current_limit()) == (3, 10, 3)
    limit = Listening()
    door.change(0.0, limit, door.depth, observe=False)
    for _ in range(20):
        door.arrive(of(None), 0.0, 0.5)
    assert door.in_flight == 3
    assert limit.heard == 0
    door.brake_to(1.0, 1.0)
    assert door.in_flight > 3
    for _ in range(20):
        door.arrive(of(None), 1.0, 0.5)
    assert limit.heard > 0


class Listening(FixedLimit):
    """A limit of ten that counts how often it hears that it is too low."""

    def __init__(self) -> None:
        super().__init__(initial=10, min=1, max=10)
        self.heard = 0

    def on_wait(self, now: float) -> None:
        self.heard += 1

    def on_refuse(self, now: float) -> None:
        self.heard += 1


def test_a_brake_leaves_one_place() -> None:
    door = gate(limit=3)
    door.brake_to(0.05, 0.0)
    assert door.arrive(of(None), 0.0, 0.0) is ADMIT
    assert isinstance(door.arrive(of(None), 0.0, 0.0), Wait)


def test_a_light_touch_of_the_brake_does_not_halve_two_places() -> None:
    door = gate(limit=2)
    door.brake_to(0.9, 0.0)
    assert door.arrive(of(None), 0.0, 0.0) is ADMIT
    assert door.arrive(of(None), 0.0, 0.0) is ADMIT


def test_an_observed_queue_lets_everyone_wait_and_counts() -> None:
    door = gate(queue={"mode": "observe", "max_wait": 0.5})
    running = of(None)
    door.arrive(running, 0.0, 0.0)
    waiters = [of(None) for _ in range(10)]
    for ticket in waiters:
        assert door.arrive(ticket, 0.0, 0.0) == Wait(float("inf"))
    assert door.telemetry.would_refuse[Reason.QUEUE_FULL] == 6
    door.finish(running, 3.0, Outcome.SUCCESS)
    assert door.telemetry.would_refuse[Reason.WAIT_TIMEOUT] == 1
    assert sum(door.telemetry.refused.values()) == 0


def test_without_a_queue_whoever_finds_no_place_is_refused_at_once() -> None:
    door = gate(queue={"mode": "off"})
    door.arrive(of("a"), 0.0, 0.0)
    refused = door.arrive(of("b"), 0.0, 0.0)
    assert isinstance(refused, Refuse)
    assert refused.reason is Reason.QUEUE_FULL


def test_a_cap_on_the_refused_share_lets_the_rest_through() -> None:
    door = gate(queue={"max_refused": 0.5, "mode": "off"})
    for _ in range(100):
        door.arrive(of(None), 0.0, 0.0)
    told = door.telemetry
    # The first found a place; the window began with the second.
    assert sum(told.refused.values()) == 49
    assert told.spared == 50
    assert door.in_flight == 51


def test_the_kill_switch_lets_everyone_through_and_enforces_again() -> None:
    door = gate(limit=1)
    tickets = [of(None) for _ in range(4)]
    for ticket in tickets:
        door.arrive(ticket, 0.0, 0.0)
    door.bypass(True, 0.1)
    assert all(t.state == RUNNING for t in tickets)
    assert all(door.arrive(of("a"), 0.2, 0.9) is ADMIT for _ in range(20))
    assert door.in_flight == 24
    door.bypass(False, 0.3)
    assert isinstance(door.arrive(of(None), 0.4, 0.0), Wait)


# -- other policies ----------------------------------------------------------------------------


def test_classes_are_matched_by_name_and_unknown_ones_become_the_lowest() -> None:
    old = Policy(
        concurrency=Concurrency("fixed", initial=1), queue=Queue(10.0, 10, 20, discipline="fifo")
    )
    door = make_admission(old, Telemetry())
    running = of(None)
    door.arrive(running, 0.0, 0.0)
    waiting = {name: of(None, level=level) for level, name in enumerate(CLASSES)}
    for ticket in waiting.values():
        door.arrive(ticket, 0.0, 0.0)
    new = Policy(
        concurrency=Concurrency("fixed", initial=1),
        queue=Queue(10.0, 10, 20, discipline="fifo"),
        priorities=("background", "vip", "default"),
    )
    remake_admission(door, old, new, 1.0)
    assert {name: t.level for name, t in waiting.items()} == {
        "critical": 2,
        "default": 2,
        "background": 0,
    }
    served: list[str] = []
    for _ in range(3):
        door.finish(running, 2.0, Outcome.SUCCESS)
        running = next(t for t in waiting.values() if t.state == RUNNING)
        served += [name for name, t in waiting.items() if t is running]
    assert served == ["background", "critical", "default"]
