"""Requests that are held open for seconds do not keep others out."""

from __future__ import annotations

from math import inf

import anyio
import pytest

from loadgate import AdmissionController, Concurrency, Outcome, Policy, PolicyError, Queue
from loadgate.admission import ENDED, RUNNING, WAITING, Admission, Ticket
from loadgate.decisions import ADMIT, Reason, Refuse
from loadgate.making import make_admission
from loadgate.telemetry import Telemetry
from loadgate.ticket import Note
from tests.controllers import controller, is_idle


def gate(limit: int = 2, **settings: object) -> Admission:
    """A fixed limit whose long-lived requests move after five seconds."""
    given: dict[str, object] = {"long_lived": 5.0, "max": 1000, **settings}
    concurrency = Concurrency("fixed", initial=limit, **given)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # settings by name
    return make_admission(Policy(concurrency=concurrency, queue=Queue(60.0)), Telemetry())


def starts(admission: Admission, now: float, *, answered: bool = False) -> Ticket:
    ticket = Ticket()
    assert admission.arrive(ticket, now, 0.0) is ADMIT
    if answered:
        ticket.answered_at = now + 0.01
    return ticket


def work(admission: Admission, begin: float, end: float, seconds: float) -> None:
    """Requests of `seconds` each, one after the other."""
    now = begin
    while now < end:
        ticket = starts(admission, now)
        now += seconds
        admission.finish(ticket, now, Outcome.SUCCESS)


def test_one_whose_answer_began_gives_its_place_to_whoever_waits() -> None:
    admission = gate(1)
    stream, waiter = starts(admission, 0.0, answered=True), Ticket()
    admission.arrive(waiter, 4.9, 0.0)
    assert waiter.state == WAITING
    admission.look(5.2)
    assert (stream.state, waiter.state) == (RUNNING, RUNNING)
    assert (admission.in_flight, admission.long_lived.places, admission.running()) == (1, 1, 2)


def test_an_arrival_finds_the_place_of_a_long_lived_one() -> None:
    admission = gate(1)
    starts(admission, 0.0, answered=True)
    starts(admission, 6.0)
    assert admission.in_flight == 1


def test_where_nothing_ends_an_old_request_is_stuck_and_stays() -> None:
    admission = gate(2)
    work(admission, 0.0, 10.0, 0.05)
    for now in (10.0, 10.0):
        starts(admission, now)
    for now in range(16, 80):
        admission.look(float(now))
    assert admission.in_flight == 2


def test_when_a_service_becomes_slow_its_requests_are_not_long_lived() -> None:
    admission = gate(6)
    work(admission, 0.0, 10.0, 0.05)
    nearly_done = [starts(admission, 9.99) for _ in range(3)]
    slow = [starts(admission, 10.0) for _ in range(3)]
    for ticket in nearly_done:
        admission.finish(ticket, 10.02, Outcome.SUCCESS)
    for tick in range(90):  # while a tenth of their age is less than what the others take
        now = 10.25 + 0.05 * tick
        if tick % 10 == 5:
            admission.finish(starts(admission, now - 0.4), now, Outcome.SUCCESS)
        admission.look(now)
        assert admission.long_lived.places == 0
    assert all(ticket.state == RUNNING for ticket in slow)


def test_where_the_others_are_quick_an_old_request_is_long_lived_and_teaches_nothing() -> None:
    admission = gate(2)
    poll = starts(admission, 0.0)
    work(admission, 0.0, 8.0, 0.01)
    assert (poll.state, admission.in_flight, admission.long_lived.places) == (RUNNING, 0, 1)
    finished = admission.telemetry.finished
    assert finished[Outcome.IGNORED] == 0
    assert admission.finish(poll, 30.0, Outcome.SUCCESS)
    assert not admission.finish(poll, 31.0, Outcome.SUCCESS)
    assert poll.state == ENDED
    assert (
        finished[Outcome.SUCCESS]
        == sum(finished.values())
        == admission.telemetry.latency.freeze().count
    )
    assert admission.running() == 0


def test_where_the_others_take_seconds_too_it_is_one_of_them() -> None:
    admission = gate(2)
    starts(admission, 0.0)
    work(admission, 0.0, 60.0, 2.0)
    assert admission.in_flight == 1


def test_the_quicker_the_others_the_sooner() -> None:
    admission = gate(2)
    starts(admission, 0.0)
    work(admission, 0.0, 4.0, 0.01)  # one second is enough, but three must have ended first
    assert admission.long_lived.places == 1


def test_nobody_ages_while_everything_stands_still() -> None:
    admission = gate(1)
    starts(admission, 0.0, answered=True)
    admission.stalled(20.0, 19.0)
    admission.look(21.0)
    assert admission.in_flight == 1
    admission.look(24.5)
    assert admission.in_flight == 0


def test_whoever_finds_the_pool_full_stays_where_it_is() -> None:
    admission = gate(3, max_long_lived=1)
    streams = [starts(admission, 0.0, answered=True) for _ in range(3)]
    admission.look(6.0)
    assert (admission.in_flight, admission.long_lived.places) == (2, 1)
    admission.finish(streams[0], 7.0, Outcome.SUCCESS)
    admission.look(7.5)
    assert (admission.in_flight, admission.long_lived.places) == (1, 1)


def test_limit_and_pool_make_at_most_max_unless_the_pool_has_a_bound_of_its_own() -> None:
    admission = gate(3, max=5)
    for _ in range(2):
        for _ in range(3 - admission.in_flight):
            starts(admission, 0.0, answered=True)
        admission.look(6.0 + admission.long_lived.places)
    assert (admission.in_flight, admission.long_lived.places) == (3, 2)


def test_all_places_of_a_wide_request_move() -> None:
    admission = gate(4)
    wide = Ticket(note=Note(places=3))
    admission.arrive(wide, 0.0, 0.0)
    wide.answered_at = 0.5
    admission.look(6.0)
    assert (admission.in_flight, admission.long_lived.places) == (0, 3)
    admission.finish(wide, 8.0, Outcome.SUCCESS)
    assert admission.long_lived.places == 0
    assert admission.telemetry.held == pytest.approx(18.0)


def test_a_reserve_is_free_again_but_a_cap_on_clients_still_counts() -> None:
    concurrency = Concurrency("fixed", initial=4, max_share=0.25, long_lived=5.0)
    policy = Policy(concurrency=concurrency, reserve={"default": 0.5}, queue=Queue(60.0))
    admission = make_admission(policy, Telemetry())
    stream = Ticket(level=1, client="a")
    admission.arrive(stream, 0.0, 0.0)
    stream.answered_at = 0.1
    admission.look(6.0)
    assert admission.long_lived.places == 1
    reserves = admission.accounts.reserves
    assert reserves is not None
    assert reserves.of(1).in_flight == 0
    refusal = admission.arrive(Ticket(level=1, client="a"), 7.0, 0.0)
    assert isinstance(refusal, Refuse)
    assert refusal.reason is Reason.FAIR_SHARE
    admission.finish(stream, 8.0, Outcome.SUCCESS)
    assert admission.arrive(Ticket(level=1, client="a"), 9.0, 0.0) is ADMIT


def test_whoever_moves_after_its_timeout_was_wasted_until_then() -> None:
    admission = gate(1)
    late = Ticket(deadline=1.0)
    admission.arrive(late, 0.0, 0.0)
    late.answered_at = 0.5
    admission.look(6.0)
    admission.finish(late, 100.0, Outcome.SUCCESS)
    assert admission.telemetry.wasted == pytest.approx(6.0)
    assert admission.telemetry.finished[Outcome.OVERLOAD] == 1


@pytest.mark.parametrize(
    ("settings", "after"),
    [
        ({}, 5.0),
        ({"algorithm": "vegas"}, inf),
        ({"long_lived": "never"}, inf),
        ({"mode": "off"}, inf),
        ({"algorithm": "fixed", "long_lived": 2.0}, 2.0),
    ],
)
def test_only_the_adaptive_limit_has_such_a_pool_unless_asked(
    settings: dict[str, object], after: float
) -> None:
    policy = Policy.from_mapping({"concurrency": settings})
    assert policy.concurrency.pool() == (after, None, 1000)


@pytest.mark.parametrize(
    "settings",
    [
        {"long_lived": "soon"},
        {"long_lived": 0.0},
        {"long_lived": True},
        {"long_lived": float("nan")},
        {"max_long_lived": -1},
        {"max_long_lived": 1.5},
    ],
)
def test_what_means_nothing_is_refused(settings: dict[str, object]) -> None:
    with pytest.raises(PolicyError) as caught:
        Concurrency(**settings)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # the point
    assert caught.value.path == next(iter(settings))


@pytest.mark.anyio
async def test_the_watch_moves_it_when_nobody_else_comes() -> None:
    policy = Policy(
        concurrency=Concurrency("fixed", initial=1, max=10, long_lived=0.1),
        queue=Queue(30.0, max_queue=10),
    )
    async with AdmissionController(policy) as gate, gate.admit() as stream:
        stream.answered()
        with anyio.fail_after(10):
            async with gate.admit():
                seen = gate.snapshot()
                assert (seen.in_flight, seen.long_lived) == (1, 1)


@pytest.mark.anyio
async def test_a_drain_waits_for_the_long_lived_too() -> None:
    gate = controller(1)
    policy = Policy(concurrency=Concurrency("fixed", initial=1, max=10, long_lived=0.1))
    async with gate:
        await gate.apply(policy)
        async with gate.admit() as stream:
            stream.answered()
            with anyio.fail_after(10):
                while not gate.snapshot().long_lived:  # noqa: ASYNC110  # it waits for a tick
                    await anyio.sleep(0.01)
            assert not await gate.drain(0.0)
        assert await gate.drain(10)
    assert is_idle(gate)
