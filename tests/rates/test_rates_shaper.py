"""The leaky bucket that delays."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgate.decisions import Reason, Refuse
from loadgate.rates import create
from loadgate.rates.shaper import LeakyBucketShaper


def shaper(limit: float = 10, burst: float | None = 20) -> LeakyBucketShaper:
    return create("leaky-bucket-shaper", limit=limit, per=1.0, burst=burst)


def test_requests_of_one_moment_leave_evenly_spaced() -> None:
    queue = shaper()
    delays = [queue.delay("k", 5.0) for _ in range(20)]
    assert delays[0] == 0.0
    assert delays == pytest.approx([step / 10 for step in range(20)])


def test_what_would_wait_beyond_the_burst_is_refused_with_the_moment_it_fits() -> None:
    queue = shaper(burst=3)
    for _ in range(3):
        assert isinstance(queue.delay("k", 0.0), float)
    refusal = queue.delay("k", 0.0)
    assert isinstance(refusal, Refuse)
    assert refusal.reason is Reason.RATE
    assert refusal.retry_after == pytest.approx(0.1)
    assert queue.delay("k", refusal.retry_after) == pytest.approx(0.2)


def test_a_cost_that_can_never_fit_is_refused_for_ever() -> None:
    refusal = shaper(burst=3).delay("k", 0.0, 4)
    assert isinstance(refusal, Refuse)
    assert refusal.retry_after == math.inf
    assert refusal.bound == 3


def test_keys_do_not_wait_for_each_other() -> None:
    queue = shaper()
    for _ in range(5):
        queue.delay("busy", 0.0)
    assert queue.delay("idle", 0.0) == 0.0
    assert queue.delay(b"busy", 0.0) == 0.0


def test_whoever_leaves_the_queue_gives_its_place_to_the_next() -> None:
    queue = shaper()
    for _ in range(5):
        queue.delay("k", 0.0)
    queue.give_back("k", 0.0)
    assert queue.delay("k", 0.0) == pytest.approx(0.4)
    queue.give_back("nobody", 0.0)


@settings(deadline=None, max_examples=60)
@given(
    st.floats(0.1, 1000.0),
    st.integers(1, 50),
    st.floats(0.0, 1e5),
    st.lists(st.floats(0.0, 2.0), min_size=1, max_size=60),
)
def test_departures_are_never_closer_than_the_rate(
    limit: float, burst: int, start: float, gaps: list[float]
) -> None:
    queue = shaper(limit, burst)
    now, last = start, -math.inf
    for gap in gaps:
        now += gap / limit
        delay = queue.delay("k", now)
        if isinstance(delay, Refuse):
            continue
        assert 0.0 <= delay <= burst / limit
        assert now + delay - last >= (1.0 - 1e-6) / limit - 1e-9
        last = now + delay
