"""What holds for every limiter, whatever the numbers."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgate.rates import Limiter, create

BUCKETS = ["token-bucket", "leaky-bucket"]
WINDOWS = ["fixed-window", "sliding-window-counter", "sliding-window-log"]
EVERY = BUCKETS + WINDOWS

# No deadline: the machine may be busy, and time is an argument here anyway.
law = settings(deadline=None, max_examples=60)

starts = st.one_of(st.just(0.0), st.floats(0.0, 1e6), st.floats(1.6e9, 1.9e9))
limits = st.floats(0.01, 1e4)
pers = st.sampled_from([0.1, 1.0, 2.0, 7.5, 60.0, 3600.0])
bursts = st.one_of(st.integers(1, 300).map(float), st.floats(1.0, 300.0))
whole_limits = st.integers(1, 50)
gaps = st.lists(st.floats(0.0, 3.0), min_size=1, max_size=60)


def window(algorithm: str, limit: float, per: float) -> Limiter[Any]:
    made: Limiter[Any] = create(algorithm, limit=limit, per=per)
    return made


def states(limiter: Limiter[Any]) -> dict[object, object]:
    shards = limiter._shards  # pyright: ignore[reportPrivateUsage]  # nothing in them may differ
    return {key: state for shard in shards for key, state in shard.items()}


def state_of(limiter: Limiter[Any], now: float, key: str = "k") -> tuple[float, float, float]:
    quota = limiter.peek(key, now)
    return quota.remaining, quota.reset_after, quota.retry_after


@pytest.mark.parametrize("algorithm", BUCKETS)
@law
@given(limits, pers, bursts, starts, gaps)
def test_a_bucket_never_admits_more_than_burst_and_rate(
    algorithm: str, limit: float, per: float, burst: float, start: float, gaps: list[float]
) -> None:
    bucket: Limiter[Any] = create(algorithm, limit=limit, per=per, burst=burst)
    rate = limit / per
    admitted: list[float] = []
    now = start
    for gap in gaps:
        now += gap / rate
        admitted += [now for _ in range(3) if bucket.hit("k", now).allowed]
    # What rounding forgives, in tokens: see the constants in token_bucket.py.
    forgiven = 1e-9 * burst + rate * now * 2.0**-46
    for first, begin in enumerate(admitted):
        for last in range(first, len(admitted)):
            span = admitted[last] - begin
            assert last - first + 1 <= burst + rate * span + forgiven


@pytest.mark.parametrize("algorithm", BUCKETS)
@law
@given(limits, pers, bursts, st.floats(0.0, 1e5))
def test_demand_that_returns_at_each_retry_after_gets_the_whole_rate(
    algorithm: str, limit: float, per: float, burst: float, start: float
) -> None:
    bucket: Limiter[Any] = create(algorithm, limit=limit, per=per, burst=burst)
    now, admitted = start, 0
    for _ in range(400):
        quota = bucket.hit("k", now)
        admitted += quota.allowed
        now += quota.retry_after
    assert admitted >= limit / per * (now - start) - 1.0 - 1e-6


def test_a_day_of_polling_gets_a_day_of_the_rate() -> None:
    # 90/minute polled each second admitted 67 % with whole-second clocks and whole tokens.
    for limit, per in ((90.0, 60.0), (50.0, 60.0), (0.7, 1.0), (1000.0, 86400.0)):
        bucket: Limiter[Any] = create("token-bucket", limit=limit, per=per, burst=5)
        admitted = sum(bucket.hit("k", 1000.0 + second).allowed for second in range(86_400))
        # Polled once a second it cannot have more than one a second.
        expected = min(limit / per, 1.0) * 86_400
        assert expected - 1.0 <= admitted <= expected + 5.0


@pytest.mark.parametrize("algorithm", BUCKETS)
@law
@given(limits, pers, bursts, starts, gaps, st.floats(0.05, 1.5))
def test_a_bucket_refuses_until_retry_after_and_allows_at_it(
    algorithm: str,
    limit: float,
    per: float,
    burst: float,
    start: float,
    gaps: list[float],
    share: float,
) -> None:
    bucket: Limiter[Any] = create(algorithm, limit=limit, per=per, burst=burst)
    forgiven = burst * 2.0**-39 / (limit / per)
    check_retry_after(bucket, start, [gap * per / limit for gap in gaps], share * burst, forgiven)


@pytest.mark.parametrize("algorithm", WINDOWS)
@law
@given(whole_limits, pers, starts, gaps, st.integers(1, 60))
def test_a_window_refuses_until_retry_after_and_allows_at_it(
    algorithm: str, limit: int, per: float, start: float, gaps: list[float], cost: int
) -> None:
    limiter = window(algorithm, limit, per)
    check_retry_after(limiter, start, [gap * per / limit for gap in gaps], float(cost))


def check_retry_after(
    limiter: Limiter[Any],
    start: float,
    gaps: list[float],
    cost: float,
    forgiven: float = 0.0,
) -> None:
    now = start
    for gap in gaps:
        now += gap
        before = state_of(limiter, now)
        quota = limiter.hit("k", now, cost)
        if quota.allowed:
            assert quota.retry_after == 0.0
            continue
        assert state_of(limiter, now) == before, "a refused request was charged"
        if cost > quota.limit:
            assert quota.retry_after == math.inf
            continue
        assert 0.0 < quota.retry_after < math.inf
        assert limiter.peek("k", now + quota.retry_after, cost).allowed
        # A billionth early is early; below a few units in the last place it is the same moment.
        early = now + quota.retry_after * (1.0 - 1e-9) - 2e-14 * abs(now) - 1e-12 - forgiven
        if early > now:
            assert not limiter.peek("k", early, cost).allowed


@pytest.mark.parametrize("algorithm", EVERY)
@law
@given(whole_limits, pers, starts, gaps, st.integers(1, 5))
def test_peek_says_what_hit_would_answer_and_changes_nothing(
    algorithm: str, limit: int, per: float, start: float, gaps: list[float], cost: int
) -> None:
    limiter = window(algorithm, limit, per)
    now = start
    for gap in gaps:
        now += gap * per / limit
        before = states(limiter)
        seen = limiter.peek("k", now, cost)
        assert states(limiter) == before
        done = limiter.hit("k", now, cost)
        assert seen.allowed == done.allowed
        for one, other in (
            (seen.remaining, done.remaining),
            (seen.reset_after, done.reset_after),
            (seen.retry_after, done.retry_after),
        ):
            assert one == pytest.approx(other, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("algorithm", EVERY)
@law
@given(whole_limits, pers, starts, gaps)
def test_remaining_is_never_negative_and_what_remains_can_be_had(
    algorithm: str, limit: int, per: float, start: float, gaps: list[float]
) -> None:
    limiter = window(algorithm, limit, per)
    now = start
    for gap in gaps:
        now += gap * per / limit
        quota = limiter.hit("k", now)
        assert 0.0 <= quota.remaining <= quota.limit == limit
        assert quota.reset_after >= 0.0
        left = math.floor(quota.remaining + 1e-6 + limit / per * now * 2.0**-47)
        if left:
            assert limiter.peek("k", now, float(left)).allowed
        assert not limiter.peek("k", now, left + 1.0).allowed


@pytest.mark.parametrize("algorithm", EVERY)
@law
@given(whole_limits, pers, starts, gaps)
def test_a_refund_at_once_is_as_if_nothing_had_been_charged(
    algorithm: str, limit: int, per: float, start: float, gaps: list[float]
) -> None:
    limiter, twin = window(algorithm, limit, per), window(algorithm, limit, per)
    now = start
    for number, gap in enumerate(gaps):
        now += gap * per / limit
        if number % 2:
            limiter.refund(limiter.hit("k", now), now)
        else:
            assert limiter.hit("k", now).allowed == twin.hit("k", now).allowed
        assert limiter.peek("k", now).remaining == pytest.approx(
            twin.peek("k", now).remaining, abs=1e-6
        )


@pytest.mark.parametrize("algorithm", EVERY)
@law
@given(whole_limits, pers, st.floats(0.0, 1e6), gaps, st.floats(0.0, 4.0))
def test_a_late_refund_never_lifts_a_key_above_its_burst(
    algorithm: str, limit: int, per: float, start: float, gaps: list[float], late: float
) -> None:
    limiter = window(algorithm, limit, per)
    now = start
    receipts = [limiter.hit("k", now) for _ in range(limit)]
    now += late * per
    for _ in range(limit // 2):
        limiter.hit("k", now)
    for receipt in receipts:
        limiter.refund(receipt, now)
    admitted = 0
    while limiter.hit("k", now).allowed:
        admitted += 1
        assert admitted <= limit
    assert limiter.peek("other", now).remaining == pytest.approx(limit - 1.0, abs=1e-6)


@pytest.mark.parametrize("algorithm", EVERY)
@law
@given(whole_limits, pers, gaps)
def test_a_clock_that_jitters_backwards_grants_nothing(
    algorithm: str, limit: int, per: float, gaps: list[float]
) -> None:
    limiter = window(algorithm, limit, per)
    now = 1000.25 * per
    while limiter.hit("k", now).allowed:
        pass
    for gap in gaps:
        assert not limiter.hit("k", now - gap * per / 4.0).allowed
        assert not limiter.hit("k", now).allowed


@pytest.mark.parametrize("algorithm", BUCKETS)
@law
@given(limits, bursts, st.lists(st.floats(-5000.0, 50.0), min_size=1, max_size=60))
def test_a_bucket_grants_at_most_burst_and_rate_of_the_clocks_progress(
    algorithm: str, limit: float, burst: float, steps: list[float]
) -> None:
    bucket: Limiter[Any] = create(algorithm, limit=limit, burst=burst)
    now, progress, admitted = 1e6, 0.0, 0
    for step in steps:
        now += step / limit
        progress += max(0.0, step / limit)
        for _ in range(20):
            admitted += bucket.hit("k", now).allowed
    assert admitted <= burst + limit * progress + 1e-6 * burst + limit * 1e6 * 2.0**-44


@pytest.mark.parametrize("algorithm", BUCKETS)
@law
@given(limits, bursts, st.floats(1.0, 1e6))
def test_after_a_step_back_a_bucket_is_normal_within_one_bursts_time(
    algorithm: str, limit: float, burst: float, step: float
) -> None:
    bucket: Limiter[Any] = create(algorithm, limit=limit, burst=burst)
    now = 2e6
    while bucket.hit("k", now).allowed:
        pass
    back = now - step
    quota = bucket.hit("k", back)
    fill = burst / limit
    assert quota.allowed or quota.retry_after <= 2.0 * fill
    bucket.hit("k", back + fill * 1.000001 + 1e-6)
    assert bucket.hit("k", back + fill * 2.0 + (2.0 / limit) + 1e-6).allowed


@pytest.mark.parametrize("algorithm", WINDOWS)
def test_after_a_long_step_back_a_window_is_normal_within_two_windows(algorithm: str) -> None:
    limiter = window(algorithm, 5, 10.0)
    for _ in range(9):
        limiter.hit("k", 10_000.0)
    assert not limiter.hit("k", 6_400.0).allowed
    assert limiter.hit("k", 6_420.0).allowed
    assert limiter.peek("k", 6_440.0).remaining == 4.0


@pytest.mark.parametrize("algorithm", EVERY)
@pytest.mark.parametrize("cost", [0.0, -1.0, math.nan, math.inf, -math.inf])
def test_a_cost_that_means_nothing_is_an_error(algorithm: str, cost: float) -> None:
    limiter = window(algorithm, 5, 1.0)
    for _ in range(2):
        with pytest.raises(ValueError, match="cost"):
            limiter.hit("k", 1.0, cost)
        with pytest.raises(ValueError, match="cost"):
            limiter.peek("k", 1.0, cost)
        with pytest.raises(ValueError, match="cost"):
            limiter.take("k", 1.0, cost)
        limiter.hit("k", 1.0)
    assert limiter.peek("k", 1.0).remaining == 2.0


@pytest.mark.parametrize("algorithm", EVERY)
@pytest.mark.parametrize("now", [math.nan, math.inf, -math.inf])
def test_a_moment_that_does_not_exist_is_an_error(algorithm: str, now: float) -> None:
    limiter = window(algorithm, 5, 1.0)
    with pytest.raises(ValueError, match="now"):
        limiter.hit("k", now)
    limiter.hit("k", 1.0)
    with pytest.raises(ValueError, match="now"):
        limiter.hit("k", now)


@pytest.mark.parametrize("algorithm", EVERY)
def test_a_cost_above_the_burst_is_refused_for_ever_and_remembers_nobody(algorithm: str) -> None:
    limiter = window(algorithm, 5, 1.0)
    quota = limiter.hit("k", 1.0, 6)
    assert not quota.allowed
    assert quota.retry_after == math.inf
    assert limiter.keys == 0
    limiter.hit("k", 1.0)
    assert limiter.hit("k", 1.0, 6).retry_after == math.inf
    assert limiter.peek("k", 1.0, 6).retry_after == math.inf
    assert limiter.peek("k", 1.0).remaining == 3.0


@pytest.mark.parametrize("algorithm", BUCKETS + WINDOWS[:2])
def test_a_tiny_cost_is_still_charged(algorithm: str) -> None:
    limiter = window(algorithm, 1, 1e6)
    admitted = sum(limiter.hit("k", 3e5, 0.1).allowed for _ in range(30))
    assert admitted == 10
    if algorithm in BUCKETS:
        bucket: Limiter[Any] = create(algorithm, limit=1e6, burst=1e6)
        before = bucket.hit("k", 1e6).remaining
        for _ in range(10):
            bucket.hit("k", 1e6, 1e-9)
        assert bucket.peek("k", 1e6).remaining < before - 1.0


@pytest.mark.parametrize("algorithm", EVERY)
def test_a_whole_burst_fits_into_one_moment_at_any_uptime(algorithm: str) -> None:
    for start in (0.0, 0.1, 1.0, 777.123, 4095.9, 86_400.7, 1e6 + 1 / 3, 1.7e9 + 0.1):
        for limit in (1, 3, 7, 10, 100, 255):
            limiter = window(algorithm, limit, 1.0)
            admitted = sum(limiter.hit("k", start).allowed for _ in range(limit + 5))
            assert admitted == limit, (start, limit)


@pytest.mark.parametrize("algorithm", EVERY)
def test_taking_by_force_empties_but_leaves_no_debt(algorithm: str) -> None:
    limiter = window(algorithm, 5, 10.0)
    for _ in range(12):
        limiter.take("k", 100.0, 2)
    assert limiter.peek("k", 100.0).remaining <= 1.0
    assert limiter.peek("k", 120.0).remaining == 4.0
    assert limiter.peek("new", 100.0).remaining == 4.0
    assert (limiter.allowed, limiter.refused) == (0, 0)


@pytest.mark.parametrize("algorithm", EVERY)
def test_lowering_a_rate_leaves_nobody_in_debt(algorithm: str) -> None:
    # 1000/s lowered to 10/s left tokens at -990, a lockout of 99 s.
    limiter = window(algorithm, 1000, 1.0)
    for _ in range(1000):
        limiter.hit("k", 50.0)
    limiter.hit("fresh", 50.0)
    limiter.change(10, 1.0, None, 50.0)
    quota = limiter.hit("k", 50.0)
    assert not quota.allowed
    assert quota.limit == 10.0
    assert quota.retry_after <= 2.0
    assert limiter.hit("k", 50.0 + quota.retry_after).allowed
    assert limiter.peek("fresh", 50.0).remaining == pytest.approx(8.0)


@pytest.mark.parametrize("algorithm", EVERY)
def test_raising_a_rate_keeps_what_was_used(algorithm: str) -> None:
    limiter = window(algorithm, 10, 1.0)
    for _ in range(10):
        limiter.hit("k", 50.5)
    limiter.change(15, 1.0, None, 50.5)
    assert sum(limiter.hit("k", 50.5).allowed for _ in range(20)) == 5


@pytest.mark.parametrize("algorithm", BUCKETS)
@law
@given(limits, limits, bursts, bursts, st.floats(0.0, 1e6))
def test_a_changed_rate_is_exact_from_the_moment_of_the_change(
    algorithm: str, old: float, new: float, old_burst: float, new_burst: float, start: float
) -> None:
    bucket: Limiter[Any] = create(algorithm, limit=old, burst=old_burst)
    while bucket.hit("k", start).allowed:
        pass
    bucket.change(new, 1.0, new_burst, start)
    now, admitted = start, 0
    for _ in range(50):
        quota = bucket.hit("k", now)
        admitted += quota.allowed
        now += quota.retry_after
    grown = max(0.0, new_burst - old_burst + 1.0)
    assert admitted <= grown + 1.0 + new * (now - start) + 1e-3
    assert admitted >= new * (now - start) - 1.0 - 1e-3


@pytest.mark.parametrize("algorithm", EVERY)
def test_a_cost_above_the_burst_is_hopeless_even_after_the_clock_stepped_back(
    algorithm: str,
) -> None:
    # It was searched for without end once.
    for back in (0.4, 1.0, 7.0):
        limiter = window(algorithm, 5, 1.0)
        limiter.hit("k", 100.0)
        assert limiter.hit("k", 100.0 - back, 6).retry_after == math.inf
        assert limiter.peek("k", 100.0 - back, 6).retry_after == math.inf


@pytest.mark.parametrize("algorithm", EVERY)
@law
@given(whole_limits, pers, st.lists(st.floats(-3.0, 3.0), min_size=1, max_size=40))
def test_retry_after_is_enough_although_the_clock_steps_back_and_forth(
    algorithm: str, limit: int, per: float, steps: list[float]
) -> None:
    limiter = window(algorithm, limit, per)
    now = 1000.0 * per
    for number, step in enumerate(steps):
        now += step * per
        for cost in (1, limit, 1 + number % limit):
            quota = limiter.hit("k", now, cost)
            if not quota.allowed:
                assert limiter.peek("k", now + quota.retry_after, cost).allowed
