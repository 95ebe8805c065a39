"""The rules of the polite client, as laws."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgate.errors import PolicyError
from loadgate.integrations.retry import RetryBudget, Throttle, full_jitter, retry_after


@given(
    retries=st.integers(0, 10_000),
    base=st.floats(0.0, 10.0),
    extra=st.floats(0.0, 100.0),
    draw=st.floats(0.0, 1.0, exclude_max=True),
)
def test_full_jitter_stays_between_zero_and_the_cap(
    retries: int, base: float, extra: float, draw: float
) -> None:
    pause = full_jitter(retries, base=base, cap=base + extra, draw=draw)
    assert 0.0 <= pause <= base + extra
    assert pause <= base * 2.0 ** min(retries, 64)


@pytest.mark.parametrize(
    "value",
    [
        "Sun, 06 Nov 1994 08:49:37 GMT",
        "Sunday, 06-Nov-94 08:49:37 GMT",
        "Sun Nov  6 08:49:37 1994",
    ],
)
def test_the_three_date_forms_of_rfc_9110_are_read(value: str) -> None:
    assert retry_after([value], None, wall=784111777.0 - 5.0) == 5.0


def test_of_several_retry_after_fields_the_longest_counts() -> None:
    assert retry_after(["3", "nonsense", " 11 "], None, wall=0.0) == 11.0
    assert retry_after([], None, wall=0.0) is None


@given(st.text(max_size=40), st.text(max_size=40) | st.none())
def test_no_field_however_strange_raises_or_is_negative(value: str, date: str | None) -> None:
    wait = retry_after([value], date, wall=0.0)
    assert wait is None or wait >= 0.0


@given(st.lists(st.booleans(), max_size=400))
def test_retries_never_exceed_the_savings_and_a_tenth_of_the_successes(events: list[bool]) -> None:
    budget = RetryBudget(capacity=10.0, deposit=0.1)
    retries = 0
    for succeeded in events:
        if succeeded:
            budget.on_success()
        elif budget.affords_one:
            budget.withdraw()
            retries += 1
    assert retries <= 10 + 0.1 * sum(events) + 1e-6
    assert 0.0 <= budget.balance <= 10.0


def test_ten_successes_pay_for_one_retry() -> None:
    budget = RetryBudget(capacity=1.0)
    budget.withdraw()
    for _ in range(9):
        budget.on_success()
    assert not budget.affords_one
    budget.on_success()
    assert budget.affords_one


def test_the_throttle_is_the_published_formula() -> None:
    throttle = Throttle(k=2.0, min_requests=0)
    for _ in range(30):
        throttle.admits(0.0, 1.0)
    for _ in range(5):
        throttle.on_accept(0.0)
    assert throttle.probability(0.0) == (30 - 2 * 5) / 31


@settings(max_examples=15, deadline=None)
@given(k=st.floats(1.5, 3.0), capacity=st.floats(0.05, 0.9), seed=st.integers(0, 2**32))
def test_in_the_steady_state_a_server_sees_about_k_times_what_it_accepts(
    k: float, capacity: float, seed: int
) -> None:
    dice = random.Random(seed)
    throttle = Throttle(k=k, window=100.0)
    seen = taken = 0
    for second in range(300):
        offered = [throttle.admits(float(second), dice.random()) for _ in range(50)]
        arrived = sum(offered)
        accepted = min(arrived, int(50 * capacity))
        for _ in range(accepted):
            throttle.on_accept(float(second))
        if second >= 200:
            seen, taken = seen + arrived, taken + accepted
    assert seen <= 1.1 * k * taken + 10
    assert seen >= min(50 * 100, k * taken) * 0.9 - 10


def test_the_window_forgets_after_two_minutes() -> None:
    throttle = Throttle()
    for _ in range(100):
        throttle.admits(5.0, 1.0)
    assert throttle.probability(100.0) > 0.9
    assert throttle.probability(130.0) == 0.0


def test_a_clock_that_steps_back_forgets_nothing() -> None:
    throttle = Throttle()
    for _ in range(100):
        throttle.admits(500.0, 1.0)
    assert throttle.probability(3.0) > 0.9


@pytest.mark.parametrize(
    ("make", "path"),
    [
        (lambda: Throttle(k=0.5), "throttle.k"),
        (lambda: Throttle(window=0.0), "throttle.window"),
        (lambda: Throttle(min_requests=-1), "throttle.min_requests"),
        (lambda: RetryBudget(capacity=float("inf")), "budget.capacity"),
        (lambda: RetryBudget(deposit=-0.1), "budget.deposit"),
    ],
)
def test_bad_numbers_are_refused_at_construction(make: object, path: str) -> None:
    assert callable(make)
    with pytest.raises(PolicyError) as caught:
        make()
    assert caught.value.path == path
