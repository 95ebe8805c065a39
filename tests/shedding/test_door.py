"""The door's rule, driven by numbers: a loop that is simulated by a queue."""

from __future__ import annotations

import math
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgate.decisions import Reason
from loadgate.explain import DOOR_AGE, DOOR_IN_TRANSIT, DOOR_RATE, explain
from loadgate.shedding.door import DoorRule


class Loop:
    """A loop that works off what passed, one at a time.

    Whoever enters more than 0.1 s after it passed is refused inside, which takes 0.3 ms.

    Args:
        work: Seconds of the loop for each request that enters in time.
        places: Requests a second that find a place; the others are refused inside.
    """

    def __init__(self, work: float, places: float = math.inf) -> None:
        self.rule = DoorRule(0.1)
        self.work = work
        self.places = places
        self.now = 0.0
        self.free_at = 0.0
        self.useful = 0
        self._credit = 4.0 if places else 0.0
        self._credit_at = -1.0
        self._on_its_way: deque[tuple[float, float]] = deque()
        self.offered = self.passed = 0
        self.waits: list[float] = []

    def offer(self, rate: float, seconds: float) -> float:
        """Offer evenly spaced requests; returns the share that passed."""
        self.offered = self.passed = 0
        end = self.now + seconds
        while self.now < end:
            self.now += 1.0 / rate
            self.work_off()
            if self.now >= self.rule.due:
                self.rule.look(self.now, self.useful)
            self.offered += 1
            if self.rule.arrive(self.now) is None:
                self.passed += 1
                self.take()
        return self.passed / self.offered

    def take(self) -> None:
        starts = max(self.now, self.free_at)
        self.free_at = starts + (self.work if starts - self.now <= 0.1 else 0.0003)
        self._on_its_way.append((self.now, starts))

    def work_off(self) -> None:
        while self._on_its_way and self._on_its_way[0][1] <= self.now:
            passed, entered = self._on_its_way.popleft()
            self.waits.append(entered - passed)
            self.rule.enter(entered, passed)
            if entered - passed > 0.1:
                continue
            self._credit = min(4.0, self._credit + (entered - self._credit_at) * self.places)
            self._credit_at = entered
            if self._credit >= 1.0:
                self._credit -= 1.0
                self.useful += 1


def test_a_door_in_front_of_a_loop_that_copes_stays_open() -> None:
    loop = Loop(work=0.0005, places=40)
    assert loop.offer(400, 10) == 1.0
    assert not loop.rule.closed


def test_a_busy_service_below_its_capacity_is_not_touched() -> None:
    loop = Loop(work=0.020)
    assert loop.offer(49, 20) == 1.0


def test_an_overloaded_loop_gets_what_it_can_work_off_and_little_more() -> None:
    loop = Loop(work=0.020)
    loop.offer(500, 4)
    before = loop.useful
    loop.offer(500, 10)
    assert loop.rule.closed
    assert loop.useful - before == pytest.approx(500, rel=0.05)  # 50/s for 10 s
    assert loop.passed <= 2.5 * 500
    assert loop.rule.in_transit <= 2


def arrive_and_look(rule: DoorRule, now: float, useful: int = 0) -> bool:
    if now >= rule.due:
        rule.look(now, useful)
    return rule.arrive(now) is None


@pytest.mark.parametrize("rate", [75, 100])
def test_a_load_a_little_above_what_the_loop_can_do_is_served_in_time(rate: int) -> None:
    # Twice the useful and ten, which is more than comes: nothing is thinned, only narrowed.
    loop = Loop(work=0.020)
    loop.offer(rate, 4)
    before = loop.useful
    loop.waits.clear()
    loop.offer(rate, 10)
    assert loop.rule.closed
    assert not loop.rule.thinned
    assert loop.useful - before == pytest.approx(500, rel=0.05)
    assert max(loop.waits) < 0.1


def test_it_opens_when_the_load_has_fallen_to_what_the_loop_can_just_do() -> None:
    loop = Loop(work=0.020)
    loop.offer(100, 5)
    assert loop.rule.closed
    loop.offer(49, 2)
    assert not loop.rule.closed


def test_a_closed_door_refuses_inside_whoever_is_late_by_then() -> None:
    rule = DoorRule(0.1)
    for passed in (5.0, 5.1, 5.2):
        assert rule.arrive(passed) is None
    assert rule.enter(5.4, 5.0) is None  # an open one refuses nobody
    rule.closed = True
    late = rule.enter(5.3, 5.1)
    assert late is not None
    assert late.reason is Reason.LOOP_LAG
    assert (late.subject, late.bound) == (DOOR_AGE, 0.1)
    assert late.observed == pytest.approx(0.2)
    assert "0.2 s on its way" in explain(late)
    assert rule.enter(5.25, 5.2) is None
    assert rule.in_transit == 0


def test_the_cost_of_refusing_inside_is_kept_small() -> None:
    # 2,000/s of which each would cost a millisecond inside, 40/s find a place.
    loop = Loop(work=0.001, places=40)
    loop.offer(2000, 4)
    before = loop.useful
    share = loop.offer(2000, 20)
    assert loop.useful - before == pytest.approx(800, rel=0.05)
    assert share < 0.15


def test_it_opens_by_itself_when_the_load_falls() -> None:
    loop = Loop(work=0.020)
    loop.offer(1000, 5)
    assert loop.rule.closed
    loop.offer(30, 3)
    assert not loop.rule.closed
    assert loop.offer(30, 5) == 1.0


def test_a_capacity_that_grows_is_followed() -> None:
    loop = Loop(work=0.020)
    loop.offer(500, 5)
    loop.work = 0.001
    loop.offer(500, 5)
    assert loop.offer(500, 2) > 0.95


def test_when_every_decision_is_of_use_the_loop_is_kept_busy_with_them() -> None:
    # A flood, each request of which a rate refuses in 1 ms: whom it hits is only known inside.
    loop = Loop(work=0.001)
    loop.offer(4000, 5)
    before = loop.useful
    loop.offer(4000, 5)
    assert loop.useful - before > 0.9 * 5000


def test_a_trickle_passes_although_nothing_was_ever_of_use() -> None:
    loop = Loop(work=0.050, places=0.0)
    loop.offer(500, 10)
    assert loop.rule.closed
    loop.offer(500, 10)
    assert loop.passed >= 50


def test_one_that_never_arrives_does_not_lock_the_door() -> None:
    rule = DoorRule()
    rule.look(0.0, 0)
    now = 0.0
    passed = 0
    for step in range(5000):
        now = step * 0.001
        if now >= rule.due:
            rule.look(now, 0)
        passed += rule.arrive(now) is None  # and none of them enters
    late = sum(rule.arrive(now + 1.1 * turn) is None for turn in range(1, 6))
    assert rule.closed
    assert late == 5


def test_a_refusal_has_the_reason_of_a_late_loop() -> None:
    loop = Loop(work=0.020)
    loop.offer(1000, 5)
    refusals = [loop.rule.arrive(loop.now) for _ in range(5)]
    refusal = refusals[-1]
    assert refusal is not None
    assert refusal.reason is Reason.LOOP_LAG
    assert refusal.observed > 0.0


@given(
    st.lists(
        st.tuples(st.sampled_from(["arrive", "enter", "leave"]), st.floats(-0.1, 2.0)),
        max_size=200,
    )
)
def test_whatever_happens_those_in_transit_are_counted_right(
    events: list[tuple[str, float]],
) -> None:
    rule = DoorRule()
    now, inside, useful = 100.0, 0, 0
    for kind, step in events:
        now += step
        if now >= rule.due:
            rule.look(now, useful)
        if kind == "arrive":
            inside += rule.arrive(now) is None
        elif inside:
            inside -= 1
            if kind == "enter":
                rule.enter(now, now - 0.01)
                useful += 1
            else:
                rule.leave()
        assert rule.in_transit == inside
        assert rule.delay >= 0.0


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.inf, math.nan])
def test_a_lag_that_means_nothing_is_an_error(wrong: float) -> None:
    with pytest.raises(ValueError, match="max_lag"):
        DoorRule(wrong)


def burst(loop: Loop, size: int) -> float:
    """Offer so many at one moment; returns the share that passed."""
    return loop.offer(size * 1e6, 1e-6)


def test_an_overload_that_goes_on_closes_it_within_a_second() -> None:
    loop = Loop(work=0.020)
    loop.offer(500, 0.7)
    assert loop.rule.closed


@pytest.mark.parametrize("size", [100, 500, 5000])
@pytest.mark.parametrize("before", [0.0, 0.3, 5.0])
def test_one_burst_however_large_does_not_close_it(size: int, before: float) -> None:
    loop = Loop(work=0.020, places=40)
    if before:
        loop.offer(20, before)
    assert burst(loop, size) == 1.0
    assert loop.offer(20, 5) == 1.0
    assert not loop.rule.closed


def test_after_bursts_and_pauses_nobody_is_refused_for_what_is_over() -> None:
    # The pauses are longer than what was left takes, so each burst meets an idle service.
    loop = Loop(work=0.002, places=40)
    for pause, size in ((1, 100), (2, 100), (2, 100), (2, 500), (2, 100), (10, 100), (5, 30)):
        loop.now += pause
        assert burst(loop, size) == 1.0


@pytest.mark.parametrize("idle", [2.5, 10.0, 3600.0])
def test_a_closed_door_is_open_after_an_idle_time_whatever_it_measured(idle: float) -> None:
    loop = Loop(work=0.020)
    loop.offer(1000, 10)
    assert loop.rule.closed
    loop.now += idle
    assert burst(loop, 100) == 1.0
    assert not loop.rule.closed


def test_looking_is_enough_to_open_when_nobody_comes() -> None:
    loop = Loop(work=0.020)
    loop.offer(1000, 10)
    loop.now += 1.5
    loop.work_off()  # whoever was on the way has entered
    loop.rule.look(loop.now, loop.useful)
    assert not loop.rule.closed


def test_little_traffic_opens_it_although_the_machine_is_slow() -> None:
    loop = Loop(work=0.020)
    loop.offer(1000, 5)
    assert loop.rule.closed
    # Each of ten a second takes 20 ms to the application: late, but nothing to refuse anybody for.
    for step in range(20):
        loop.now += 0.1
        if loop.now >= loop.rule.due:
            loop.rule.look(loop.now, loop.useful)
        if loop.rule.arrive(loop.now) is None:
            loop.rule.enter(loop.now + 0.020, loop.now)
            loop.useful += 1
        if step >= 15:
            assert not loop.rule.closed


def test_it_closes_when_most_are_refused_inside_while_they_are_paced() -> None:
    """Then nobody is long on the way, but taking everybody in costs as much as the work."""
    for paced in (True, False):
        rule = DoorRule(0.1)
        useful = 0
        for step in range(1, 501):  # 500 a second, of whom 40 find a place
            now = step / 500
            if now >= rule.due:
                rule.look(now, useful, paced)
            if rule.arrive(now) is None:
                rule.enter(now + 0.0005, now)
                useful += step % 25 < 2
        assert rule.closed == paced


def test_a_loop_that_stands_still_is_not_taken_for_an_idle_one() -> None:
    loop = Loop(work=0.020)
    loop.offer(1000, 5)
    assert loop.rule.in_transit
    last = loop.now
    loop.rule.look(last + 1.5, loop.useful)
    assert loop.rule.closed
    # ... but somebody who was lost on the way does not keep it shut for ever.
    loop.rule.look(last + 4.0, loop.useful)
    assert not loop.rule.closed


def test_what_a_refusal_compared_is_what_it_says() -> None:
    loop = Loop(work=0.020)
    loop.offer(1000, 5)
    refusals = [one for one in (loop.rule.arrive(loop.now) for _ in range(50)) if one]
    assert refusals
    for one in refusals:
        assert one.subject in (DOOR_IN_TRANSIT, DOOR_RATE)
        assert one.observed >= one.bound
        assert "signals.max_lag" in explain(one) or "a second came" in explain(one)
        assert "tick" not in explain(one)


def stood_still(loop: Loop, rates: dict[int, float], seconds: float) -> dict[int, float]:
    """Offer each class its rate, all of 0.1 s at once, as a loop meets them that stood still.

    Returns:
        The share of each class that passed.
    """
    passed, offered = dict.fromkeys(rates, 0), dict.fromkeys(rates, 0)
    due = dict.fromkeys(rates, 0.0)
    for _ in range(round(seconds / 0.1)):
        loop.now += 0.1
        loop.work_off()
        if loop.now >= loop.rule.due:
            loop.rule.look(loop.now, loop.useful)
        for level in sorted(rates, reverse=True):  # the highest class comes last, when it is tight
            due[level] += rates[level] * 0.1
            while due[level] >= 1.0:
                due[level] -= 1.0
                offered[level] += 1
                if loop.rule.arrive(loop.now, level) is None:
                    passed[level] += 1
                    loop.take()
    return {level: passed[level] / offered[level] for level in rates}


def test_the_highest_class_passes_a_closed_door_before_all_others() -> None:
    loop = Loop(work=0.020)
    loop.rule.classes, loop.rule.usual = 3, 1
    rates = {0: 15.0, 1: 500.0, 2: 500.0}
    stood_still(loop, rates, 5.0)
    share = stood_still(loop, rates, 20.0)
    assert loop.rule.closed
    assert share[0] > 0.95
    assert share[1] + share[2] < 0.2


def test_the_usual_class_is_treated_as_if_there_were_no_others() -> None:
    plain, classed = Loop(work=0.020), Loop(work=0.020)
    classed.rule.classes, classed.rule.usual = 3, 1
    for loop, level in ((plain, 0), (classed, 1)):
        stood_still(loop, {level: 1000.0}, 5.0)
    alone = stood_still(plain, {0: 1000.0}, 20.0)[0]
    assert stood_still(classed, {1: 1000.0}, 20.0)[1] == pytest.approx(alone, rel=0.1)


def test_a_flood_of_the_highest_class_is_narrowed_like_any_other() -> None:
    loop = Loop(work=0.020)
    loop.rule.classes, loop.rule.usual = 3, 1
    loop.offer(1000, 5)
    loop.offer(1000, 10)
    assert loop.rule.closed
    assert loop.passed <= 2.7 * 500


def test_a_class_below_passes_when_the_classes_above_ask_for_nothing() -> None:
    rule = DoorRule()
    rule.classes, rule.usual = 3, 1
    rule.look(0.0, 0)
    passed = 0
    for step in range(10_000):
        now = step * 0.001
        if now >= rule.due:
            rule.look(now, 0)
        if rule.arrive(now, 2) is None:
            rule.enter(now + 0.02, now)  # at once, but late
            passed += 1
    assert rule.closed
    assert passed >= 50
