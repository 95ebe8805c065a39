"""Rounding of fractional costs and of very short windows never shows."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgate.rates import Limiter, create

EVERY = [
    "token-bucket",
    "leaky-bucket",
    "fixed-window",
    "sliding-window-counter",
    "sliding-window-log",
]


def test_what_the_first_window_counted_in_fractions_is_let_in_at_its_retry_after() -> None:
    # The state keeps fewer digits of the count once another window has begun.
    counter: Limiter[Any] = create("sliding-window-counter", limit=59, per=60.0)
    assert counter.hit("k", 24.880550772873303, 11.465508844006456).allowed
    refused = counter.hit("k", 26.095595391349335, 48.86272108712647)
    assert not refused.allowed
    assert counter.hit("k", 26.095595391349335 + refused.retry_after, 48.86272108712647).allowed


@settings(deadline=None, max_examples=200)
@given(
    st.sampled_from(EVERY[:-1]),  # the log counts whole costs only
    st.integers(2, 300),
    st.lists(st.tuples(st.floats(0.0, 1.0), st.floats(0.001, 1.0)), min_size=2, max_size=8),
)
def test_fractional_costs_pass_at_their_retry_after(
    algorithm: str, limit: int, asked: list[tuple[float, float]]
) -> None:
    limiter: Limiter[Any] = create(algorithm, limit=limit, per=60.0)
    now = 0.0
    for gap, share in asked:
        now += gap * 60.0
        quota = limiter.hit("k", now, share * limit)
        if not quota.allowed and share * limit <= quota.limit:
            now += quota.retry_after
            assert limiter.hit("k", now, share * limit).allowed


@pytest.mark.parametrize("algorithm", EVERY)
@pytest.mark.parametrize("now", [0.0, 12_345.678, 31_887_071.14780242, 1_240_423_315.8117826])
@pytest.mark.parametrize("limit", [1, 3])
def test_no_limit_is_whole_again_in_the_past(algorithm: str, now: float, limit: int) -> None:
    # A window far shorter than the digits of the clock: its end is rounded to before now.
    for step in range(200):
        limiter: Limiter[Any] = create(algorithm, limit=limit, per=1e-9)
        at = now + step * 1e-7
        for _ in range(2):
            for quota in (limiter.hit("k", at), limiter.peek("k", at)):
                assert quota.reset_after >= 0.0
                assert quota.retry_after >= 0.0
