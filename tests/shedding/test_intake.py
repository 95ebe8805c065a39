from __future__ import annotations

import random
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgate.shedding.intake import Intake

WORK = 0.020
TURN = 0.0001


def late(max_lag: float = 0.1, now: float = 0.0) -> Intake:
    intake = Intake(max_lag)
    assert intake.tick(now, 0.1 * max_lag)
    return intake


def turn(intake: Intake, now: float, arrived: int, most: int = 10_000) -> tuple[float, int]:
    """Turn with nothing to do until the next may begin: when that is, and the turns it took."""
    for turns in range(1, most):
        now += TURN
        if intake.turn(now, arrived):
            return now, turns
    raise AssertionError("it never let anybody begin again")


def work(intake: Intake, now: float, arrived: int = 0, seconds: float = WORK) -> float:
    """One begins and computes; then all are taken in."""
    intake.began(now)
    assert not intake.turn(now + seconds, arrived)
    return turn(intake, now + seconds, arrived)[0]


def test_as_long_as_the_loop_is_on_time_nothing_is_paced() -> None:
    intake = Intake(0.1)
    for step in range(1000):
        assert not intake.tick(step * 0.005, 0.0099)
    assert not intake.paced
    assert not intake.spent


def test_whoever_made_the_loop_late_alone_is_followed_by_one_alone() -> None:
    intake = late()
    assert not intake.spent
    intake.began(0.0)
    assert intake.spent
    assert intake.turning


def test_the_next_may_begin_when_eight_turns_have_brought_nobody() -> None:
    intake = late()
    intake.began(0.0)
    now, arrived = WORK, 1
    assert not intake.turn(now, arrived)
    for _ in range(6):  # three came while it computed, one in each second turn
        now += TURN
        arrived += 1
        assert not intake.turn(now, arrived)
        now += TURN
        assert not intake.turn(now, arrived)
    assert turn(intake, now, arrived)[1] == 7
    assert not intake.spent
    assert not intake.turning


def test_taking_in_ends_although_somebody_comes_in_every_turn() -> None:
    intake = late()
    intake.began(0.0)
    now, arrived = WORK, 1
    intake.turn(now, arrived)
    while not intake.turn(now := now + TURN, arrived := arrived + 1):
        assert now < 1.0
    assert now == pytest.approx(WORK + 2.5 * WORK, abs=2 * TURN)


def test_a_long_handler_is_not_followed_by_more_taking_in_than_half_of_the_allowed_lag() -> None:
    intake = late()
    intake.began(0.0)
    now, arrived = 1.0, 1
    intake.turn(now, arrived)
    while not intake.turn(now := now + TURN, arrived := arrived + 1):
        assert now < 2.0
    assert now == pytest.approx(1.05, abs=2 * TURN)


def test_busy_turns_without_work_in_them_are_waited_for_no_longer_than_two_milliseconds() -> None:
    intake = late()
    intake.began(0.0)
    now, arrived = 0.0, 0
    while not intake.turn(now := now + TURN, arrived := arrived + 1):
        assert now < 1.0
    assert now == pytest.approx(0.002, abs=3 * TURN)


def test_requests_that_cost_the_loop_little_begin_many_at_a_time() -> None:
    intake = late()
    now = 0.0
    for _ in range(30):
        now = work(intake, now, seconds=0.001)
        intake.tick(now, 0.05)
    begun = 0
    while not intake.spent:
        intake.began(now)
        begun += 1
    assert begun == 11  # 10 ms of what costs 1, less what a turn takes anyway


def test_what_computes_for_longer_than_a_turn_has_room_for_begins_alone() -> None:
    intake = late()
    now = 0.0
    for _ in range(10):
        now = work(intake, now)
        intake.tick(now, 0.05)
        assert intake.cost == pytest.approx(WORK, rel=0.05)
    intake.began(now)
    assert intake.spent


def test_work_that_goes_on_in_every_turn_is_not_the_doing_of_who_begins() -> None:
    """A task of the application computes for 20 ms in each turn; requests cost next to nothing."""
    intake = late()
    now = 0.0
    for arrived in range(0, 200, 10):
        intake.began(now)
        while not intake.turn(now := now + WORK, arrived):
            pass
        intake.tick(now, WORK)
    begun = 0
    while not intake.spent and begun < 5000:
        intake.began(now)
        begun += 1
    assert begun > 100


def begin_all_that_may(intake: Intake, now: float) -> int:
    begun = 0
    while not intake.spent and begun < 5000:
        intake.began(now)
        begun += 1
    return begun


def test_work_of_another_task_that_varies_from_turn_to_turn_holds_nobody_up_for_long() -> None:
    """A task of the application computes for 15 to 40 ms in each turn; requests cost nothing."""
    dice = random.Random(1)
    intake = late()
    now, arrived, begun, looks = 0.0, 0, 0, 40
    for _ in range(looks):
        waiting = 20
        while waiting and not intake.spent:
            intake.began(now)
            waiting -= 1
            begun += 1
        while not intake.turn(now := now + dice.uniform(0.015, 0.040), arrived := arrived + 5):
            pass
        intake.tick(now, 0.02)
    assert begun > 0.8 * 20 * looks


def test_taking_in_that_costs_as_much_as_the_work_holds_nobody_up() -> None:
    """Behind a slow server each turn is long, and no longer where requests begin."""
    intake = late()
    now, arrived = 0.0, 0
    for _ in range(5):
        intake.began(now)
        while not intake.turn(now := now + 0.010, arrived := arrived + 20):
            pass
        intake.tick(now, 0.02)
    assert begin_all_that_may(intake, now) >= 1000


def test_work_in_every_turn_is_told_from_what_a_turn_takes_anyway() -> None:
    """Some begin in each turn, so that none shows what a turn without them takes."""
    intake = late()
    now, arrived = 0.0, 0
    intake.began(now)
    while not intake.turn(now := now + 0.0001, arrived):  # one that cost nothing
        pass
    assert not intake.spent
    for _ in range(2):
        intake.began(now)
        while not intake.turn(now := now + WORK, arrived := arrived + 1):
            if not intake.spent:
                intake.began(now)
    assert begin_all_that_may(intake, now) == 1


def test_a_burst_of_cheap_ones_that_made_the_loop_late_goes_on_by_as_many() -> None:
    intake = Intake(0.1)
    intake.tick(0.0, 0.0, admitted=1000)
    assert intake.tick(0.03, 0.02, admitted=1100)
    assert begin_all_that_may(intake, 0.03) == 50  # 0.2 ms for each


def test_everyone_begins_at_once_again_after_a_second_on_time() -> None:
    intake = late(now=0.0)
    assert not intake.tick(0.5, 0.0)
    assert intake.paced
    assert not intake.tick(0.999, 0.0)
    assert intake.tick(1.0, 0.0)
    assert not intake.paced
    assert not intake.spent
    assert intake.cost == 0.0


def test_who_is_late_again_within_that_second_starts_it_anew() -> None:
    intake = late(now=0.0)
    assert not intake.tick(0.9, 0.02)
    assert not intake.tick(1.8, 0.0)
    assert intake.paced
    assert intake.tick(1.9, 0.0)


def test_turns_that_are_counted_when_pacing_ends_let_everyone_begin() -> None:
    intake = late()
    intake.began(0.0)
    assert intake.tick(5.0, 0.0)
    assert not intake.spent
    assert intake.turn(5.0, 0)
    assert not intake.turning


def test_behind_a_closed_door_nothing_is_paced_until_it_opens() -> None:
    intake = late()
    intake.began(0.0)
    assert intake.step_aside(True)
    assert not intake.spent
    assert not intake.tick(0.1, 0.05)
    assert not intake.paced
    assert not intake.step_aside(False)
    assert intake.tick(0.2, 0.05)


def test_without_a_bound_on_the_lag_nothing_is_paced() -> None:
    intake = Intake()
    assert not intake.tick(0.0, 10.0)
    intake = late()
    intake.began(0.0)
    assert intake.follow(inf)
    assert not intake.spent


def test_whoever_cannot_wait_begins_and_the_next_waits_again() -> None:
    intake = late()
    intake.began(0.0)
    intake.let_one_begin()
    assert not intake.spent
    intake.began(0.0)
    assert intake.spent


def test_a_small_bound_does_not_make_every_tick_a_late_one() -> None:
    intake = Intake(0.01)
    assert not intake.tick(0.0, 0.004)
    assert intake.tick(0.005, 0.005)


@given(
    st.floats(0.01, 10.0),
    st.lists(st.tuples(st.floats(0.0, 0.5), st.booleans(), st.booleans()), max_size=60),
)
def test_whatever_happens_nobody_rests_for_longer_than_the_work_and_half_of_the_lag(
    max_lag: float, steps: list[tuple[float, bool, bool]]
) -> None:
    intake = Intake(max_lag)
    now, arrived = 0.0, 0
    intake.tick(now, max_lag)
    rested_at: float | None = None
    longest = 0.0
    for seconds, comes, is_late in steps:
        if not intake.spent and intake.paced:
            intake.began(now)
            rested_at, longest = now, 0.0
        now += seconds
        longest = max(longest, seconds)
        arrived += comes
        if intake.turning and intake.turn(now, arrived):
            assert not intake.spent
            rested_at = None
        elif rested_at is not None and intake.spent:
            assert now - rested_at < longest + max(0.5 * max_lag, 0.0) + 1e-9
        intake.tick(now, max_lag if is_late else 0.0)
        if not intake.paced:
            assert not intake.spent
            rested_at = None
